//! One process per rank, started by somebody else: each of them notices, names the same culprit, and ends by itself.

mod harness;

use harness::{Ended, LIMIT, PATIENCE, Process, Site, free_port, is_free};
use nix::sys::signal::Signal;
use std::net::SocketAddr;

const WORLD: usize = 3;

/// Many small steps, none of them quick, so that a rank is always lost in the middle of an epoch.
const BUSY: [&str; 13] = [
    "train",
    "--out",
    "run",
    "--set",
    "train.global_batch=1",
    "--set",
    r#"model.layers=["dense 1024 relu", "dense 256 relu", "dense auto"]"#,
    "--set",
    "train.epochs=1000",
    "--set",
    "fault.checkpoint_every=0",
    "--set",
    "fault.step_deadline=2s",
];

fn start_ranks(site: &Site, port: u16, arguments: &[&str]) -> Vec<Process> {
    (0..WORLD).map(|rank| Process::start(site.rank(rank, WORLD, port, arguments))).collect()
}

fn lose(culprit: usize, signal: Signal, causes: &[&str]) {
    let site = Site::new();
    let port = free_port();
    let mut ranks = start_ranks(&site, port, &BUSY);
    site.await_step("run", 1);
    site.signal_worker(culprit, signal);
    let lost = ranks.remove(culprit);
    let ended: Vec<Ended> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    for survivor in &ended {
        survivor.assert_error(3, &[&format!("error: rank {culprit} "), " at step "]);
        assert!(causes.iter().any(|cause| survivor.error().contains(cause)), "{}", survivor.error());
    }
    if culprit != 0 {
        ended[0].assert_error(3, &["waited for it in all-reduce of gradients"]);
        let report = site.report("run");
        assert_eq!((&report["outcome"], &report["failures"][0]["rank"]), (&"failed".into(), &culprit.into()));
        assert_eq!(report["failures"][0]["operation"], "all-reduce of gradients");
    }
    assert!(is_free(SocketAddr::from(([127, 0, 0, 1], port))));
    if signal == Signal::SIGSTOP {
        lost.signal(Signal::SIGKILL);
    }
    lost.end(LIMIT);
    site.assert_empty();
}

#[test]
fn a_killed_rank_is_named_by_all_others() {
    lose(1, Signal::SIGKILL, &["vanished"]);
}

#[test]
fn a_killed_coordinator_is_named_by_all_others() {
    lose(0, Signal::SIGKILL, &["vanished"]);
}

#[test]
fn a_stopped_rank_is_named_by_all_others() {
    lose(2, Signal::SIGSTOP, &["has been silent for"]);
}

#[test]
fn a_stopped_coordinator_is_named_by_all_others() {
    lose(0, Signal::SIGSTOP, &["has been silent for"]);
}

#[test]
fn a_bad_row_of_one_rank_is_told_by_all() {
    let site = Site::new();
    let rows = (0..20_000).map(|row| {
        let word = if row == 18_000 { "abc".to_string() } else { (row % 97).to_string() };
        format!("{},{word},{}\n", row % 89, if row % 3 == 0 { "yes" } else { "no" })
    });
    site.write("rows.csv", "a,b,third\n".to_string() + &rows.collect::<String>());
    let ranks = start_ranks(&site, free_port(), &["train", "--out", "run", "--set", "data.source=rows.csv"]);
    let ended: Vec<Ended> = ranks.into_iter().map(|rank| rank.end(PATIENCE)).collect();
    for rank in &ended {
        rank.assert_error(3, &["error: rank ", "rows.csv line 18002, column `b`: `abc` is not a number"]);
    }
    let culprit = site.report("run")["failures"][0]["rank"].as_u64().unwrap();
    for rank in &ended {
        rank.assert_error(3, &[&format!("error: rank {culprit}: ")]);
    }
}

#[test]
fn two_shells_give_the_same_model_as_two_workers() {
    let site = Site::new();
    let short = ["train", "--quiet", "--set", "train.max_steps=60"];
    site.succeed(&[&short[..], &["--workers", "2", "--out", "launched"]].concat());
    let port = free_port();
    let arguments = [&short[..], &["--out", "shells"]].concat();
    let ranks: Vec<Process> =
        (0..2).map(|rank| Process::start(site.rank(rank, 2, port, &arguments))).collect();
    for rank in ranks {
        let ended = rank.end(PATIENCE);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
    let model = |run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    assert!(model("launched") == model("shells"), "the models differ");
    assert_eq!(site.report("shells")["outcome"], "completed");
}
