//! Ranks without thalweg's launcher: each detects a failure, names the same rank, and exits by itself.

mod harness;

use harness::{BUSY, Ended, LIMIT, Process, Site, TRAINING_LIMIT, free_port, is_free};
use nix::sys::signal::Signal;
use std::net::SocketAddr;

const WORLD: usize = 3;

fn start_ranks(site: &Site, port: u16, arguments: &[&str]) -> Vec<Process> {
    (0..WORLD).map(|rank| Process::start(site.rank(rank, WORLD, port, arguments))).collect()
}

fn lose(culprit: usize, signal: Signal, causes: &[&str]) {
    let site = Site::new();
    let port = free_port();
    let mut ranks = start_ranks(&site, port, &[&BUSY[..], &["--set", "fault.step_deadline=2s"]].concat());
    site.await_step("run", 1);
    assert!(is_free(SocketAddr::from(([127, 0, 0, 1], port))), "once all have met, the next job may have it");
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

/// If no other rank can take over its role, a rank 0 that was stopped for too long does not report success.
#[test]
fn a_coordinator_stopped_past_the_deadline_does_not_continue_alone() {
    let site = Site::new();
    let port = free_port();
    let settings = ["train.epochs=1000000", "engine.pace=2ms", "fault.step_deadline=2s"];
    let sets = settings.iter().flat_map(|setting| ["--set", setting]);
    let job: Vec<&str> = ["train", "--out", "run"].into_iter().chain(sets).collect();
    let [first, second] = [0, 1].map(|rank| Process::start(site.rank(rank, 2, port, &job)));
    site.await_step("run", 1);
    site.signal_worker(0, Signal::SIGSTOP);
    second.end(LIMIT).assert_error(3, &["rank 0 ", "has been silent for"]);
    site.signal_worker(0, Signal::SIGCONT);
    let words = ["rank 0, the coordinator, was stopped for ", "the others did not wait for it"];
    first.end(LIMIT).assert_error(3, &words);
    assert_eq!(site.report("run")["outcome"], "failed");
    site.assert_empty();
}

#[test]
fn a_bad_row_of_one_rank_is_reported_by_all() {
    let site = Site::new();
    let rows = (0..20_000).map(|row| {
        let word = if row == 18_000 { "abc".to_string() } else { (row % 97).to_string() };
        format!("{},{word},{}\n", row % 89, if row % 3 == 0 { "yes" } else { "no" })
    });
    site.write("rows.csv", "a,b,third\n".to_string() + &rows.collect::<String>());
    let ranks = start_ranks(&site, free_port(), &["train", "--out", "run", "--set", "data.source=rows.csv"]);
    let ended: Vec<Ended> = ranks.into_iter().map(|rank| rank.end(TRAINING_LIMIT)).collect();
    for rank in &ended {
        rank.assert_error(3, &["error: rank ", "rows.csv line 18002, column `b`: `abc` is not a number"]);
    }
    let culprit = site.report("run")["failures"][0]["rank"].as_u64().unwrap();
    for rank in &ended {
        rank.assert_error(3, &[&format!("error: rank {culprit}: ")]);
    }
}

#[test]
fn a_rank_with_other_values_in_its_data_is_refused_by_name() {
    let site = Site::new();
    let rows: String = (0..200).map(|row| format!("{},{},{}\n", row % 89, row % 7, row % 2)).collect();
    site.write("rows.csv", "a,b,label\n".to_string() + &rows);
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    site.write("elsewhere/rows.csv", "a,b,label\n".to_string() + &rows.replacen("\n5,5,1\n", "\n5,6,1\n", 1));
    let port = free_port();
    let ranks = (0..WORLD).map(|rank| {
        let mut command =
            site.rank(rank, WORLD, port, &["train", "--out", "run", "--set", "data.source=rows.csv"]);
        if rank == 1 {
            command.current_dir(site.path("elsewhere"));
        }
        Process::start(command)
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.end(TRAINING_LIMIT).assert_error(4, &["rank 1 has another data set than rank 0"]);
    }
}

#[test]
fn a_rank_with_another_model_is_refused_in_the_rendezvous() {
    let site = Site::new();
    let rows = |more: &str| {
        (0..60).map(|row| format!("{row},{}{more},{}\n", row * 7 % 11, row % 2)).collect::<String>()
    };
    site.write("rows.csv", "a,b,label\n".to_string() + &rows(""));
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    site.write("elsewhere/rows.csv", "a,b,c,label\n".to_string() + &rows(",3"));
    let port = free_port();
    let job = ["train", "--out", "run", "--set", "data.source=rows.csv", "--set", "fault.join_deadline=5s"];
    let ranks = (0..2).map(|rank| {
        let mut command = site.rank(rank, 2, port, &job);
        if rank == 1 {
            command.current_dir(site.path("elsewhere"));
        }
        Process::start(command)
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.end(TRAINING_LIMIT).assert_error(4, &["rank 1 has another model than rank 0"]);
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
        let ended = rank.end(TRAINING_LIMIT);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
    let model = |run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    assert!(model("launched") == model("shells"), "the models differ");
    assert_eq!(site.report("shells")["outcome"], "completed");
}

/// Signals a rank 0 that waits for a rank that never joins.
fn interrupt_waiting(signal: Signal, code: i32) {
    let site = Site::new();
    let waiting = Process::start(site.rank(0, 2, free_port(), &["train", "--out", "run"]));
    site.await_event("run", "listening");
    waiting.signal(signal);
    let ended = waiting.end(LIMIT);
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    assert!(!ended.stderr.contains("error") && !ended.stderr.contains("bug"), "{}", ended.stderr);
    assert!(ended.stderr.contains("stopped   before training began"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("checkpoints"), "{}", ended.stderr);
    assert_eq!(site.report("run")["outcome"], "interrupted");
    site.assert_empty();
}

#[test]
fn a_signal_while_rank_0_waits_is_no_failure() {
    interrupt_waiting(Signal::SIGINT, 130);
    interrupt_waiting(Signal::SIGTERM, 143);
}

#[test]
fn the_rank_that_received_the_signal_is_named() {
    let site = Site::new();
    let ranks = start_ranks(&site, free_port(), &BUSY);
    site.await_step("run", 1);
    site.signal_worker(1, Signal::SIGTERM);
    let ended: Vec<Ended> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    assert_eq!(ended.iter().map(|rank| rank.code).collect::<Vec<_>>(), [Some(143); 3]);
    let output = &ended[0].stderr;
    assert!(output.contains("warning: stopping after this step: rank 1 on "), "{output}");
    assert_eq!(site.await_event("run", "stopping")["ranks"], serde_json::json!([1]));
    assert_eq!(site.report("run")["stopped_by"], serde_json::json!([1]));
}

#[test]
fn a_fault_of_the_last_rank_leaves_the_server_out_of_the_workers() {
    let site = Site::new();
    // More ranks than the job's default: the launcher determines the world size.
    let inject = r#"fault.inject=[{ step = 1, rank = 3, kind = "slow" }]"#;
    let job = ["train", "--quiet", "--out", "run", "--strategy", "parameter-server", "--set", inject];
    let job = [&job[..], &["--set", "train.max_steps=3"]].concat();
    let port = free_port();
    let ranks: Vec<Process> = (0..4).map(|rank| Process::start(site.rank(rank, 4, port, &job))).collect();
    for rank in ranks {
        let ended = rank.end(TRAINING_LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert_eq!(site.report("run")["job"]["engine.workers"], 3);
}
