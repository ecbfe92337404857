//! Kills a job while it writes a checkpoint: a valid one always exists, not older than the last one reported.
//!
//! `cargo xtask bench checkpoint` does the same a hundred times with the release binary.

mod harness;

use harness::{LIMIT, Site, TRAINING_LIMIT};
use nix::sys::signal::{Signal, kill};
use std::time::{Duration, Instant};
use thalweg_cluster::checkpoint;
use thalweg_cluster::tensorfile::TensorFile;

const ROUNDS: u64 = 10;

/// A checkpoint of 14 MB: writing it takes long enough to be killed in the middle.
const JOB: [&str; 10] = [
    "train",
    "--resume",
    "--quiet",
    "--out=run",
    "--set=train.epochs=1000000",
    "--set=model.layers=['dense 1024 relu', 'dense 1024 relu', 'dense auto']",
    "--set=fault.checkpoint_every=3",
    "--set=fault.checkpoint_keep=2",
    "--workers=2",
    "--set=train.global_batch=16",
];

/// Whether a checkpoint is being written, or was when its writer died.
fn half_written(site: &Site) -> bool {
    let entries = std::fs::read_dir(site.path("run/checkpoints")).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.path().extension().is_some_and(|ending| ending == "tmp"))
}

/// The step of the last event of a kind.
fn last(site: &Site, kind: &str, key: &str) -> Option<u64> {
    site.events("run").iter().rev().find(|event| event["event"] == kind)?[key].as_u64()
}

/// Polls without a pause: writing a checkpoint takes little time.
fn await_now(message: &str, mut poll: impl FnMut() -> bool) {
    let start = Instant::now();
    while !poll() {
        assert!(start.elapsed() < TRAINING_LIMIT, "{message} after {TRAINING_LIMIT:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_job_killed_while_writing_a_checkpoint_can_resume() {
    let site = Site::new();
    let (mut inside, mut reported) = (0, None);
    for round in 0..ROUNDS {
        let job = site.start(&JOB);
        let begun = site.events("run").iter().filter(|event| event["event"] == "checkpoint").count();
        harness::await_some(TRAINING_LIMIT, "no checkpoint is written", || {
            let events = site.events("run");
            (events.iter().filter(|event| event["event"] == "checkpoint").count() > begun).then_some(())
        });
        let resumed = last(&site, "started", "first_step");
        assert!(resumed >= reported, "round {round}: reported {reported:?}, but resumed from {resumed:?}");
        let mut victims = site.processes();
        victims.sort_by_key(|(_, rank)| *rank != Some(0));
        await_now("nothing is being written", || half_written(&site));
        // With varying delay: during the write, the sync, the rename, and the removal of old ones.
        let (seen, delay) = (Instant::now(), Duration::from_millis(3 * (round / 2)));
        await_now("no time passes", || seen.elapsed() >= delay);
        for (process, _) in victims {
            let _ = kill(process, Signal::SIGKILL);
        }
        job.end(LIMIT);
        site.await_empty();
        inside += u64::from(half_written(&site));
        reported = last(&site, "checkpoint", "step");
        let paths = checkpoint::list(&site.path("run/checkpoints"));
        assert!(
            checkpoint::step_of(&paths[0]) >= reported,
            "round {round}: reported {reported:?}, but there is {paths:?}"
        );
        for path in paths {
            assert!(TensorFile::read(&path).is_ok(), "round {round}: {} is not whole", path.display());
        }
    }
    assert!(inside > 0, "no kill was in the middle of a checkpoint");
}
