//! The asynchronous parameter server: its parameters, and how old its updates are.

use super::{RATE, Recorded, Replay, Run, different, job, run};
use std::collections::BTreeMap;
use thalweg_core::JobSpec;

const EPOCHS: usize = 3;

fn served(workers: usize) -> JobSpec {
    job(&[
        "strategy.preset=parameter-server",
        "strategy.scheduling.kind=async",
        &format!("train.epochs={EPOCHS}"),
        &format!("engine.workers={workers}"),
    ])
}

#[test]
fn asynchronous_updates_follow_their_reference() {
    for (seed, workers) in [(0, 3), (1, 5)] {
        let job = served(workers);
        let Run { record, parameters, .. } = run(&job, (2.0, seed), |_| 0.0);
        let mut replay = Replay::of(&job);
        let mut w = replay.initial.clone();
        let mut pulled: BTreeMap<usize, Vec<f32>> = (0..workers).map(|i| (i, w.clone())).collect();
        let (all, mut computed) = (replay.data.training.len() as usize, 0);
        for recorded in &record {
            let Recorded::Applied { member, pieces, .. } = recorded else { panic!("{recorded:?}") };
            let (rows, of_step) = &pieces[0];
            let gradient = replay.gradient(&pulled[member], rows, *of_step);
            w.iter_mut().zip(gradient).for_each(|(w, g)| *w -= RATE * g);
            pulled.insert(*member, w.clone());
            computed += rows.len();
            if computed.is_multiple_of(all) {
                // All pull after the meeting at the end of an epoch.
                pulled.values_mut().for_each(|pulled| pulled.clone_from(&w));
            }
        }
        assert_eq!(different(&w, &parameters), 0, "{workers} workers");
    }
}

/// Replicas that push the gradients of `n_push` pieces, or the change that these make, and fetch after `n_fetch`.
#[test]
fn asynchronous_replicas_that_step_locally_follow_their_reference() {
    for (seed, workers, push, n_push, n_fetch) in
        [(0, 3, "gradient", 1, 2), (1, 4, "gradient", 2, 6), (2, 3, "delta", 1, 1), (3, 4, "delta", 3, 6)]
    {
        let job = job(&[
            "strategy.preset=parameter-server",
            "strategy.scheduling.kind=async",
            &format!("strategy.push={push}"),
            &format!("strategy.scheduling.n_push={n_push}"),
            &format!("strategy.scheduling.n_fetch={n_fetch}"),
            "train.epochs=2",
            &format!("engine.workers={workers}"),
        ]);
        let Run { record, parameters, .. } = run(&job, (2.0, seed), |_| 0.0);
        let mut replay = Replay::of(&job);
        let (all, mut computed) = (replay.data.training.len() as usize, 0);
        let mut w = replay.initial.clone();
        // Its copy, and its pushes since it was fetched.
        let mut replicas = vec![(w.clone(), 0); workers];
        for recorded in &record {
            let Recorded::Applied { member, pieces, .. } = recorded else { panic!("{recorded:?}") };
            let (copy, pushes) = &mut replicas[*member];
            let (before, mut sum) = (copy.clone(), vec![0.0; w.len()]);
            for (rows, of_step) in pieces {
                let gradient = replay.gradient(copy, rows, *of_step);
                for ((value, sum), g) in copy.iter_mut().zip(&mut sum).zip(gradient) {
                    *value -= RATE * g;
                    *sum += g;
                }
                computed += rows.len();
            }
            match push {
                "delta" => {
                    let delta = copy.iter().zip(before).map(|(after, before)| after - before);
                    w.iter_mut().zip(delta).for_each(|(w, delta)| *w += delta);
                }
                _ => w.iter_mut().zip(sum).for_each(|(w, g)| *w -= RATE * g),
            }
            *pushes += 1;
            if *pushes * n_push == n_fetch {
                (*copy, *pushes) = (w.clone(), 0);
            }
            if computed.is_multiple_of(all) {
                replicas.fill((w.clone(), 0));
            }
        }
        assert!(record.iter().any(|event| matches!(event, Recorded::Applied { age, .. } if *age > 0)));
        assert_eq!(different(&w, &parameters), 0, "{workers} replicas push a {push} of {n_push}");
    }
}

