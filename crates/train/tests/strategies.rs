//! Three unlike kinds of strategy on the same seam: all-reduce, a parameter server, gossip.

mod harness;

use harness::{Silence, distance, parameters, simulate, train, train_with};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_comm::transport::sim::Network;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::report::{MessageReport, RankReport};

const PARAMETER_SERVER: &str = "strategy.preset=parameter-server";
const GOSGD: &str = "strategy.preset=gosgd";
const TREE: &str = "strategy.preset=tree-easgd";
const ADPSGD: &str = "strategy.preset=adpsgd";
const EASGD: &str = "strategy.preset=easgd";
const ASYNCHRONOUS: &str = "strategy.scheduling.kind=async";

fn accuracy(events: &[Event]) -> f64 {
    let last = events.iter().rev().find_map(|event| match event {
        Event::Done { last, .. } => last.get("accuracy").copied(),
        _ => None,
    });
    last.unwrap()
}

/// What a run wrote after `steps` steps, by name: parameters, and the optimizer's slots. It goes on from `base`, if there is
/// one.
fn state_after(
    steps: u64,
    workers: usize,
    settings: &[&str],
    base: Option<&Path>,
) -> (tempfile::TempDir, BTreeMap<String, Vec<f32>>) {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = folder.path().join("checkpoints");
    if let Some(base) = base {
        std::fs::create_dir(&checkpoints).unwrap();
        for file in std::fs::read_dir(base.join("checkpoints")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), checkpoints.join(file.file_name())).unwrap();
        }
    }
    let max_steps = format!("train.max_steps={steps}");
    for ended in train(workers, folder.path(), &[settings, &[max_steps.as_str()]].concat()) {
        assert_eq!(ended.result.unwrap(), Outcome::Completed);
    }
    let file = TensorFile::read(&checkpoints.join(format!("step-{steps:09}.safetensors"))).unwrap();
    let tensors = file.tensors.into_iter().filter(|(name, _)| name != "thalweg.audit");
    let tensors = tensors.map(|(name, tensor)| (name, tensor.values.into_owned())).collect();
    (folder, tensors)
}

/// From the same parameters: the gradient that is applied (without momentum it is the velocity) and the parameters
/// after it, within 1e-6 of the largest element of each tensor.
#[test]
fn a_step_with_servers_is_a_step_with_all_reduce() {
    let optimizers = [
        "train.optimizer={kind='momentum', lr=0.1, momentum=0}",
        "train.optimizer={kind='momentum', lr=0.1}",
        "train.optimizer={kind='sgd', lr=0.1}",
    ];
    for (workers, optimizer) in [1, 2, 3, 5].into_iter().flat_map(|n| optimizers.map(|one| (n, one))) {
        let allreduce = ["strategy.preset=allreduce", optimizer];
        let mut base: Option<(tempfile::TempDir, _)> = None;
        // The last is the short step at the end of an epoch.
        for before in [0, 1, 22] {
            if before > 0 {
                let from = base.as_ref().map(|(folder, _)| folder.path());
                base = Some(state_after(before, workers, &allreduce, from));
            }
            let from = base.as_ref().map(|(folder, _)| folder.path());
            let (_, reduced) = state_after(before + 1, workers, &allreduce, from);
            for servers in [1, 2, 3] {
                let count = format!("strategy.servers.count={servers}");
                let settings = [PARAMETER_SERVER, optimizer, count.as_str()];
                let (_, served) = state_after(before + 1, workers, &settings, from);
                assert!(reduced.len() > 1 && reduced.keys().eq(served.keys()), "{:?}", served.keys());
                let velocities = reduced.keys().filter(|name| name.starts_with("velocity.")).count();
                assert_eq!(velocities > 0, optimizer.contains("momentum"));
                for (name, reduced) in &reduced {
                    let largest = reduced.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
                    let apart = reduced.iter().zip(&served[name]).map(|(a, b)| (a - b).abs());
                    let worst = apart.fold(0.0, f32::max);
                    let case =
                        format!("{workers} workers, {servers} servers, {optimizer}, step {before}, {name}");
                    assert!(largest > 0.0 && worst <= 1e-6 * largest, "{case}: {worst:e} of {largest}");
                }
            }
        }
    }
}

