//! `thalweg status` and `thalweg doctor` with a running job, as probes use them; and ranks whose launcher exits.

mod harness;

use harness::{Ended, LIMIT, Process, Site, TRAINING_LIMIT, await_some, free_port};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;

/// An endless job, with checkpoints on request only.
const ENDLESS: [&str; 7] =
    ["train", "--out", "run", "--set", "train.epochs=1000000", "--set", "fault.checkpoint_every=0"];

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error} in {}", ended.stdout))
}

#[test]
fn the_status_of_a_job_by_folder_and_by_address() {
    let site = Site::new();
    let job = site.start(&[&ENDLESS[..], &["--workers", "2"]].concat());
    site.await_step("run", 1);
    let by_folder = site.succeed(&["status", "run", "--json"]);
    let found = json(&by_folder);
    assert_eq!((&found["state"], &found["joined"]), (&"training".into(), &2.into()), "{found}");
    assert!(found["step"].as_u64() >= Some(1) && found["progress_s"].as_f64().is_some(), "{found}");
    let words = site.succeed(&["status", "run"]).stdout;
    assert!(words.starts_with("training, step ") && words.contains("2 ranks joined"), "{words}");
    let invitation = std::fs::read_to_string(site.path("run/join.json")).unwrap();
    let invitation: Value = serde_json::from_str(&invitation).unwrap();
    let address = invitation["address"].as_str().unwrap();
    let mut command = site.thalweg(&["status", address, "--json"]);
    command.env("THALWEG_TOKEN", invitation["token"].as_str().unwrap());
    let by_address = Process::start(command).end(TRAINING_LIMIT);
    assert_eq!(by_address.code, Some(0), "{}", by_address.stderr);
    assert_eq!(json(&by_address)["joined"], 2);
    let mut guess = site.thalweg(&["status", address]);
    guess.env("THALWEG_TOKEN", "0123456789abcdef");
    Process::start(guess).end(LIMIT).assert_error(4, &["refused the token"]);
    job.signal(Signal::SIGTERM);
    assert_eq!(job.end(LIMIT).code, Some(143));
    let ended = site.run(&["status", "run", "--json"]);
    assert_eq!((ended.code, &json(&ended)["state"]), (Some(130), &"interrupted".into()));
}

#[test]
fn the_status_of_a_job_that_is_not_elastic_comes_from_its_files() {
    let site = Site::new();
    let job = site.start(&[&ENDLESS[..], &["--workers", "2", "--set", "fault.elastic=false"]].concat());
    site.await_step("run", 1);
    let found = json(&site.succeed(&["status", "run", "--json"]));
    assert_eq!((&found["state"], &found["joined"]), (&"training".into(), &2.into()), "{found}");
    // Stopped processes make no progress, and the coordinator does not reply.
    let all: Vec<_> = site.processes().into_iter().map(|(process, _)| process).collect();
    all.iter().for_each(|process| kill(*process, Signal::SIGSTOP).unwrap());
    site.write("run/job.toml", "[fault]\nstep_deadline = \"1s\"\nprepare_deadline = \"1s\"\n");
    await_some(TRAINING_LIMIT, "it is not reported as stalled", || {
        let ended = site.run(&["status", "run", "--json"]);
        (ended.code == Some(3) && json(&ended)["state"] == "stalled").then_some(())
    });
    all.iter().for_each(|process| kill(*process, Signal::SIGKILL).unwrap());
    site.await_empty();
    // A process that exits has no environment any more before it releases its locks.
    job.end(LIMIT);
    let ended = site.run(&["status", "run"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stdout);
    assert!(ended.stdout.starts_with("killed"), "{}", ended.stdout);
}

#[test]
fn finished_runs_and_folders_without_a_run_are_distinguished() {
    let site = Site::new();
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "train.max_steps=5"]);
    let found = json(&site.succeed(&["status", "run", "--json"]));
    assert_eq!((&found["state"], &found["step"]), (&"completed".into(), &5.into()), "{found}");
    // A copy may lack hidden files.
    std::fs::remove_file(site.path("run/.lock")).unwrap();
    assert_eq!(json(&site.succeed(&["status", "run", "--json"]))["state"], "completed");
    std::fs::create_dir(site.path("empty")).unwrap();
    site.run(&["status", "empty"]).assert_error(4, &["empty holds no run"]);
    let nowhere = format!("127.0.0.1:{}", free_port());
    site.run(&["status", &nowhere]).assert_error(4, &["cannot reach the job", &nowhere]);
}

