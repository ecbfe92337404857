//! Random fault schedules, on the simulated network and on threads: one to four ranks are killed, stopped or
//! livelocked, links are cut in one direction or both, garbage and forged frames are injected, while all algorithms,
//! several concurrent operations and messages are in progress. Never a hang, never a wrong result, always the right
//! culprit. A failing seed prints the command that reproduces it.
//!
//! `THALWEG_SEEDS=1000` runs that many seeds from `THALWEG_FIRST_SEED` on, `THALWEG_SEED=17` one of them;
//! `cargo xtask test --seeds 1000` runs them with those of the training.

mod outcome;
mod scenario;
mod threads;
mod work;

use outcome::Outcome;
use scenario::{Scenario, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind, Simulation, TraceEvent};
use thalweg_testkit::transport::run_ranks;

/// Seeds that run without `THALWEG_SEEDS`; fewer than `REPRESENTATIVE` need not contain every kind of fault.
const SEEDS: u64 = 200;

/// This many seeds contain each kind of fault and of work often enough.
const REPRESENTATIVE: u64 = 200;

/// Selects a single seed.
const VARIABLE: &str = "THALWEG_SEED";

/// Concurrent runs: most of their time is waiting for deadlines.
const CONCURRENT_RUNS: usize = 16;

/// The most failing seeds that are printed.
const MAX_SHOWN: usize = 5;

/// Ten times the slowest run, on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs on the simulated network. A first run without faults measures the time over which the faults are spread.
fn simulated(scenario: &Scenario, seed: u64) -> Outcome {
    let run = |faults: &[SimulatedFault]| {
        let network = Network { jitter: 3.0, ..Network::ordinary(scenario.world, seed) };
        let simulation = Simulation::new(network, faults);
        let ended = run_ranks(simulation.ranks(), |transport| work::perform(scenario, transport));
        (ended, simulation.trace())
    };
    let (ended, trace) = run(&[]);
    assert!(ended.iter().all(Option::is_none), "no fault was injected, but {ended:?}");
    let span = trace.entries.last().map_or(Duration::ZERO, |entry| entry.time);
    let scaled =
        |fault: &SimulatedFault| SimulatedFault::at(span.mul_f64(fault.at.as_secs_f64()), fault.kind.clone());
    let (ended, trace) = run(&scenario.faults.iter().map(scaled).collect::<Vec<_>>());
    let injected = trace.entries.into_iter().filter_map(|entry| match entry.event {
        TraceEvent::Fault(kind) => Some(kind),
        _ => None,
    });
    Outcome { injected: injected.collect(), ended }
}

fn environment_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// The seeds to run, from the environment.
fn seeds() -> Range<u64> {
    let single = environment_number(VARIABLE);
    let first = single.or_else(|| environment_number("THALWEG_FIRST_SEED")).unwrap_or(0);
    let count = if single.is_some() { 1 } else { environment_number("THALWEG_SEEDS").unwrap_or(SEEDS) };
    first..first.saturating_add(count)
}

/// Runs and checks every seed, several concurrently; the number of failed runs by kind of fault and of work.
fn run_all(test: &'static str, run: fn(&Scenario, u64) -> Outcome) -> BTreeMap<&'static str, u64> {
    let single = environment_number(VARIABLE);
    let Range { start: first_seed, end: last } = seeds();
    let next = Arc::new(AtomicU64::new(first_seed));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..CONCURRENT_RUNS {
        let (next, sender) = (Arc::clone(&next), sender.clone());
        // Not scoped: a run that hangs must not keep the test from reporting it.
        std::thread::spawn(move || {
            let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            for seed in seeds.take_while(|seed| *seed < last) {
                let outcome = std::panic::catch_unwind(|| run(&Scenario::of(seed), seed));
                if sender.send((seed, outcome)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let reproduce = |seed: u64| {
        let scenario = Scenario::of(seed);
        format!(
            "\n{scenario:?}\nreproduce: {VARIABLE}={seed} cargo test -p thalweg-comm --test faults {test}"
        )
    };
    let (mut counts, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut pending: BTreeSet<u64> = (first_seed..last).collect();
    while let Some(&first) = pending.first() {
        let Ok((seed, outcome)) = receiver.recv_timeout(HANG_TIMEOUT) else {
            panic!("seed {first} or one of the {CONCURRENT_RUNS} after it hangs{}", reproduce(first))
        };
        pending.remove(&seed);
        match outcome {
            Err(_) => wrong.push(format!("seed {seed} panicked{}", reproduce(seed))),
            Ok(outcome) => {
                wrong.extend(
                    outcome.wrong().map(|message| format!("seed {seed}: {message}{}", reproduce(seed))),
                );
                if outcome.has_failed() {
                    count(&mut counts, &Scenario::of(seed), &outcome);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong[..wrong.len().min(MAX_SHOWN)].join("\n"));
    if single.is_none() {
        println!("{test}: failed {counts:?}");
    }
    counts
}

fn count(counts: &mut BTreeMap<&'static str, u64>, scenario: &Scenario, outcome: &Outcome) {
    let work = match scenario.work {
        Work::AllReduce(algorithm) => algorithm.name(),
        Work::Concurrent(_) => "concurrent",
        Work::Other(collective, _) => collective.name(),
        Work::Messages => "messages",
    };
    let kinds = outcome.injected.first().map(|kind| match kind {
        SimulatedFaultKind::Kill { .. } => "kill",
        SimulatedFaultKind::Stop { .. } => "stop",
        SimulatedFaultKind::Livelock { .. } => "livelock",
        SimulatedFaultKind::Cut { .. } => "cut",
        SimulatedFaultKind::CutOneWay { .. } => "one-way cut",
        SimulatedFaultKind::Forge { .. } => "forged frame",
        SimulatedFaultKind::Garbage { .. } => "garbage",
        SimulatedFaultKind::Slow { .. } => "slow",
        SimulatedFaultKind::Join { .. }
        | SimulatedFaultKind::Leave { .. }
        | SimulatedFaultKind::FalseReport { .. } => "membership",
    });
    for key in [Some("all"), Some(work), kinds].into_iter().flatten() {
        *counts.entry(key).or_default() += 1;
    }
}

/// Most schedules made a run fail, and each kind of fault and of work often enough.
fn assert_enough(counts: &BTreeMap<&'static str, u64>) {
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    if count < REPRESENTATIVE {
        return;
    }
    let of = |key: &str| counts.get(key).copied().unwrap_or(0);
    assert!(of("all") > count / 2, "{counts:?}");
    for kind in ["kill", "stop", "livelock", "cut", "one-way cut", "garbage", "forged frame"] {
        assert!(of(kind) > count / 20, "few runs failed with a {kind} first: {counts:?}");
    }
    let works = thalweg_comm::Algorithm::ALL.map(thalweg_comm::Algorithm::name);
    for work in works.into_iter().chain(["concurrent", "all-to-all", "broadcast", "all-gather", "messages"]) {
        assert!(of(work) > count / 100, "few runs of {work} failed: {counts:?}");
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