/// However the parameters are divided, each of them is updated in the same way: also by rules that need whole tensors,
/// and after a resumption with other servers.
#[test]
fn any_number_of_servers_gives_the_same_bits() {
    for optimizer in ["momentum", "adam", "lars", "lamb"] {
        let optimizer = format!("train.optimizer={{kind='{optimizer}', lr=0.01}}");
        let run = |stages: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            for (servers, steps) in stages {
                let settings = [PARAMETER_SERVER, &optimizer, servers, steps];
                let ended = train(3, folder.path(), &settings);
                assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{settings:?}");
            }
            parameters(folder.path())
        };
        let (one, two, three) =
            ("strategy.servers.count=1", "strategy.servers.count=2", "strategy.servers.count=3");
        let (half, whole) = ("train.max_steps=31", "train.max_steps=60");
        let expected = run(&[(one, whole)]);
        assert_eq!(run(&[(two, whole)]), expected, "two servers, {optimizer}");
        assert_eq!(run(&[(three, half), (two, whole)]), expected, "three servers, then two, {optimizer}");
    }
}

#[test]
fn more_servers_than_parts_of_the_model_are_refused() {
    let small = ["model.layers=['dense auto']", PARAMETER_SERVER, "strategy.servers.count=3"];
    let refused = |settings: &[&str]| {
        let ended = train(1, tempfile::tempdir().unwrap().path(), &[&small[..], settings].concat());
        // All refuse it by themselves; a rank may notice the end of another one first.
        let mut errors = ended.iter().map(|rank| rank.result.as_ref().unwrap_err().message.clone());
        errors.find(|message| !message.contains("was lost")).unwrap()
    };
    let whole = refused(&["train.optimizer={kind='lars', lr=0.01}"]);
    assert_eq!(whole, "strategy.servers.count: 3 servers for 2 tensors, which the optimizer needs whole");
}

#[test]
fn a_server_trains_counts_resumes_and_audits_like_all_reduce() {
    let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ended = train(3, whole.path(), &[PARAMETER_SERVER, "train.max_steps=60"]);
    let audits = ended[0].events.iter().filter_map(|event| match event {
        Event::Epoch { audit, .. } => Some((audit.once, audit.missed, audit.repeated)),
        _ => None,
    });
    assert!(
        audits.clone().count() >= 2 && audits.clone().all(|(_, missed, repeated)| missed + repeated == 0)
    );
    train(3, halves.path(), &[PARAMETER_SERVER, "train.max_steps=31"]);
    train(3, halves.path(), &[PARAMETER_SERVER, "train.max_steps=60"]);
    assert_eq!(parameters(whole.path()), parameters(halves.path()), "not the same bits");
    let reduced = tempfile::tempdir().unwrap();
    train(3, reduced.path(), &["train.max_steps=60"]);
    assert!(distance(&parameters(whole.path()), &parameters(reduced.path())) < 1e-5);
}

/// A thread moves the messages of models that call no hook. The result does not depend on who moves them.
#[test]
fn a_progress_thread_serves_models_without_hooks() {
    let run = |more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let settings = [&["strategy.preset=dpsgd", "train.max_steps=40"], more].concat();
        for ended in train_with(3, folder.path(), &settings, Silence::Always) {
            assert_eq!(ended.result.unwrap(), Outcome::Completed);
        }
        parameters(folder.path())
    };
    assert_eq!(run(&[]), run(&["engine.progress_thread=true"]));
}

/// A worker that pulls after its own push sees no stale parameters.
#[test]
fn one_asynchronous_worker_is_sequential_descent_to_the_bit() {
    for optimizer in ["train.optimizer={kind='sgd', lr=0.1}", "train.optimizer={kind='adam', lr=0.002}"] {
        let trained = |settings: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            let ended = train(1, folder.path(), &[settings, &[optimizer, "train.epochs=3"]].concat());
            assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
            parameters(folder.path())
        };
        let sequential = trained(&["strategy.preset=single"]);
        for servers in ["strategy.servers.count=1", "strategy.servers.count=3"] {
            assert_eq!(trained(&[PARAMETER_SERVER, ASYNCHRONOUS, servers]), sequential, "{optimizer}");
        }
    }
}