#[test]
fn a_port_held_by_a_running_job_is_no_failure() {
    let site = Site::new();
    let port = free_port();
    let waiting = Process::start(site.rank(0, 2, port, &ENDLESS));
    site.await_event("run", "listening");
    let doctor = Process::start(site.rank(0, 2, port, &["doctor", "--json"])).end(TRAINING_LIMIT);
    let name = format!("port {port}");
    let checks = json(&doctor);
    let check = checks.as_array().unwrap().iter().find(|check| check["name"] == name.as_str()).unwrap();
    assert_eq!(check["verdict"], "warn", "{check}");
    assert!(check["found"].as_str().unwrap().contains("a job of thalweg listens there"), "{check}");
    // A probe of the same user on the same host needs no token.
    let status = site.succeed(&["status", &format!("127.0.0.1:{port}")]).stdout;
    assert!(status.starts_with("waiting for ranks") && status.contains("1 of 2 ranks joined"), "{status}");
    waiting.signal(Signal::SIGTERM);
    waiting.end(LIMIT);
}

/// Ranks under a launcher that is not a shell: another program that starts a process and waits for it stands in for it.
fn kill_launcher(launcher: &[&str], name: &str) {
    let site = Site::new();
    let port = free_port();
    let launchers = [0, 1].map(|rank| {
        let mut command = site.rank(rank, 2, port, &[]);
        let own = [launcher, &[env!("CARGO_BIN_EXE_thalweg")], &ENDLESS].concat();
        let mut parent = site.program(own[0], &own[1..]);
        parent
            .envs(command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
        command = parent;
        Process::start(command)
    });
    site.await_step("run", 1);
    launchers[0].signal(Signal::SIGKILL);
    await_some(LIMIT, "ranks train on without their launcher", || {
        site.processes().iter().all(|(_, rank)| rank.is_none()).then_some(())
    });
    assert_eq!(site.checkpoints("run").len(), 1);
    assert_eq!(site.report("run")["outcome"], "interrupted");
    let [first, second] = launchers.map(|launcher| launcher.end(LIMIT));
    assert_eq!(first.code, None, "it was killed");
    assert!(
        first.stderr.contains(&format!("the launcher that started this rank ({name}) is gone")),
        "{}",
        first.stderr
    );
    // Not every launcher has the exit code of its rank.
    assert!(second.code.is_some_and(|code| code != 0), "{}", second.stderr);
}

#[test]
fn ranks_stop_with_a_checkpoint_when_their_launcher_is_killed() {
    kill_launcher(&["timeout", "3600"], "timeout");
}

/// The ranks inherit the ignored SIGHUP of their launcher, which does not mean that they shall outlive it.
#[test]
fn ranks_stop_when_a_launcher_under_nohup_is_killed() {
    kill_launcher(&["nohup", "xargs"], "xargs");
}

#[test]
fn a_rank_that_a_user_started_outlives_the_shell() {
    let site = Site::new();
    let script = "\"$0\" \"$@\" >/dev/null 2>&1 & sleep 0.2";
    let mut shell =
        site.program("sh", &[&["-c", script, env!("CARGO_BIN_EXE_thalweg")], &ENDLESS[..]].concat());
    shell.env("RANK", "0").env("WORLD_SIZE", "1");
    assert_eq!(Process::start(shell).end(LIMIT).code, Some(0));
    site.await_step("run", 1);
    let newest = site.events("run").iter().filter_map(|event| event["step"].as_u64()).max().unwrap();
    site.await_step("run", newest + 100);
    site.signal_worker(0, Signal::SIGTERM);
    site.await_empty();
    assert_eq!(site.checkpoints("run").len(), 1);
}
