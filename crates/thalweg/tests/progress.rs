//! A rank that is alive but makes no progress is named and ended, and the others continue; a slow one is not.

mod harness;

use harness::debugger::HeldThread;
use harness::{Process, Site, TRAINING_LIMIT, free_port};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::Duration;

/// Ten times the documented limit for a stop.
const STOPPED: Duration = Duration::from_secs(250);

/// Quick steps, and enough of them for any fault to take effect.
const JOB: [&str; 15] = [
    "train",
    "--out",
    "run",
    "--workers",
    "3",
    "--set",
    "train.epochs=40",
    "--set",
    "engine.pace=2ms",
    "--set",
    "fault.step_deadline=3s",
    // The debugger may stop a rank at the end of an epoch.
    "--set",
    "fault.prepare_deadline=10s",
    // A rank that waits for a busy disk for longer than the deadline would be named, too.
    "--set",
    "fault.checkpoint_every=100000",
];

fn start(site: &Site, more: &[&str]) -> Process {
    let process = site.start(&[&JOB[..], more].concat());
    site.await_step("run", 1);
    process
}

/// Asserts that the job succeeded without that rank, names it, and saw every row once per epoch.
fn assert_survived(site: &Site, job: Process, rank: usize, causes: &[&str]) {
    let ended = job.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "completed");
    for epoch in report["audit"].as_array().unwrap() {
        assert_eq!((&epoch["missed"], &epoch["repeated"]), (&Value::from(0), &Value::from(0)), "{epoch}");
    }
    let failures = report["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(failures[0]["rank"], rank, "{failures:?}");
    let cause = failures[0]["cause"].as_str().unwrap();
    assert!(causes.iter().any(|known| cause.starts_with(known)), "{cause}");
    assert!(failures[0]["operation"].is_string() && failures[0]["step"].is_u64(), "{failures:?}");
}

/// Stops a rank wherever it is: in an exchange, in computation, or with a lock that its heartbeat needs.
const ANYWHERE: [&str; 3] = ["has been without progress in ", "has been busy with ", "has been silent for "];

fn hold(rank: usize, transport: &str) {
    let site = Site::new();
    let job = start(&site, &["--set", &format!("strategy.exchange.transport={transport}")]);
    let _held = HeldThread::hold(site.worker(rank));
    assert_survived(&site, job, rank, &ANYWHERE);
}

#[test]
fn a_rank_whose_main_thread_is_held_is_excluded() {
    hold(2, "tcp");
    hold(1, "shm");
}

