//! Ranks under other launchers: their variables, errors when ranks do not match, and workers that join later.

mod harness;

use harness::{BUSY, Ended, LIMIT, Process, Site, TRAINING_LIMIT, await_some, free_port};
use nix::sys::signal::Signal;
use std::process::Command;

const SHORT: [&str; 5] = ["train", "--out", "run", "--set", "train.max_steps=20"];

/// An elastic job that trains long enough for a test to act on it.
const LONG: [&str; 11] = [
    "train",
    "--out",
    "run",
    "--set",
    "train.epochs=100000",
    "--set",
    "train.max_steps=3000",
    "--set",
    "engine.pace=2ms",
    "--set",
    "fault.step_deadline=5s",
];

fn ends(ranks: impl IntoIterator<Item = Process>) -> Vec<Ended> {
    ranks.into_iter().map(|rank| rank.end(TRAINING_LIMIT)).collect()
}

/// A rank as torchrun starts it.
fn torchrun(site: &Site, rank: usize, (run, restart): (&str, u32), port: u16, arguments: &[&str]) -> Command {
    let mut command = site.rank(rank, 2, port, arguments);
    command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env("TORCHELASTIC_RUN_ID", run);
    command.env("TORCHELASTIC_RESTART_COUNT", restart.to_string());
    command
}

#[test]
fn runs_and_restarts_of_torchrun_find_their_own_rank_0_beside_the_agents_port() {
    let site = Site::new();
    // The agent of torchrun holds its port while it runs; this listener stands in for it.
    let agent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = agent.local_addr().unwrap().port();
    let job = |out: &'static str| ["train", "--out", out, "--set", "train.max_steps=20"];
    // Rank 0 of an earlier attempt still waits on the first of the ports, and has another job.
    let earlier = [&job("earlier")[..], &["--set", "train.seed=99"]].concat();
    let stale = Process::start(torchrun(&site, 0, ("a", 0), port, &earlier));
    let taken = site.await_event("earlier", "listening")["address"].as_str().unwrap().to_string();
    let ranks = [1, 0].map(|rank| Process::start(torchrun(&site, rank, ("a", 1), port, &job("run"))));
    for ended in ends(ranks) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let address = site.await_event("run", "listening")["address"].as_str().unwrap().to_string();
    let own: u16 = address.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
    assert!(address != taken && (1..=16).contains(&own.wrapping_sub(port)), "{address}, {taken}, {port}");
    stale.signal(Signal::SIGKILL);
    drop(agent);
}

#[test]
fn engine_port_replaces_a_launcher_port_held_by_the_agent() {
    let site = Site::new();
    let (port, own) = (free_port(), free_port().to_string());
    let setting = format!("engine.port={own}");
    let job = [&SHORT[..], &["--set", &setting]].concat();
    let ranks = [0, 1].map(|rank| Process::start(torchrun(&site, rank, ("a", 0), port, &job)));
    for ended in ends(ranks) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert_eq!(site.await_event("run", "listening")["address"], format!("127.0.0.1:{own}"));
}

#[test]
fn pods_without_a_world_size_are_refused() {
    let site = Site::new();
    for (variables, named) in [
        (&[("JOB_COMPLETION_INDEX", "1")][..], "JOB_COMPLETION_INDEX=1"),
        (&[("PET_NNODES", "2"), ("PET_NODE_RANK", "0"), ("PET_NPROC_PER_NODE", "4")], "PET_NNODES=2"),
    ] {
        let mut command = site.thalweg(&SHORT);
        command.envs(variables.iter().copied());
        Process::start(command).end(LIMIT).assert_error(2, &[named]);
        assert!(!site.path("run").exists());
    }
}

#[test]
fn any_free_port_is_published_in_the_address_file() {
    let site = Site::new();
    let job = [&SHORT[..], &["--address-file", "address"]].concat();
    // The file of an earlier attempt has a dead address.
    site.write("address", format!("127.0.0.1:{}\n", free_port()));
    let ranks = [1, 0].map(|rank| Process::start(site.rank(rank, 2, 0, &job)));
    for ended in ends(ranks) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert!(!site.path("address").exists(), "it goes with the job");
    let ended = Process::start(site.rank(1, 2, 0, &SHORT)).end(LIMIT);
    ended.assert_error(2, &["MASTER_PORT=0"]);
    ended.assert_advice("--address-file");
}

#[test]
fn a_job_of_another_launcher_is_joined_by_its_run_folder() {
    let site = Site::new();
    let port = free_port();
    let ranks = [0, 1].map(|rank| Process::start(site.rank(rank, 2, port, &LONG)));
    site.await_step("run", 1);
    let joining = site.start(&["join", "run"]);
    joining.await_stderr("joined as rank 2; 3 workers now");
    for ended in ends(ranks.into_iter().chain([joining])) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert!(!site.path("run/join.json").exists());
}

