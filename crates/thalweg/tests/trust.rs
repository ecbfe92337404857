//! A rank that dies, hangs or fails in a job that is not elastic: the job ends soon, names that rank only, and leaves
//! no process.

mod harness;

use harness::{BUSY, Ended, LIMIT, Process, Site, TRAINING_LIMIT, await_some, free_port, is_free};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::net::SocketAddr;

fn start_busy(site: &Site, workers: usize, more: &[&str]) -> Process {
    let workers = workers.to_string();
    let process = site.start(&[&BUSY[..], &["--workers", &workers], more].concat());
    site.await_step("run", 1);
    process
}

/// Asserts report, exit code and processes after the loss of a rank.
fn assert_aftermath(site: &Site, ended: &Ended, rank: usize, cause: &str) {
    let others: Vec<String> =
        ranks_named(ended.error()).into_iter().filter(|n| *n != rank).map(|n| n.to_string()).collect();
    ended.assert_error(3, &[&format!("error: rank {rank} on "), cause, "waited for it in all-"]);
    assert!(!others.is_empty(), "nobody waited: {}", ended.error());
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "failed");
    let failure = &report["failures"][0];
    assert_eq!(failure["rank"], rank);
    // The signal may arrive at the end of an epoch.
    let operations = ["all-reduce of gradients", "all-gather of validation"];
    assert!(operations.contains(&failure["operation"].as_str().unwrap()), "{failure}");
    assert!(failure["cause"].as_str().unwrap().contains(cause), "{failure}");
    assert!(failure["step"].as_u64().unwrap() >= 1, "{failure}");
    assert!(!site.path("run/model.safetensors").exists());
}

/// The numbers after `rank` and `ranks` in a text.
fn ranks_named(text: &str) -> Vec<usize> {
    let words: Vec<&str> = text.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    let mut listing = false;
    for word in words {
        match word.parse() {
            Ok(number) if listing => found.push(number),
            _ => listing = word == "rank" || word == "ranks",
        }
    }
    found
}

fn kill(workers: usize, rank: usize) {
    let site = Site::new();
    let port = free_port();
    let job = start_busy(&site, workers, &["--set", &format!("engine.port={port}")]);
    let victim = site.signal_worker(rank, Signal::SIGKILL);
    let ended = job.end(LIMIT);
    let cause = "was killed by signal 9 (SIGKILL)";
    assert_aftermath(&site, &ended, rank, cause);
    ended.assert_error(3, &[&format!("(pid {victim}) {cause} at step ")]);
    assert!(is_free(SocketAddr::from(([127, 0, 0, 1], port))), "the next job cannot have port {port}");
}

#[test]
fn killing_either_of_two_workers_names_it() {
    (0..2).for_each(|rank| kill(2, rank));
}

#[test]
fn killing_any_of_four_workers_names_it() {
    (0..4).for_each(|rank| kill(4, rank));
}

fn stop(rank: usize) {
    let site = Site::new();
    let job = start_busy(&site, 3, &["--set", "fault.step_deadline=2s"]);
    site.signal_worker(rank, Signal::SIGSTOP);
    let ended = job.end(LIMIT);
    assert_aftermath(&site, &ended, rank, "has been silent for");
    let silent = ended.error().split("silent for ").nth(1).and_then(|rest| rest.split(' ').next());
    // A tenth of the limit is left for the end of the job.
    assert!(silent.unwrap().parse::<f64>().unwrap() >= 1.8, "blamed before its time: {}", ended.error());
}

#[test]
fn a_stopped_worker_is_named_and_not_the_ranks_that_wait_for_it() {
    stop(1);
}

#[test]
fn a_stopped_coordinator_is_named_too() {
    stop(0);
}

/// A worker is lost the moment it appears: before it has joined, or a little later.
fn lose_early(signal: Signal) -> Ended {
    let site = Site::new();
    let deadlines = ["--set", "fault.step_deadline=2s", "--set", "fault.join_deadline=4s"];
    let job = site.start(&[&BUSY[..], &deadlines].concat());
    site.signal_worker(1, signal);
    let ended = job.end(LIMIT);
    site.assert_empty();
    assert_eq!(site.report("run")["outcome"], "failed");
    ended
}

#[test]
fn a_worker_killed_at_the_start_is_named() {
    lose_early(Signal::SIGKILL).assert_error(3, &["error: rank 1 on ", "was killed by signal 9 (SIGKILL)"]);
}

#[test]
fn a_worker_stopped_at_the_start_is_named() {
    let ended = lose_early(Signal::SIGSTOP);
    assert!(matches!(ended.code, Some(3 | 4)), "{}", ended.stderr);
    assert!(ended.error().starts_with("error: rank 1 "), "{}", ended.stderr);
}

#[test]
fn a_killed_job_names_the_resume_command() {
    let site = Site::new();
    let job = site.start(&[&BUSY[..], &["--set", "fault.checkpoint_every=5"]].concat());
    site.await_event("run", "checkpoint");
    site.signal_worker(1, Signal::SIGKILL);
    let ended = job.end(LIMIT);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let step = site.checkpoints("run")[0];
    ended.assert_advice(&format!("`thalweg resume run` goes on from the checkpoint of step {step}"));
}