/// Only the server has optimizer state, and checkpoints have it like those of all-reduce.
#[test]
fn asynchronous_servers_and_centres_train_count_and_resume() {
    for settings in [
        &[PARAMETER_SERVER, ASYNCHRONOUS][..],
        &[PARAMETER_SERVER, ASYNCHRONOUS, "strategy.servers.count=2"],
        &[EASGD],
        &[EASGD, "strategy.scheduling.kind=bsp"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let momentum = "train.optimizer={kind='momentum', lr=0.01}";
        for (workers, epochs) in [(3, "train.epochs=12"), (2, "train.epochs=20"), (4, "train.epochs=24")] {
            let ended = train(workers, folder.path(), &[settings, &[momentum, epochs]].concat());
            assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{settings:?}");
            for event in &ended[0].events {
                if let Event::Epoch { audit, .. } = event {
                    assert_eq!((audit.once, audit.missed, audit.repeated), (1438, 0, 0), "{settings:?}");
                }
            }
            if epochs == "train.epochs=24" {
                assert!(accuracy(&ended[0].events) >= 0.9, "{settings:?}: {}", accuracy(&ended[0].events));
            }
        }
    }
}

#[test]
fn four_gossips_learn_the_digits_and_lose_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train(4, folder.path(), &[GOSGD, "train.epochs=40"]);
    assert!(accuracy(&ended[0].events) >= 0.85, "{}", accuracy(&ended[0].events));
    let (mut epochs, mut rows) = (0, 0);
    for event in &ended[0].events {
        if let Event::Epoch { audit, .. } = event {
            assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
            assert_eq!(audit.at_risk, Some(0));
            (epochs, rows) = (epochs + 1, rows + audit.expected);
        }
    }
    // All workers together have computed as many rows as there are in 40 epochs; how many beyond depends on how soon each
    // learns of a meeting.
    assert!(epochs == 40 && rows >= 40 * 1438, "{rows} rows in {epochs} epochs");
}

/// Each worker goes on with its own model; with more workers than before some share one.
#[test]
fn trees_and_pairs_learn_the_digits_lose_no_row_and_resume() {
    for strategy in [TREE, ADPSGD] {
        learn_and_resume(strategy);
    }
}

fn learn_and_resume(strategy: &str) {
    let folder = tempfile::tempdir().unwrap();
    for (workers, epochs) in [(4, 20), (2, 24), (6, 40)] {
        let epochs = format!("train.epochs={epochs}");
        let ended = train(workers, folder.path(), &[strategy, &epochs]);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{workers} workers");
        for event in &ended[0].events {
            if let Event::Epoch { audit, .. } = event {
                assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0));
            }
        }
        assert!(workers != 6 || accuracy(&ended[0].events) >= 0.85, "{}", accuracy(&ended[0].events));
    }
}

/// With probability 1 every local step, here of one row, draws a receiver: each draw becomes a message or is part of one, but for
/// receivers that have not answered in the end. With 5 ms of latency many are drawn again before they are ready.
#[test]
fn no_draw_of_a_gossip_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network { latency: Duration::from_millis(5), speed: 1e8, ..Network::ordinary(4, 3) };
    let settings = [GOSGD, "strategy.gossip.probability=1", "train.global_batch=4", "train.epochs=2"];
    let (ended, _) = simulate(network, &[], folder.path(), &settings);
    let accounts = ended[0].events.iter().filter_map(|event| match event {
        Event::Account { account } => Some(account.clone()),
        _ => None,
    });
    let accounts: Vec<RankReport> = accounts.collect();
    let rows: u64 = accounts.iter().map(|account| account.rows).sum();
    let messages = MessageReport::total(&accounts).unwrap();
    assert_eq!(messages.skipped, 0);
    assert!(messages.sent > 0 && messages.combined > 0, "{messages:?}");
    let draws = messages.sent + messages.combined;
    assert!((rows - 4 * 3..=rows).contains(&draws), "{rows} local steps, {messages:?}");
}

