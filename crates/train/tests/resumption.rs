//! Checkpoints know nothing of the strategy: what one leaves behind, any other goes on from.

mod harness;

use harness::{distance, parameters, simulate_stopped, train};
use thalweg_cluster::checkpoint;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_comm::transport::sim::Network;
use thalweg_core::event::{Event, Level, Outcome};

/// Each with the workers it runs on.
const STRATEGIES: [(&str, usize); 13] = [
    ("allreduce", 3),
    ("parameter-server", 2),
    ("gosgd", 3),
    ("dpsgd", 3),
    ("single", 1),
    ("sparknet", 3),
    ("block-momentum", 2),
    ("diloco", 3),
    ("slowmo", 2),
    ("post-local-sgd", 3),
    ("sgp", 3),
    ("adpsgd", 3),
    ("tree-easgd", 3),
];

/// Update together in every step: the steps are those of a single worker.
const SYNCHRONOUS: [&str; 3] = ["allreduce", "parameter-server", "single"];

/// Adam, whose bias correction counts updates.
const ADAM: &str = "train.optimizer={kind='adam', lr=0.001}";

/// Trains up to a step and returns rank 0's events.
fn train_to(step: u64, (strategy, workers): (&str, usize), folder: &std::path::Path) -> Vec<Event> {
    let (preset, end) = (format!("strategy.preset={strategy}"), format!("train.max_steps={step}"));
    let mut ended = train(workers, folder, &[&preset, &end, ADAM, "fault.checkpoint_every=20"]);
    for ended in &ended {
        assert_eq!(ended.result.as_ref().unwrap(), &Outcome::Completed, "{strategy}");
    }
    ended.swap_remove(0).events
}

#[test]
fn every_strategy_goes_on_from_every_other() {
    let reference = tempfile::tempdir().unwrap();
    train_to(60, STRATEGIES[0], reference.path());
    for before in STRATEGIES {
        for after in STRATEGIES {
            let (names, folder) = (format!("{} -> {}", before.0, after.0), tempfile::tempdir().unwrap());
            train_to(31, before, folder.path());
            let events = train_to(60, after, folder.path());
            let first = events.iter().find_map(|event| match event {
                Event::Started { first_step, .. } => Some(*first_step),
                _ => None,
            });
            assert_eq!(first, Some(31), "{names}");
            for event in &events {
                if let Event::Epoch { audit, .. } = event {
                    assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0), "{names}");
                }
            }
            let apart = distance(&parameters(reference.path()), &parameters(folder.path()));
            let same = [before, after].iter().all(|(name, _)| SYNCHRONOUS.contains(name));
            assert!(apart <= if same { 1e-5 } else { 5.0 }, "{names}: {apart:e}");
            let notices = events.iter().filter_map(|event| match event {
                Event::Notice { level: Level::Info, message } => Some(message.as_str()),
                _ => None,
            });
            let notices: Vec<&str> = notices.collect();
            for column in columns(before.0).iter().filter(|column| !columns(after.0).contains(column)) {
                let message = format!(
                    "`{column}` of the checkpoint of step 31 is dropped: `{}` does not use it",
                    after.0
                );
                assert!(notices.contains(&&*message), "{names}: {notices:?}");
            }
            for column in columns(after.0).iter().filter(|column| !columns(before.0).contains(column)) {
                let message =
                    format!("the checkpoint of step 31 has no `{column}`: it begins anew in `{}`", after.0);
                assert!(notices.contains(&&*message), "{names}: {notices:?}");
            }
        }
    }
}

/// What a strategy keeps beside the parameters.
fn columns(strategy: &str) -> &[&str] {
    match strategy {
        "block-momentum" => &["block_momentum"],
        "slowmo" => &["slow_momentum"],
        "diloco" => &["outer_velocity", "first_moment", "second_moment"],
        _ => &["first_moment", "second_moment"],
    }
}

/// The slots of a checkpoint, and the step from which their updates count.
fn stored(folder: &std::path::Path) -> (Vec<String>, u64) {
    let newest = checkpoint::list(&folder.join("checkpoints")).swap_remove(0);
    let file = TensorFile::read(&newest).unwrap();
    let slots = file.metadata["slots"].split_whitespace().map(String::from).collect();
    (slots, file.metadata["slots_start"].parse().unwrap())
}