#[test]
fn a_coordinator_whose_main_thread_is_held_is_excluded() {
    hold(0, "tcp");
    hold(0, "shm");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_rank_whose_main_thread_spins_is_excluded() {
    for (rank, transport) in [(1, "tcp"), (0, "shm")] {
        let site = Site::new();
        let job = start(&site, &["--set", &format!("strategy.exchange.transport={transport}")]);
        harness::debugger::spin(site.worker(rank));
        assert_survived(&site, job, rank, &ANYWHERE);
    }
}

#[test]
fn a_rank_that_livelocks_in_an_exchange_is_named_with_the_exchange() {
    for (rank, transport) in [(2, "tcp"), (0, "shm")] {
        let site = Site::new();
        let inject = format!(r#"fault.inject=[{{step = 30, rank = {rank}, kind = "livelock"}}]"#);
        let job =
            start(&site, &["--set", &format!("strategy.exchange.transport={transport}"), "--set", &inject]);
        assert_survived(&site, job, rank, &["has been without progress in all-reduce of gradients for "]);
    }
}

/// One rank needs three times the deadline for a step, fifty times as long as the others.
#[test]
fn a_rank_that_is_fifty_times_slower_is_not_excluded() {
    let site = Site::new();
    let job = site.start(&[
        "train",
        "--out",
        "run",
        "--workers",
        "3",
        "--set",
        "engine.pace=120ms",
        "--set",
        "engine.slow={1 = 50.0}",
        "--set",
        "fault.step_deadline=2s",
        "--set",
        "train.max_steps=2",
    ]);
    let ended = job.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report = site.report("run");
    assert_eq!((&report["outcome"], &report["steps"]), (&"completed".into(), &2.into()));
    assert!(report["failures"].as_array().unwrap().is_empty(), "{}", report["failures"]);
    assert!(site.events("run").iter().all(|event| event["event"] != "regrouped"), "nobody was interrupted");
}

#[test]
fn a_job_that_is_not_elastic_ends_and_names_the_held_rank() {
    let site = Site::new();
    let inject = r#"fault.inject=[{step = 30, rank = 1, kind = "livelock"}]"#;
    let job = start(&site, &["--set", "fault.elastic=false", "--set", inject]);
    let ended = job.end(TRAINING_LIMIT);
    ended.assert_error(3, &["rank 1 ", "all-reduce of gradients"]);
    site.assert_empty();
}

#[test]
fn a_stop_saves_the_state_of_the_ranks_that_make_progress() {
    let site = Site::new();
    let endless = ["--set", "train.epochs=100000", "--set", "fault.step_deadline=10m"];
    let job = start(&site, &endless);
    let _held = HeldThread::hold(site.worker(1));
    job.signal(Signal::SIGTERM);
    let ended = job.end(STOPPED);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "interrupted");
    assert_eq!(report["failures"][0]["rank"], 1, "{}", report["failures"]);
    assert_eq!(site.checkpoints("run").first().copied(), report["steps"].as_u64(), "{}", ended.stderr);
}

#[test]
fn a_stop_that_cannot_save_reports_it_and_ends() {
    let site = Site::new();
    let more = ["--set", "train.epochs=100000", "--set", "fault.elastic=false"];
    let job = start(&site, &[&more[..], &["--set", "fault.step_deadline=10m"]].concat());
    let _held = HeldThread::hold(site.worker(2));
    job.signal(Signal::SIGTERM);
    let ended = job.end(STOPPED);
    assert_eq!(ended.code, Some(143), "{}", ended.stderr);
    assert!(ended.stderr.contains("could not stop in good order within 20 s: "), "{}", ended.stderr);
    site.assert_empty();
}

#[test]
fn ranks_under_another_launcher_end_after_a_signal_even_if_blocked() {
    let site = Site::new();
    let port = free_port();
    let inject = r#"fault.inject=[{step = 30, rank = 1, kind = "livelock"}]"#;
    let more = ["--set", "fault.elastic=false", "--set", "fault.step_deadline=10m", "--set", inject];
    let arguments = [&JOB[..3], &["--set", "train.epochs=100000"], &more].concat();
    let ranks: Vec<Process> =
        (0..2).map(|rank| Process::start(site.rank(rank, 2, port, &arguments))).collect();
    // Rank 1 reports it before the exchange that it never leaves; rank 0 waits for it.
    site.await_event("run", "waiting");
    ranks.iter().for_each(|rank| rank.signal(Signal::SIGTERM));
    for rank in ranks {
        let ended = rank.end(STOPPED);
        assert_eq!(ended.code, Some(143), "{}", ended.stderr);
        assert!(ended.stderr.contains("could not stop in good order within 20 s"), "{}", ended.stderr);
    }
    site.assert_empty();
}

/// Ranks under another launcher, one of which livelocks: without shared memory only its own process can end it.
fn livelock_without_launcher(rank: usize) -> Vec<harness::Ended> {
    let site = Site::new();
    let port = free_port();
    let inject = format!(r#"fault.inject=[{{step = 30, rank = {rank}, kind = "livelock"}}]"#);
    let tcp = "strategy.exchange.transport=tcp";
    // Long enough for a busy machine: only the rank that livelocks is to be silent or without progress.
    let patient = ["--set", "fault.step_deadline=6s"];
    let arguments = [&JOB[..3], &JOB[5..], &["--set", &inject, "--set", tcp], &patient].concat();
    let ranks: Vec<Process> =
        (0..3).map(|rank| Process::start(site.rank(rank, 3, port, &arguments))).collect();
    let ended = ranks.into_iter().map(|rank| rank.end(TRAINING_LIMIT)).collect();
    site.assert_empty();
    ended
}

#[test]
fn an_excluded_rank_under_another_launcher_exits_by_itself() {
    let ended = livelock_without_launcher(2);
    ended[2].assert_error(3, &["rank 2 ", "has been without progress in all-reduce of gradients"]);
    for survivor in &ended[..2] {
        assert_eq!(survivor.code, Some(0), "{}", survivor.stderr);
    }
}

#[test]
fn without_a_launcher_a_coordinator_without_progress_is_named_and_ends_the_job() {
    for ended in livelock_without_launcher(0) {
        ended.assert_error(3, &["rank 0 ", "has been without progress in all-reduce of gradients"]);
    }
}
