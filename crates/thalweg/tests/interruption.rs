//! Ctrl-C and its relatives: a checkpoint first, then the end; a second time leaves at once; nobody outlives the launcher.

mod harness;

use harness::{LIMIT, Process, Site};
use nix::sys::signal::Signal;

/// Endless, with checkpoints only when asked for.
const ENDLESS: [&str; 7] =
    ["train", "--out", "run", "--set", "train.epochs=1000000", "--set", "fault.checkpoint_every=0"];

fn start_endless(site: &Site, more: &[&str]) -> Process {
    let process = site.start(&[&ENDLESS[..], more].concat());
    site.await_step("run", 1);
    process
}

fn interrupt(signal: Signal, code: i32) {
    let site = Site::new();
    let job = start_endless(&site, &["--workers", "3"]);
    assert!(site.checkpoints("run").is_empty(), "too early");
    job.signal(signal);
    let ended = job.end(LIMIT);
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    assert!(ended.stderr.contains("with a checkpoint"), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "interrupted");
    assert_eq!(site.checkpoints("run"), [report["steps"].as_u64().unwrap()]);
    for audit in report["audit"].as_array().unwrap() {
        assert_eq!((&audit["once"], &audit["repeated"]), (&audit["expected"], &0.into()), "{audit}");
    }
    assert!(!site.path("run/model.safetensors").exists(), "nothing half-trained passes for a model");
}

#[test]
fn control_c_leaves_a_checkpoint() {
    interrupt(Signal::SIGINT, 130);
}

#[test]
fn a_termination_leaves_a_checkpoint_too() {
    interrupt(Signal::SIGTERM, 143);
}

#[test]
fn a_second_control_c_leaves_at_once() {
    let site = Site::new();
    let job = start_endless(&site, &[]);
    // With a stopped worker the first one cannot succeed, and the second must not wait for the step's deadline.
    site.signal_worker(1, Signal::SIGSTOP);
    job.signal(Signal::SIGINT);
    job.await_said("once more to leave at once");
    job.signal(Signal::SIGINT);
    let ended = job.end(LIMIT);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    site.assert_empty();
    assert_eq!(site.report("run")["outcome"], "interrupted");
}

#[test]
fn without_their_launcher_the_workers_stop_with_a_checkpoint() {
    let site = Site::new();
    let job = start_endless(&site, &[]);
    job.signal(Signal::SIGKILL);
    site.await_empty();
    let steps = site.checkpoints("run");
    assert!(steps.len() == 1 && steps[0] >= 1, "{steps:?}");
    assert_eq!(job.end(LIMIT).code, None);
    let ended =
        site.succeed(&["resume", "run", "--set", &format!("train.max_steps={}", steps[0] + 10), "--quiet"]);
    assert_eq!(ended.stderr, "");
    assert_eq!(site.report("run")["steps"], steps[0] + 10);
}

#[test]
fn ranks_of_another_launcher_stop_together_when_one_is_asked_to() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let site = Site::new();
        let port = harness::free_port();
        let start = |rank| Process::start(site.rank(rank, 2, port, &ENDLESS));
        let (asked, other) = (start(0), start(1));
        site.await_step("run", 1);
        asked.signal(signal);
        let ended = (asked.end(LIMIT), other.end(LIMIT));
        assert_eq!((ended.0.code, ended.1.code), (Some(code), Some(130)), "{ended:?}");
        assert_eq!(site.checkpoints("run").len(), 1);
        assert_eq!(site.report("run")["outcome"], "interrupted");
    }
}