/// Rows of two numbers and whether the first is larger; `bad` replaces the second number of one line.
fn table(rows: usize, bad: Option<(usize, &str)>) -> String {
    let mut text = String::from("a,b,larger\n");
    for row in 0..rows {
        let (a, b) = ((row * 7919) % 1000, (row * 104_729) % 997);
        let line = row + 2;
        let b = match bad {
            Some((at, word)) if at == line => word.to_string(),
            _ => b.to_string(),
        };
        text += &format!("{a},{b},{}\n", if row % 3 == 0 { "yes" } else { "no" });
    }
    text
}

#[test]
fn a_bad_row_is_reported_by_its_rank_with_file_line_and_column() {
    let site = Site::new();
    site.write("rows.csv", table(20_000, Some((15_002, "abc"))));
    let ended = site.run(&["train", "--workers", "3", "--set", "data.source=rows.csv", "--out", "run"]);
    ended.assert_error(3, &["rows.csv", "line 15002", "column `b`", "`abc` is not a number"]);
    ended.assert_advice("data.missing");
    let named = ranks_named(&ended.error().replace(':', " "));
    assert_eq!(named.len(), 1, "{}", ended.error());
    let report = site.report("run");
    assert_eq!(report["outcome"], "failed");
    assert_eq!(report["failures"][0]["rank"], named[0]);
    site.assert_empty();
}

#[test]
fn non_finite_values_are_reported_by_step_rank_and_tensor() {
    let site = Site::new();
    let ended = site.run(&[
        "train",
        "--out",
        "run",
        "--set",
        "train.optimizer.kind=sgd",
        "--set",
        "train.optimizer.lr=1e30",
    ]);
    ended.assert_error(3, &["error: rank ", "the gradient of `layers.", " at step "]);
    ended.assert_advice("train.optimizer.lr");
    let report = site.report("run");
    assert_eq!((&report["outcome"], &report["failures"][0]["step"]), (&"failed".into(), &1.into()));
    site.assert_empty();
}

/// Stops a rank until log and events report that the others wait for it, continues it, and asserts that the job
/// continues.
///
/// On a busy machine the job may report waits for any rank at any time: only reports about the stopped one from now on
/// count.
fn stop_for_a_while(site: &Site, log: &Process, rank: usize) {
    let process = site.signal_worker(rank, Signal::SIGSTOP);
    let (said_before, events_before) = (log.stderr_so_far().len(), site.events("run").len());
    let new_lines =
        || -> Vec<String> { log.stderr_so_far()[said_before..].lines().map(String::from).collect() };
    let waits = format!("waiting for rank {rank} for ");
    await_some(TRAINING_LIMIT, "the log does not name the stopped rank", || {
        let reported = |line: &String| line.starts_with(&waits) && line.contains(" s: all-reduce of ");
        new_lines().iter().any(reported).then_some(())
    });
    let waiting = await_some(TRAINING_LIMIT, "no event names the stopped rank", || {
        let reported =
            |event: &Value| event["event"] == "waiting" && event["ranks"] == serde_json::json!([rank]);
        site.events("run").into_iter().skip(events_before).find(reported)
    });
    assert!(waiting["waited_s"].as_f64().unwrap() >= 2.0, "{waiting}");
    nix::sys::signal::kill(process, Signal::SIGCONT).unwrap();
    await_some(TRAINING_LIMIT, "the log does not say that it goes on", || {
        new_lines().iter().any(|line| line.contains(" s of waiting for rank")).then_some(())
    });
    await_some(TRAINING_LIMIT, "no step after the wait", || {
        let mut wanted = ["waiting", "going_on", "step"].into_iter().peekable();
        for event in site.events("run").iter().skip(events_before) {
            wanted.next_if(|kind| event["event"] == *kind);
        }
        wanted.peek().is_none().then_some(())
    });
}

#[test]
fn the_log_names_the_worker_that_the_others_wait_for() {
    for rank in [0, 2] {
        let site = Site::new();
        // Long enough not to expire in this test.
        let job = start_busy(&site, 3, &["--set", "fault.step_deadline=600s"]);
        stop_for_a_while(&site, &job, rank);
        job.signal(Signal::SIGINT);
        assert_eq!(job.end(LIMIT).code, Some(130));
    }
}

#[test]
fn rank_0_of_another_launcher_names_the_rank_that_the_others_wait_for() {
    let site = Site::new();
    let port = free_port();
    let job = [&BUSY[..], &["--set", "fault.step_deadline=600s"]].concat();
    let ranks: Vec<Process> = (0..2).map(|rank| Process::start(site.rank(rank, 2, port, &job))).collect();
    site.await_step("run", 1);
    stop_for_a_while(&site, &ranks[0], 1);
    ranks[0].signal(Signal::SIGINT);
    for rank in ranks {
        assert_eq!(rank.end(LIMIT).code, Some(130));
    }
}
