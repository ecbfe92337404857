//! Workers at different clocks: the bound, what they read, and the parameters.

use super::{RATE, Recorded, Replay, Run, job};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_comm::transport::sim::{LinkParameters, Network as Simulated};
use thalweg_core::JobSpec;
use thalweg_core::report::Staleness;
use thalweg_core::spec::mitigation::UpdateRate;

/// Workers of random speed.
fn run(workers: usize, seed: u64, settings: &[&str]) -> (JobSpec, Vec<Recorded>, Vec<f32>, Staleness) {
    let count = format!("engine.workers={workers}");
    let job = job(&[&["strategy.preset=parameter-server", "train.epochs=2", &count], settings].concat());
    let Run { record, parameters, staleness } = super::run(&job, (4.0, seed), |_| 0.0);
    (job, record, parameters, staleness.expect("a server's account"))
}

/// What a worker reads, and the clocks that all had completed when it was sent.
#[derive(Clone)]
struct Copy {
    w: Vec<f32>,
    holds: u64,
    /// Updates before it.
    version: u64,
}

/// Updates that have their effect as they arrive: `w` in the end, and the most clocks that a worker was ahead.
fn replay_pushes(job: &JobSpec, record: &[Recorded], workers: usize, keeps_copy: bool) -> (Vec<f32>, u64) {
    let (mut replay, staleness) = (Replay::of(job), job.scheduling.staleness);
    let (lambda, divides) =
        (job.mitigation.delay_compensation as f32, job.mitigation.learning_rate == UpdateRate::Staleness);
    let mut w = replay.initial.clone();
    let mut completed = vec![0; workers];
    let mut copies = vec![Copy { w: w.clone(), holds: 0, version: 0 }; workers];
    let mut version = 0;
    let (mut ahead, mut most): (BTreeMap<usize, Copy>, u64) = (BTreeMap::new(), 0);
    for event in record {
        let slowest = completed.iter().copied().min().unwrap_or(0);
        match event {
            Recorded::Began { member, clock, reads } => {
                assert_eq!(completed[*member], *clock);
                assert!(slowest + staleness >= *clock, "{clock} began when one had completed {slowest}");
                most = most.max(clock - slowest);
                if *reads {
                    copies[*member] = Copy { w: w.clone(), holds: slowest, version };
                }
                assert!(copies[*member].holds + staleness >= *clock, "what is read for {clock} is too old");
            }
            Recorded::SentAhead { member } => {
                ahead.insert(*member, Copy { w: w.clone(), holds: slowest, version });
            }
            Recorded::AppliedTask { member, task } => {
                let gradient = replay.gradient(&copies[*member].w, &task.piece.rows, task.piece.of_step);
                let copy = &mut copies[*member];
                if keeps_copy {
                    let before = copy.w.clone();
                    copy.w.iter_mut().zip(gradient).for_each(|(value, g)| *value -= RATE * g);
                    let delta: Vec<f32> =
                        copy.w.iter().zip(before).map(|(after, before)| after - before).collect();
                    if let Some(sent) = ahead.remove(member) {
                        *copy = sent;
                        copy.w.iter_mut().zip(&delta).for_each(|(value, delta)| *value += delta);
                    }
                    w.iter_mut().zip(&delta).for_each(|(value, delta)| *value += delta);
                } else {
                    let age = if divides { (version - copy.version).max(1) } else { 1 };
                    let rate = RATE / age as f32;
                    let lambda = lambda / (task.piece.rows.len() as f32 / task.piece.of_step as f32);
                    for ((value, g), then) in w.iter_mut().zip(gradient).zip(&copy.w) {
                        *value -= rate * (g + lambda * g * g * (*value - then));
                    }
                }
                completed[*member] += 1;
                version += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    (w, most)
}

#[test]
fn bounded_gradients_follow_their_reference() {
    for (seed, workers, staleness, servers) in [(0, 3, 0, 1), (1, 4, 1, 2), (2, 5, 3, 1), (3, 5, 3, 3)] {
        let bound = format!("strategy.scheduling.staleness={staleness}");
        let servers = format!("strategy.servers.count={servers}");
        let own = ["strategy.scheduling.kind=ssp", &bound, &servers, "engine.slow={1=3.0}"];
        let (job, record, parameters, ages) = run(workers, seed, &own);
        let (w, most) = replay_pushes(&job, &record, workers, false);
        assert_eq!(w, parameters, "{workers} workers, s = {staleness}, {servers}");
        assert_eq!(most, staleness, "the bound is used");
        assert!(ages.updates.len() as u64 <= (2 * staleness + 1) * workers as u64, "{:?}", ages.updates);
    }
}

/// Rates divided by staleness, delay compensation, and both.
#[test]
fn mitigated_gradients_follow_their_reference() {
    let rate = "strategy.mitigation.learning_rate=staleness";
    let compensation = "strategy.mitigation.delay_compensation=2.0";
    for settings in [&[rate][..], &[compensation], &[rate, compensation, "strategy.servers.count=2"]] {
        let (job, record, parameters, _) = run(4, 5, &[&["strategy.scheduling.kind=ssp"], settings].concat());
        assert_eq!(replay_pushes(&job, &record, 4, false).0, parameters, "{settings:?}");
        let plain = JobSpec { mitigation: Default::default(), ..job };
        let other = replay_pushes(&plain, &record, 4, false).0;
        assert_ne!(other, parameters, "{settings:?} does nothing");
    }
}

#[test]
fn bounded_changes_follow_their_reference() {
    for (seed, workers, kind, servers) in
        [(0, 3, "ssp", 1), (1, 4, "essp", 1), (2, 5, "ssp", 2), (3, 4, "essp", 3)]
    {
        let kind = format!("strategy.scheduling.kind={kind}");
        let servers = format!("strategy.servers.count={servers}");
        let (job, record, parameters, _) = run(workers, seed, &[&kind, "strategy.push=delta", &servers]);
        let (w, most) = replay_pushes(&job, &record, workers, true);
        assert_eq!(w, parameters, "{workers} workers, {kind}, {servers}");
        let reads = |event: &&Recorded| matches!(event, Recorded::Began { reads: true, .. });
        let ahead = |event: &&Recorded| matches!(event, Recorded::SentAhead { .. });
        let (began, ahead) = (record.iter().filter(reads).count(), record.iter().filter(ahead).count());
        assert!(most <= 3 && began < record.len() / 2, "a worker reads its copy in most clocks");
        assert_eq!(ahead > 0, kind.ends_with("essp"));
    }
}

#[test]
fn a_quorum_follows_its_reference() {
    for servers in ["strategy.servers.count=1", "strategy.servers.count=2"] {
        let [finished, abandoned] = ["finish", "abandon"].map(|late| {
            let late = format!("strategy.scheduling.late={late}");
            a_quorum_follows(&["strategy.scheduling.kind=quorum", "engine.slow={1=5.0}", servers, &late])
        });
        assert_eq!(finished.abandoned, 0);
        assert!(abandoned.abandoned > 10, "{} late gradients", abandoned.abandoned);
        assert!(abandoned.begun > finished.begun, "a slow worker goes on with the current clock at once");
    }
}

/// What late workers did: gradients they left, and clocks that the slow one began.
struct LateWork {
    abandoned: usize,
    begun: usize,
}

fn a_quorum_follows(settings: &[&str]) -> LateWork {
    let (job, record, parameters, _) = run(4, 3, settings);
    let (mut late, mut closed, mut clocks) = (LateWork { abandoned: 0, begun: 0 }, 0, [0; 4]);
    let mut replay = Replay::of(&job);
    let mut w = replay.initial.clone();
    let mut copies = vec![w.clone(); 4];
    let mut short = 0;
    for event in &record {
        match event {
            Recorded::Began { member, clock, .. } => {
                copies[*member].clone_from(&w);
                clocks[*member] = *clock;
                late.begun += usize::from(*member == 1);
            }
            Recorded::Abandoned { member } => {
                assert!(clocks[*member] < closed, "rank {member} leaves clock {}", clocks[*member]);
                late.abandoned += 1;
            }
            Recorded::Closed { of_step, shares } => {
                assert!(shares.iter().all(|(member, _)| clocks[*member] == closed));
                closed += 1;
                let mut sum = vec![0.0; w.len()];
                for (member, rows) in shares {
                    let gradient = replay.gradient(&copies[*member], rows, *of_step);
                    sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
                }
                let rows: usize = shares.iter().map(|(_, rows)| rows.len()).sum();
                short += usize::from(rows < *of_step);
                let scale = *of_step as f32 / rows as f32;
                sum.iter_mut().zip(&mut w).for_each(|(sum, value)| *value -= RATE * (*sum * scale));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(w, parameters);
    assert!(short > 10, "{short} clocks without a worker");
    late
}

/// Members and rows of the updates, in their order.
fn work(record: &[Recorded]) -> Vec<(usize, Vec<u64>)> {
    let update = |recorded: &Recorded| match recorded {
        Recorded::Applied { member, pieces, .. } => Some((*member, pieces[0].0.clone())),
        Recorded::AppliedTask { member, task } => Some((*member, task.piece.rows.clone())),
        _ => None,
    };
    record.iter().filter_map(update).collect()
}

/// Where workers of the same speed compute the same rows under both, what they read is the same to the bit.
#[test]
fn without_a_bound_it_is_asynchronous() {
    for (workers, servers) in [(1, 1), (3, 1), (4, 2)] {
        let run = |own: &[&str]| {
            let count = format!("engine.workers={workers}");
            let k = format!("strategy.servers.count={servers}");
            // All shares have as many rows.
            let even = ["train.global_batch=48", "train.max_steps=20", "engine.pace=200ms", &count, &k];
            let job = job(&[&["strategy.preset=parameter-server"], &even[..], own].concat());
            // Requests arrive in the order of ranks.
            let far = |worker: usize| {
                let latency = Some(Duration::from_micros(50 + 400 * worker as u64));
                (workers..workers + servers)
                    .map(move |server| ((worker, server), LinkParameters { latency, bandwidth: None }))
            };
            let links = (0..workers).flat_map(far).collect();
            super::run_on(Simulated { jitter: 0.0, links, ..super::network(&job, 0) }, &job, |_| 0.0)
        };
        let unbounded = run(&["strategy.scheduling.kind=ssp", "strategy.scheduling.staleness=1000000"]);
        let asynchronous = run(&["strategy.scheduling.kind=async"]);
        let (one, other) = (work(&unbounded.record), work(&asynchronous.record));
        assert!(
            one == other && one.len() == 20 * workers,
            "{workers} workers compute other rows, or in another order"
        );
        assert_eq!(unbounded.parameters, asynchronous.parameters, "{workers} workers, {servers} servers");
    }
}

/// From many seeds: workers of random speed keep the bound, and none starves.
#[test]
fn the_bound_holds_for_many_seeds() {
    let seeds = std::env::var("THALWEG_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for seed in 0..seeds {
        let (workers, staleness) = (2 + seed as usize % 5, seed % 4);
        let kind = if seed % 3 == 0 { "essp" } else { "ssp" };
        let settings = [
            format!("strategy.scheduling.kind={kind}"),
            format!("strategy.scheduling.staleness={staleness}"),
            format!("strategy.servers.count={}", 1 + seed / 4 % 3),
            "train.epochs=1".into(),
            "train.global_batch=64".into(),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let (job, record, parameters, _) = run(workers, seed, &settings);
        let (w, _) = replay_pushes(&job, &record, workers, kind == "essp");
        assert_eq!(w, parameters, "seed {seed}");
    }
}