#[test]
fn a_restarted_rank_joins_as_a_new_member() {
    let site = Site::new();
    let port = free_port();
    let first = Process::start(site.rank(0, 2, port, &LONG));
    let second = Process::start(site.rank(1, 2, port, &LONG));
    site.await_step("run", 1);
    second.signal(Signal::SIGKILL);
    second.end(LIMIT);
    let again = Process::start(site.rank(1, 2, port, &LONG));
    for ended in ends([first, again]) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let report = site.report("run");
    assert_eq!(report["failures"][0]["rank"], 1);
    let joined = site.events("run").iter().any(|event| event["joined"] == serde_json::json!([1]));
    assert!(joined, "{:?}", report["world"]);
    let audit = report["audit"].as_array().unwrap();
    assert!(audit.iter().all(|epoch| epoch["missed"] == 0 && epoch["repeated"] == 0), "{audit:?}");
}

/// Asserts that both ranks exit with these messages, long before a deadline passes.
fn turned_away(site: &Site, port: u16, second: Command, words: &[&str]) {
    let patient = [&SHORT[..], &["--set", "fault.join_deadline=10m"]].concat();
    let first = Process::start(site.rank(0, 2, port, &patient));
    for ended in ends([first, Process::start(second)]) {
        ended.assert_error(4, words);
    }
}

#[test]
fn differing_job_keys_are_named_and_end_the_job_at_once() {
    let site = Site::new();
    let port = free_port();
    let other = [&SHORT[..], &["--set", "fault.join_deadline=10m", "--set", "train.seed=8"]].concat();
    let second = site.rank(1, 2, port, &other);
    turned_away(&site, port, second, &["rank 1 has another job than rank 0: train.seed is 8 on rank 1 and "]);
    let culprit = site.report("run")["failures"][0]["rank"].clone();
    assert_eq!(culprit, 1);
}

#[test]
fn a_differing_world_size_is_named_and_ends_the_job_at_once() {
    let site = Site::new();
    let port = free_port();
    let patient = [&SHORT[..], &["--set", "fault.join_deadline=10m"]].concat();
    let second = site.rank(1, 3, port, &patient);
    turned_away(&site, port, second, &["rank 1 expects 3 ranks, rank 0 expects 2", "WORLD_SIZE"]);
}

#[test]
fn a_wrong_token_is_reported_on_both_sides() {
    let site = Site::new();
    let port = free_port();
    let job = [&SHORT[..], &["--set", "fault.join_deadline=15s"]].concat();
    let start = |rank: usize, token: &str| {
        let mut command = site.rank(rank, 2, port, &job);
        command.env("THALWEG_TOKEN", token);
        Process::start(command)
    };
    let first = start(0, "the token of this job");
    let second = start(1, "the token of another");
    let ended = ends([first, second]);
    ended[1].assert_error(4, &["THALWEG_TOKEN"]);
    let output = &ended[0].stderr;
    assert!(output.contains("refused a connection from 127.0.0.1: it does not know the token"), "{output}");
    ended[0].assert_error(4, &["rank 1 did not arrive", "does not know the token", "THALWEG_TOKEN"]);
}

#[test]
fn the_other_ranks_report_why_rank_0_cannot_start() {
    let site = Site::new();
    let port = free_port();
    let patient = [&SHORT[..], &["--set", "fault.join_deadline=10m"]].concat();
    site.succeed(&SHORT);
    let ranks = [1, 0].map(|rank| Process::start(site.rank(rank, 2, port, &patient)));
    let ended = ends(ranks);
    ended[1].assert_error(2, &["run"]);
    ended[0].assert_error(2, &["rank 0 cannot begin: "]);
}

#[test]
fn all_ranks_of_a_job_stopped_by_sigterm_exit_with_its_code() {
    for culprit in [0, 1] {
        let site = Site::new();
        let port = free_port();
        let ranks: Vec<Process> =
            (0..3).map(|rank| Process::start(site.rank(rank, 3, port, &BUSY))).collect();
        site.await_step("run", 1);
        site.signal_worker(culprit, Signal::SIGTERM);
        let ended = ends(ranks);
        assert!(ended.iter().all(|rank| rank.code == Some(143)), "{ended:?}");
    }
}

#[test]
fn limits_of_fault_tolerance_are_printed_at_the_start() {
    let site = Site::new();
    let port = free_port();
    let ranks = [0, 1].map(|rank| Process::start(site.rank(rank, 2, port, &SHORT)));
    let ended = ends(ranks);
    assert!(ended[0].stderr.contains("the loss of rank 0 ends the job"), "{}", ended[0].stderr);
    let mut doctor = site.rank(0, 2, port, &["doctor"]);
    doctor.env("LOCAL_WORLD_SIZE", "2");
    let output = Process::start(doctor).end(LIMIT).stdout;
    await_some(LIMIT, &output, || output.contains("the loss of rank 0 ends the job").then_some(()));
}