/// One of four is three times slower: the others do not wait for it.
#[test]
fn fast_workers_are_not_held_by_a_slow_one() {
    let folder = tempfile::tempdir().unwrap();
    let paced = ["engine.pace=20ms", "engine.slow={3=3.0}", "train.epochs=4"];
    let duration = |strategy: &[&str]| {
        let settings = [strategy, &paced].concat();
        let (ended, trace) = simulate(Network::ordinary(4, 3), &[], folder.path(), &settings);
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{strategy:?}");
        std::fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
        trace.entries.last().unwrap().time.as_secs_f64()
    };
    let even = duration(&["strategy.preset=allreduce"]);
    for strategy in
        [&[GOSGD][..], &[TREE], &[PARAMETER_SERVER, ASYNCHRONOUS], &[EASGD, "strategy.merge.every=2"]]
    {
        // Three of four workers at full speed and one at a third: 2.5 of all at a third.
        let own = duration(strategy);
        assert!(even / own >= 2.0, "{strategy:?}: {even} s and {own} s");
    }
}

#[test]
fn all_kinds_run_unchanged_on_the_simulated_network() {
    for strategy in ["strategy.preset=allreduce", PARAMETER_SERVER, GOSGD, TREE, ADPSGD] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let traces = [&folders[0], &folders[1]].map(|folder| {
            let settings = [strategy, "train.epochs=2", "fault.checkpoint_every=10"];
            let (ended, trace) = simulate(Network::ordinary(4, 11), &[], folder.path(), &settings);
            for ended in ended {
                assert_eq!(ended.result.unwrap(), Outcome::Completed, "{strategy}");
            }
            trace
        });
        assert!(traces[0] == traces[1], "{strategy}: another trace");
        assert_eq!(parameters(folders[0].path()), parameters(folders[1].path()), "{strategy}");
    }
}

/// A lone worker of a centre goes on to the same bits after a stop: its optimizer state is as old as it was.
#[test]
fn elastic_workers_resume_with_their_optimizer_state() {
    for scheduling in [ASYNCHRONOUS, "strategy.scheduling.kind=bsp"] {
        let settings = [EASGD, scheduling, "train.optimizer={kind='adam', lr=0.002}"];
        let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (folder, epochs) in [(&whole, 4), (&halves, 2), (&halves, 4)] {
            let epochs = format!("train.epochs={epochs}");
            for ended in train(1, folder.path(), &[&settings[..], &[&epochs]].concat()) {
                assert_eq!(ended.result.unwrap(), Outcome::Completed);
            }
        }
        assert_eq!(parameters(whole.path()), parameters(halves.path()), "{scheduling}: not the same bits");
    }
}

/// Epochs say how far models of workers' own are apart, and how each does alone: on the complete graph like the mean.
#[test]
fn epochs_report_the_distance_of_the_models_and_each_of_them() {
    let epochs = |settings: &[&str]| -> Vec<(Option<f64>, Metrics, Vec<Metrics>)> {
        let folder = tempfile::tempdir().unwrap();
        let ended = train(4, folder.path(), &[settings, &["train.epochs=3"]].concat());
        let epochs = ended[0].events.iter().filter_map(|event| match event {
            Event::Epoch { consensus, validation, members, .. } => {
                Some((*consensus, validation.clone(), members.clone()))
            }
            _ => None,
        });
        epochs.collect()
    };
    let mixed = ["strategy.preset=dpsgd", "strategy.neighbours.mix=after"];
    let complete = epochs(&[&mixed[..], &["strategy.neighbours.graph=complete"]].concat());
    assert_eq!(complete.len(), 3);
    for (apart, together, each) in complete {
        assert!(apart.unwrap() < 1e-5 && each.len() == 4, "{apart:?}, {each:?}");
        assert!(each.iter().all(|own| (own["loss"] - together["loss"]).abs() < 1e-4), "{each:?}");
    }
    for own in [&mixed[..], &[GOSGD], &["strategy.preset=easgd"], &["strategy.preset=mpca-sgd"]] {
        for (apart, together, each) in epochs(own) {
            assert!(apart.unwrap() > 1e-3 && each.len() == 4, "{own:?}: {apart:?}, {each:?}");
            assert!(each.iter().any(|model| model["loss"] != together["loss"]), "{own:?}: {each:?}");
        }
    }
    for (apart, _, each) in epochs(&["strategy.preset=allreduce"]) {
        assert!(apart.is_none() && each.is_empty());
    }
}
