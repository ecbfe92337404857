//! Killed in the middle of a checkpoint: there is always a loadable one, never older than the last that was told.
//!
//! `cargo xtask bench checkpoint` does the same a hundred times with the release binary.

mod harness;

use harness::{LIMIT, PATIENCE, Site};
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

/// Waits without a pause between two looks: a checkpoint is soon written.
fn await_now(complaint: &str, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < PATIENCE, "{complaint} after {PATIENCE:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_job_killed_in_a_checkpoint_has_one_to_go_on_from() {
    let site = Site::new();
    let (mut inside, mut told) = (0, None);
    for round in 0..ROUNDS {
        let job = site.start(&JOB);
        let begun = site.events("run").iter().filter(|event| event["event"] == "checkpoint").count();
        harness::await_some(PATIENCE, "no checkpoint is written", || {
            let events = site.events("run");
            (events.iter().filter(|event| event["event"] == "checkpoint").count() > begun).then_some(())
        });
        let resumed = last(&site, "started", "first_step");
        assert!(resumed >= told, "round {round}: told {told:?}, but it went on from {resumed:?}");
        let mut victims = site.processes();
        victims.sort_by_key(|(_, rank)| *rank != Some(0));
        await_now("nothing is being written", || half_written(&site));
        // At once, or a little later: in the middle, while it is synced, when it gets its name, when old ones go.
        let (seen, delay) = (Instant::now(), Duration::from_millis(3 * (round / 2)));
        await_now("no time passes", || seen.elapsed() >= delay);
        for (process, _) in victims {
            let _ = kill(process, Signal::SIGKILL);
        }
        job.end(LIMIT);
        site.await_empty();
        inside += u64::from(half_written(&site));
        told = last(&site, "checkpoint", "step");
        let paths = checkpoint::list(&site.path("run/checkpoints"));
        assert!(
            checkpoint::step_of(&paths[0]) >= told,
            "round {round}: told {told:?}, but there is {paths:?}"
        );
        for path in paths {
            assert!(TensorFile::read(&path).is_ok(), "round {round}: {} is not whole", path.display());
        }
    }
    assert!(inside > 0, "no kill was in the middle of a checkpoint");
}
