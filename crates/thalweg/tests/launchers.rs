//! Ranks of other launchers: what their variables say, who is told what when they do not fit together, and who comes later.

mod harness;

use harness::{BUSY, Ended, LIMIT, PATIENCE, Process, Site, await_some, free_port};
use nix::sys::signal::Signal;
use std::process::Command;

const SHORT: [&str; 5] = ["train", "--out", "run", "--set", "train.max_steps=20"];

/// An elastic job that is still at work when something happens to it.
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
    ranks.into_iter().map(|rank| rank.end(PATIENCE)).collect()
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
    // The agent of a torchrun holds its port for as long as it runs; the test of two runs stands in for it.
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
fn the_job_says_its_own_port_where_the_agent_holds_the_launchers() {
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
fn pods_that_do_not_know_their_world_are_refused() {
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
fn any_port_is_told_in_a_file() {
    let site = Site::new();
    let job = [&SHORT[..], &["--address-file", "address"]].concat();
    // What an earlier attempt left there leads nowhere.
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
    let newcomer = site.start(&["join", "run"]);
    newcomer.await_said("joined as rank 2; 3 workers now");
    for ended in ends(ranks.into_iter().chain([newcomer])) {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    assert!(!site.path("run/join.json").exists());
}

#[test]
fn a_rank_that_is_started_again_under_its_number_comes_as_a_newcomer() {
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

/// Both ranks end with these words, long before they would give each other up.
fn turned_away(site: &Site, port: u16, second: Command, words: &[&str]) {
    let patient = [&SHORT[..], &["--set", "fault.join_deadline=10m"]].concat();
    let first = Process::start(site.rank(0, 2, port, &patient));
    for ended in ends([first, Process::start(second)]) {
        ended.assert_error(4, words);
    }
}

#[test]
fn keys_in_which_jobs_differ_are_named_and_end_it_at_once() {
    let site = Site::new();
    let port = free_port();
    let other = [&SHORT[..], &["--set", "fault.join_deadline=10m", "--set", "train.seed=8"]].concat();
    let second = site.rank(1, 2, port, &other);
    turned_away(&site, port, second, &["rank 1 has another job than rank 0: train.seed is 8 there and "]);
    let culprit = site.report("run")["failures"][0]["rank"].clone();
    assert_eq!(culprit, 1);
}

#[test]
fn another_number_of_ranks_is_named_and_ends_it_at_once() {
    let site = Site::new();
    let port = free_port();
    let patient = [&SHORT[..], &["--set", "fault.join_deadline=10m"]].concat();
    let second = site.rank(1, 3, port, &patient);
    turned_away(&site, port, second, &["rank 1 expects 3 ranks, rank 0 expects 2", "WORLD_SIZE"]);
}

#[test]
fn a_wrong_token_is_told_on_both_sides() {
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
    let said = &ended[0].stderr;
    assert!(said.contains("turned away a caller from 127.0.0.1: it does not know the token"), "{said}");
    ended[0].assert_error(4, &["rank 1 did not arrive", "does not know the token", "THALWEG_TOKEN"]);
}

#[test]
fn a_rank_0_that_cannot_begin_tells_the_others() {
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
fn all_ranks_of_a_job_that_sigterm_stopped_say_so() {
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
fn what_cannot_be_survived_is_said_at_the_start() {
    let site = Site::new();
    let port = free_port();
    let ranks = [0, 1].map(|rank| Process::start(site.rank(rank, 2, port, &SHORT)));
    let ended = ends(ranks);
    assert!(ended[0].stderr.contains("the loss of rank 0 ends the job"), "{}", ended[0].stderr);
    let mut doctor = site.rank(0, 2, port, &["doctor"]);
    doctor.env("LOCAL_WORLD_SIZE", "2");
    let told = Process::start(doctor).end(LIMIT).stdout;
    await_some(LIMIT, &told, || told.contains("the loss of rank 0 ends the job").then_some(()));
}
