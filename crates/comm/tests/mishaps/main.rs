//! Random schedules of faults on the simulated network and as many on threads: one to four ranks are killed, stopped or
//! livelocked, links cut in one direction or both, alien bytes and forged frames put on them, while all algorithms, several operations at once and letters are under way.
//! Never a hang, never a wrong result, always the right culprit. A failing seed says how to see it again.
//!
//! `THALWEG_SEEDS=1000` runs that many seeds from `THALWEG_FIRST_SEED` on, `THALWEG_SEED=17` one of them;
//! `cargo xtask test --seeds 1000` runs them with those of the training.

mod judge;
mod scene;
mod threads;
mod work;

use judge::Outcome;
use scene::{Scene, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use thalweg_comm::transport::sim::{Happening, Kind, Mishap, Network, Simulation};
use thalweg_testkit::transport::each;

/// Seeds that run without `THALWEG_SEEDS`; fewer than `REPRESENTATIVE` need not hold every kind of fault.
const SEEDS: u64 = 200;

/// This many seeds hold each kind of fault and of work in fair numbers.
const REPRESENTATIVE: u64 = 200;

/// Names a single seed to run.
const VARIABLE: &str = "THALWEG_SEED";

/// Runs that wait for nothing but a deadline can wait side by side.
const SIDE_BY_SIDE: usize = 16;

/// The most failing seeds that are shown.
const SHOWN: usize = 5;

/// Ten times what the slowest run takes, on a busy machine.
const HANG: Duration = Duration::from_secs(60);

/// On the simulated network; the longest an undisturbed run may take is known by trying.
fn simulated(scene: &Scene, seed: u64) -> Outcome {
    let run = |mishaps: &[Mishap]| {
        let network = Network { jitter: 3.0, ..Network::ordinary(scene.world, seed) };
        let simulation = Simulation::new(network, mishaps);
        let ended = each(simulation.ranks(), |transport| work::perform(scene, transport));
        (ended, simulation.trace())
    };
    let (ended, trace) = run(&[]);
    assert!(ended.iter().all(Option::is_none), "nothing went wrong, but {ended:?}");
    let span = trace.entries.last().map_or(Duration::ZERO, |entry| entry.time);
    let timely = |mishap: &Mishap| Mishap::at(span.mul_f64(mishap.at.as_secs_f64()), mishap.kind.clone());
    let (ended, trace) = run(&scene.mishaps.iter().map(timely).collect::<Vec<_>>());
    let struck = trace.entries.into_iter().filter_map(|entry| match entry.happening {
        Happening::Mishap(kind) => Some(kind),
        _ => None,
    });
    Outcome { struck: struck.collect(), ended }
}

fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// The seeds to run, by the environment.
fn seeds() -> Range<u64> {
    let single = asked(VARIABLE);
    let first = single.or_else(|| asked("THALWEG_FIRST_SEED")).unwrap_or(0);
    let count = if single.is_some() { 1 } else { asked("THALWEG_SEEDS").unwrap_or(SEEDS) };
    first..first.saturating_add(count)
}

/// Runs every seed, several side by side, and judges each; how many were disturbed, by kind of fault and of work.
fn run_all(test: &'static str, run: fn(&Scene, u64) -> Outcome) -> BTreeMap<&'static str, u64> {
    let single = asked(VARIABLE);
    let Range { start: first_seed, end: last } = seeds();
    let next = Arc::new(AtomicU64::new(first_seed));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..SIDE_BY_SIDE {
        let (next, sender) = (Arc::clone(&next), sender.clone());
        // Not scoped: one that hangs must not keep the test from saying so.
        std::thread::spawn(move || {
            let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            for seed in seeds.take_while(|seed| *seed < last) {
                let outcome = std::panic::catch_unwind(|| run(&Scene::of(seed), seed));
                if sender.send((seed, outcome)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let again = |seed: u64| {
        let scene = Scene::of(seed);
        format!("\n{scene:?}\nagain: {VARIABLE}={seed} cargo test -p thalweg-comm --test mishaps {test}")
    };
    let (mut counts, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut waited_for: BTreeSet<u64> = (first_seed..last).collect();
    while let Some(&first) = waited_for.first() {
        let Ok((seed, outcome)) = receiver.recv_timeout(HANG) else {
            panic!("seed {first} or one of the {SIDE_BY_SIDE} after it hangs{}", again(first))
        };
        waited_for.remove(&seed);
        match outcome {
            Err(_) => wrong.push(format!("seed {seed} panicked{}", again(seed))),
            Ok(outcome) => {
                wrong.extend(outcome.wrong().map(|words| format!("seed {seed}: {words}{}", again(seed))));
                if outcome.is_disturbed() {
                    count(&mut counts, &Scene::of(seed), &outcome);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong[..wrong.len().min(SHOWN)].join("\n"));
    if single.is_none() {
        println!("{test}: disturbed {counts:?}");
    }
    counts
}

fn count(counts: &mut BTreeMap<&'static str, u64>, scene: &Scene, outcome: &Outcome) {
    let work = match scene.work {
        Work::AllReduce(algorithm) => algorithm.name(),
        Work::InFlight(_) => "in flight",
        Work::Other(goal, _) => goal.name(),
        Work::Letters => "letters",
    };
    let kinds = outcome.struck.first().map(|kind| match kind {
        Kind::Kill { .. } => "kill",
        Kind::Stop { .. } => "stop",
        Kind::Livelock { .. } => "livelock",
        Kind::Cut { .. } => "cut",
        Kind::CutOneWay { .. } => "one-way cut",
        Kind::Forge { .. } => "forgery",
        Kind::Garbage { .. } => "garbage",
        Kind::Slow { .. } => "slow",
        Kind::Join { .. } | Kind::Leave { .. } | Kind::Lie { .. } => "coming and going",
    });
    for key in [Some("all"), Some(work), kinds].into_iter().flatten() {
        *counts.entry(key).or_default() += 1;
    }
}

/// Most schedules struck somebody, and each kind of fault and of work had its share.
fn assert_enough(counts: &BTreeMap<&'static str, u64>) {
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    if count < REPRESENTATIVE {
        return;
    }
    let of = |key: &str| counts.get(key).copied().unwrap_or(0);
    assert!(of("all") > count / 2, "{counts:?}");
    for kind in ["kill", "stop", "livelock", "cut", "one-way cut", "garbage", "forgery"] {
        assert!(of(kind) > count / 20, "few began with a {kind}: {counts:?}");
    }
    let works = thalweg_comm::Algorithm::ALL.map(thalweg_comm::Algorithm::name);
    for work in works.into_iter().chain(["in flight", "all-to-all", "broadcast", "all-gather", "letters"]) {
        assert!(of(work) > count / 100, "few disturbed {work}: {counts:?}");
    }
}

#[test]
fn on_the_simulated_network() {
    assert_enough(&run_all("on_the_simulated_network", simulated));
}

#[test]
fn on_threads() {
    assert_enough(&run_all("on_threads", threads::run));
}