/// A server that is slower than its workers applies the stalest of the updates that wait.
#[test]
fn the_stalest_update_is_applied_first() {
    let own = ["strategy.scheduling.queue=staleness", "engine.slow={0=3.0}"];
    let job = job(&[
        &["strategy.preset=parameter-server", "strategy.scheduling.kind=async"][..],
        &["train.epochs=1", "engine.workers=8"],
        &own,
    ]
    .concat());
    let Run { record, .. } = run(&job, (2.0, 1), |_| 0.0);
    let (mut version, mut last, mut overtaken) = (0, 0, 0);
    for recorded in &record {
        match recorded {
            Recorded::Applied { age, .. } => {
                last = version - age;
                version += 1;
            }
            Recorded::Waiting(versions) => {
                assert!(versions.iter().all(|read| *read >= last), "{versions:?} waited for {last}");
                overtaken += versions.len();
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(overtaken > 50, "{overtaken} updates had to wait");
}

/// Until the steps of the warm start are done, the first worker computes alone.
#[test]
fn one_replica_begins_alone() {
    for servers in [1, 2] {
        let job = job(&[
            "strategy.preset=parameter-server",
            "strategy.scheduling.kind=async",
            "strategy.mitigation.warm_start=6",
            &format!("strategy.servers.count={servers}"),
            "train.epochs=1",
            "engine.workers=3",
        ]);
        let Run { record, .. } = run(&job, (2.0, 1), |_| 0.0);
        let mut done = 0;
        let mut others = 0;
        for recorded in &record {
            let Recorded::Applied { member, pieces, age } = recorded else { panic!("{recorded:?}") };
            if done < 6 * job.train.global_batch {
                assert_eq!((*member, *age), (0, 0), "after {done} rows");
            }
            others += usize::from(*member > 0);
            done += pieces.iter().map(|(rows, _)| rows.len()).sum::<usize>();
        }
        assert!(others > 10 && done == 1438, "{others} updates of others, {done} rows");
    }
}

/// Members and ages of the updates of each epoch. A worker pulls right after its push, and all begin an epoch together.
fn epochs(job: &JobSpec, record: &[Recorded]) -> Vec<Vec<(usize, u64)>> {
    let (all, mut computed, mut epochs) = (Replay::of(job).data.training.len() as usize, 0, vec![Vec::new()]);
    for recorded in record {
        let Recorded::Applied { member, pieces, age } = recorded else { panic!("{recorded:?}") };
        if computed == epochs.len() * all {
            epochs.push(Vec::new());
        }
        computed += pieces.iter().map(|(rows, _)| rows.len()).sum::<usize>();
        epochs.last_mut().expect("an epoch").push((*member, *age));
    }
    epochs
}

/// An update is as old as there were others since its worker's last one, or since the epoch began. If each of the last n
/// updates is of another worker, the ages of U updates are (n - 1)(1 - n/(2U)) on average: those of all n workers add up
/// to n U - n (n + 1)/2 updates until their last ones, less their own U - n before those.
#[test]
fn updates_are_as_old_as_there_were_others_since_the_pull() {
    for (jitter, seed, workers) in [(0.0, 0, 4), (0.0, 0, 1), (2.0, 7, 3), (2.0, 8, 5)] {
        let job = served(workers);
        let Run { record, staleness, .. } = run(&job, (jitter, seed), |_| 0.0);
        let (epochs, mut histogram, mut exact) = (epochs(&job, &record), Vec::new(), 0);
        assert_eq!(epochs.len(), EPOCHS);
        for updates in &epochs {
            let mut pulled = BTreeMap::new();
            for (version, (member, age)) in updates.iter().enumerate() {
                let others = version - pulled.insert(*member, version + 1).unwrap_or(0);
                assert_eq!(*age, others as u64, "{workers} workers, update {version} of rank {member}");
                histogram.resize(histogram.len().max(others + 1), 0);
                histogram[others] += 1;
            }
            let total = updates.iter().map(|(_, age)| *age).sum::<u64>() as f64;
            let (u, n) = (updates.len() as f64, workers as f64);
            let expected = (n - 1.0) * (1.0 - n / (2.0 * u));
            let mut last: Vec<usize> =
                updates.iter().rev().take(workers).map(|(member, _)| *member).collect();
            last.sort_unstable();
            last.dedup();
            if last.len() == workers {
                exact += 1;
                assert!((total / u - expected).abs() < 1e-12 * u, "{} for {expected}", total / u);
            } else {
                assert!((total / u - expected).abs() < n * n / u, "{} for {expected}", total / u);
            }
        }
        assert!(exact > 0, "{workers} workers: in no epoch the last updates are of all");
        let staleness = staleness.expect("a server's account");
        assert_eq!(staleness.updates, histogram);
        let count = record.len() as u64;
        assert_eq!((staleness.total(), staleness.clocks.iter().sum::<u64>()), (count, count));
    }
}
