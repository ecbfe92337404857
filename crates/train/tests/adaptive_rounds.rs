//! Rounds of local training that shorten as the loss falls.

mod harness;

use harness::train;
use thalweg_core::event::{Event, Outcome};

/// Every strategy of local rounds takes fewer steps between two merges as the loss falls, and goes on with as many when it
/// is resumed, with any number of workers.
#[test]
fn rounds_shorten_as_the_loss_falls() {
    for preset in ["sparknet", "block-momentum", "diloco", "slowmo", "post-local-sgd", "mpca-sgd"] {
        let settings = [
            &format!("strategy.preset={preset}"),
            "strategy.merge.every=16",
            "strategy.merge.adaptive_every=true",
            "train.optimizer={kind='adam', lr=0.003}",
        ];
        let folder = tempfile::tempdir().unwrap();
        let mut every = Vec::new();
        for (workers, epochs) in [(3, 4), (2, 6)] {
            let ended = train(
                workers,
                folder.path(),
                &[&settings[..], &[&format!("train.epochs={epochs}")]].concat(),
            );
            assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{preset}");
            every.extend(ended[0].events.iter().filter_map(|event| match event {
                Event::Epoch { merge_every, loss, .. } => Some((merge_every.expect("it adapts"), *loss)),
                _ => None,
            }));
        }
        assert_eq!((every.len(), every[0].0, every[1].0), (6, 16, 16), "{preset}: {every:?}");
        for index in 2..6 {
            let shrunk = (16.0 * (every[index - 1].1 / every[0].1).sqrt()).ceil() as u64;
            assert_eq!(every[index].0, shrunk.min(every[index - 1].0), "{preset}, epoch {index}: {every:?}");
        }
        assert!(every[5].0 < 10, "{preset}: {every:?}");
    }
}