/// The bias correction of Adam follows the updates of its slots, not the steps of the job.
#[test]
fn updates_of_slots_that_a_strategy_did_not_have_are_counted_anew() {
    let folder = tempfile::tempdir().unwrap();
    train_to(31, ("block-momentum", 2), folder.path());
    assert_eq!(stored(folder.path()), (vec!["block_momentum".into()], 0));
    let before = parameters(folder.path());
    train_to(32, ("allreduce", 3), folder.path());
    let slots = vec!["first_moment".to_string(), "second_moment".into()];
    assert_eq!(stored(folder.path()), (slots.clone(), 31));
    let largest = parameters(folder.path())
        .iter()
        .zip(&before)
        .map(|(after, before)| (after - before).abs())
        .fold(0.0, f32::max);
    assert!((0.0009..0.0011).contains(&largest), "a first update of the learning rate, not {largest}");
    train_to(40, ("allreduce", 3), folder.path());
    assert_eq!(stored(folder.path()), (slots, 31));
}

#[test]
fn workers_with_state_of_their_own_store_all_of_it() {
    for strategy in ["gosgd", "sparknet"] {
        let folder = tempfile::tempdir().unwrap();
        train_to(20, (strategy, 2), folder.path());
        let (mut slots, _) = stored(folder.path());
        slots.sort();
        let models = slots.iter().filter(|slot| slot.starts_with("parameters@")).count();
        assert_eq!(models, if strategy == "gosgd" { 2 } else { 0 });
        slots.retain(|slot| !slot.starts_with("parameters@"));
        assert_eq!(slots, ["first_moment@0", "first_moment@1", "second_moment@0", "second_moment@1"]);
    }
}

/// A rank is asked to stop in the middle of a round: the others have trained on rows of later steps by then.
#[test]
fn a_round_that_was_stopped_on_one_rank_is_completed_by_any_strategy() {
    let sparknet = ["strategy.preset=sparknet", "strategy.merge.every=5"];
    for after in STRATEGIES {
        let folder = tempfile::tempdir().unwrap();
        // The second rank has taken 2 of 5 steps of the second round.
        let ended = simulate_stopped(
            Network::ordinary(3, 7),
            (1, 7),
            folder.path(),
            &[&sparknet[..], &[ADAM]].concat(),
        );
        assert!(ended.iter().all(|result| *result == Ok(Outcome::Interrupted)), "{ended:?}");
        let events = train_to(46, after, folder.path());
        let first = events.iter().find_map(|event| match event {
            Event::Started { first_step, .. } => Some(*first_step),
            _ => None,
        });
        assert_eq!(first, Some(7), "{}", after.0);
        let audits: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Epoch { audit, .. } => {
                    Some((audit.expected, audit.once, audit.missed, audit.repeated))
                }
                _ => None,
            })
            .collect();
        if ["gosgd", "adpsgd", "tree-easgd"].contains(&after.0) {
            // Their epochs are passes of the workers, which begin anew.
            assert!(audits.iter().all(|(expected, once, ..)| expected == once), "{audits:?}");
            assert!(audits.iter().all(|(.., missed, repeated)| missed + repeated == 0), "{audits:?}");
            continue;
        }
        assert_eq!(audits, [(1438, 1438, 0, 0); 2], "{}", after.0);
    }
}

#[test]
fn every_checkpoint_that_is_due_comes_about_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let events = train_to(90, STRATEGIES[0], folder.path());
    let steps: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Checkpoint { step, pause_s, write_s, .. } => {
                assert!(*pause_s >= 0.0 && *write_s > 0.0);
                Some(*step)
            }
            _ => None,
        })
        .collect();
    assert_eq!(steps, [20, 40, 60, 80, 90]);
}

/// Between two merges every worker has a model of its own.
#[test]
fn checkpoints_of_local_rounds_wait_for_a_merge() {
    let folder = tempfile::tempdir().unwrap();
    let every = ["strategy.merge.every=5", "fault.checkpoint_every=7", "train.max_steps=20"];
    let ended = train(2, folder.path(), &[&["strategy.preset=sparknet"], &every[..]].concat());
    let written = ended[0].events.iter().filter_map(|event| match event {
        Event::Checkpoint { step, .. } => Some(*step),
        _ => None,
    });
    // Due after steps 7 and 14, and at the end.
    assert_eq!(written.collect::<Vec<_>>(), [10, 15, 20]);
}
