//! Checkpoints know nothing of the strategy: what one leaves behind, any other goes on from.

mod harness;

use harness::{distance, parameters, train};
use thalweg_core::event::{Event, Outcome};

/// Each with the workers it runs on.
const STRATEGIES: [(&str, usize); 4] =
    [("allreduce", 3), ("parameter-server", 2), ("gosgd", 3), ("single", 1)];

/// Trains up to a step and returns rank 0's events.
fn train_to(step: u64, (strategy, workers): (&str, usize), folder: &std::path::Path) -> Vec<Event> {
    let (preset, end) = (format!("strategy.preset={strategy}"), format!("train.max_steps={step}"));
    let mut ended = train(workers, folder, &[&preset, &end, "fault.checkpoint_every=20"]);
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
            // Where all update together the steps are those of a single worker, whoever makes them.
            let apart = distance(&parameters(reference.path()), &parameters(folder.path()));
            let gossip = before.0 == "gosgd" || after.0 == "gosgd";
            assert!(apart <= if gossip { 5.0 } else { 1e-5 }, "{names}: {apart:e}");
        }
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
