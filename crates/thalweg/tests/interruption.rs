//! Signals: the first stops the job with a checkpoint, a second one at once; no worker outlives the launcher.

mod harness;

use harness::{LIMIT, Process, Site, TRAINING_LIMIT, await_some, free_port};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;

/// An endless job, with checkpoints on request only.
const ENDLESS: [&str; 7] =
    ["train", "--out", "run", "--set", "train.epochs=1000000", "--set", "fault.checkpoint_every=0"];

fn start_endless(site: &Site, more: &[&str]) -> Process {
    let process = site.start(&[&ENDLESS[..], more].concat());
    site.await_step("run", 1);
    process
}

/// Asserts the exit code, and that no step is lost according to report and summary.
#[track_caller]
fn assert_stopped(site: &Site, job: Process, code: i32) {
    assert_eq!(assert_saved(site, job), code);
}

/// Asserts a checkpoint of the last step, also in report and summary; returns the exit code.
#[track_caller]
fn assert_saved(site: &Site, job: Process) -> i32 {
    let ended = job.end(LIMIT);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "interrupted");
    assert_eq!(site.checkpoints("run"), [report["steps"].as_u64().unwrap()], "{}", ended.stderr);
    assert_eq!(report["checkpoint_step"], report["steps"]);
    let saved = ended.stderr.lines().filter(|line| line.starts_with("saved     checkpoint of step "));
    assert!(
        saved.clone().count() == 1 && !saved.clone().any(|line| line.contains("lost")),
        "{}",
        ended.stderr
    );
    ended.code.unwrap_or_else(|| panic!("a signal ended it: {}", ended.stderr))
}

fn interrupt(signal: Signal, code: i32) {
    let site = Site::new();
    let job = start_endless(&site, &["--workers", "3"]);
    assert!(site.checkpoints("run").is_empty(), "too early");
    job.signal(signal);
    job.await_stderr("with a checkpoint");
    assert_stopped(&site, job, code);
    let report = site.report("run");
    for audit in report["audit"].as_array().unwrap() {
        assert_eq!((&audit["once"], &audit["repeated"]), (&audit["expected"], &0.into()), "{audit}");
    }
    assert!(!site.path("run/model.safetensors").exists(), "nothing half-trained passes for a model");
}

#[test]
fn sigint_stops_with_a_checkpoint() {
    interrupt(Signal::SIGINT, 130);
}

#[test]
fn sigterm_stops_with_a_checkpoint() {
    interrupt(Signal::SIGTERM, 143);
}

#[test]
fn sighup_stops_with_a_checkpoint_and_its_own_exit_code() {
    interrupt(Signal::SIGHUP, 129);
}

#[test]
fn under_nohup_a_job_outlives_its_terminal() {
    let site = Site::new();
    let job =
        Process::start(site.program(
            "nohup",
            &[&[env!("CARGO_BIN_EXE_thalweg")], &ENDLESS[..], &["--workers", "3"]].concat(),
        ));
    site.await_step("run", 1);
    job.signal(Signal::SIGHUP);
    let newest = |site: &Site| site.events("run").iter().filter_map(|event| event["step"].as_u64()).max();
    site.await_step("run", newest(&site).unwrap() + 100);
    job.signal(Signal::SIGTERM);
    assert_stopped(&site, job, 143);
}

#[test]
fn a_closed_stderr_does_not_change_the_end_of_a_job() {
    let site = Site::new();
    let job = Process::start_without_stderr(site.thalweg(&ENDLESS));
    site.await_step("run", 1);
    job.signal(Signal::SIGHUP);
    assert_eq!(job.end(LIMIT).code, Some(129));
    assert_eq!(site.checkpoints("run"), [site.report("run")["checkpoint_step"].as_u64().unwrap()]);
}

#[test]
fn two_signals_at_once_are_one_request() {
    for signals in [[Signal::SIGHUP, Signal::SIGTERM], [Signal::SIGTERM, Signal::SIGINT]] {
        let site = Site::new();
        let job = start_endless(&site, &["--workers", "3"]);
        // A stopped launcher receives both when it continues, however long this test takes to send them.
        job.signal(Signal::SIGSTOP);
        await_some(LIMIT, "it does not stop", || (harness::state(job.id()) == Some('T')).then_some(()));
        for signal in signals {
            job.signal(signal);
        }
        job.signal(Signal::SIGCONT);
        // The code is that of either signal: the kernel chooses the order of pending signals.
        let codes = signals.map(|signal| 128 + signal as i32);
        assert!(codes.contains(&assert_saved(&site, job)));
    }
}

#[test]
fn a_process_group_that_is_terminated_twice_stops_with_a_checkpoint() {
    let site = Site::new();
    let mut command = site.thalweg(&[&ENDLESS[..], &["--workers", "3"]].concat());
    command.process_group(0);
    let job = Process::start(command);
    site.await_step("run", 1);
    let group = job.id();
    kill(group, Signal::SIGTERM).unwrap();
    killpg(group, Signal::SIGTERM).unwrap();
    assert_stopped(&site, job, 143);
}

#[test]
fn a_job_under_timeout_stops_with_a_checkpoint() {
    let site = Site::new();
    let job = [&["3600", env!("CARGO_BIN_EXE_thalweg")][..], &ENDLESS, &["--workers", "3"]].concat();
    let timeout = Process::start(site.program("timeout", &job));
    site.await_step("run", 1);
    // On SIGTERM, as after its time, `timeout` signals its child and then its whole process group.
    timeout.signal(Signal::SIGTERM);
    assert_stopped(&site, timeout, 143);
}

#[test]
fn two_sigterms_to_every_process_stop_with_a_checkpoint() {
    for strategy in ["allreduce", "parameter-server"] {
        let site = Site::new();
        let job = start_endless(&site, &["--workers", "3", "--strategy", strategy]);
        let all: Vec<Pid> = site.processes().into_iter().map(|(process, _)| process).collect();
        assert!(all.len() > 3, "{all:?}");
        for _ in 0..2 {
            // The process may have exited meanwhile.
            for process in &all {
                let _ = kill(*process, Signal::SIGTERM);
            }
        }
        assert_stopped(&site, job, 143);
    }
}

/// They leave one by one or together; a server without a worker stops, too.
#[test]
fn sigterm_to_all_workers_of_a_server_stops_the_job_with_a_checkpoint() {
    for scheduling in ["bsp", "async"] {
        let site = Site::new();
        let scheduling = format!("strategy.scheduling.kind={scheduling}");
        let served = ["--workers", "3", "--strategy", "parameter-server", "--set", &scheduling];
        let job = start_endless(&site, &served);
        let workers: Vec<Pid> = (0..3).map(|rank| site.worker(rank)).collect();
        workers.iter().for_each(|worker| kill(*worker, Signal::SIGTERM).unwrap());
        // Nobody asked the launcher to stop.
        assert_stopped(&site, job, 130);
    }
}

/// Waits until a run has a checkpoint, and then until it is past it.
fn await_checkpoint(site: &Site, run: &str) {
    let event = site.await_event(run, "checkpoint");
    assert_eq!(event["asked"], true, "{event}");
    site.await_step(run, event["step"].as_u64().unwrap() + 1);
}

#[test]
fn sigusr1_writes_a_checkpoint_and_the_job_continues() {
    for strategy in ["allreduce", "parameter-server", "gosgd", "single"] {
        let site = Site::new();
        let workers: &[&str] = if strategy == "single" { &[] } else { &["--workers", "3"] };
        let job = start_endless(&site, &[&["--strategy", strategy], workers].concat());
        assert!(site.checkpoints("run").is_empty(), "too early");
        job.signal(Signal::SIGUSR1);
        await_checkpoint(&site, "run");
        job.await_stderr("checkpoint of step ");
        job.signal(Signal::SIGINT);
        let ended = job.end(LIMIT);
        assert_eq!(ended.code, Some(130), "{strategy}: {}", ended.stderr);
        assert!(site.checkpoints("run").len() >= 2, "{strategy}");
    }
}

#[test]
fn any_rank_under_another_launcher_takes_sigusr1() {
    for strategy in ["allreduce", "parameter-server"] {
        for asked in [0, 1] {
            let site = Site::new();
            let port = harness::free_port();
            let job = [&ENDLESS[..], &["--strategy", strategy]].concat();
            let ranks: Vec<Process> =
                (0..2).map(|rank| Process::start(site.rank(rank, 2, port, &job))).collect();
            site.await_step("run", 1);
            ranks[asked].signal(Signal::SIGUSR1);
            await_checkpoint(&site, "run");
            // The parameter server takes it too.
            ranks[0].signal(Signal::SIGINT);
            for rank in ranks {
                assert_eq!(rank.end(LIMIT).code, Some(130), "{strategy}");
            }
        }
    }
}

#[test]
fn a_second_sigint_ends_the_job_at_once() {
    let site = Site::new();
    let job = start_endless(&site, &[]);
    // With a stopped worker the first signal cannot succeed, and the second must not wait for the step deadline.
    site.signal_worker(1, Signal::SIGSTOP);
    job.signal(Signal::SIGINT);
    job.await_stderr("once more to end at once");
    // A signal within a second counts as the same request; a later one ends the job.
    let launcher = job.id();
    await_some(TRAINING_LIMIT, "it does not leave", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        // An exited process stays a zombie until it is reaped.
        kill(launcher, Signal::SIGINT).unwrap();
        (harness::state(launcher) == Some('Z')).then_some(())
    });
    let ended = job.end(LIMIT);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!((&report["outcome"], &report["checkpoint_step"]), (&"interrupted".into(), &().into()));
    assert!(ended.stderr.contains("saved     no checkpoint"), "{}", ended.stderr);
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

/// The launcher and a worker die before the rendezvous: the other worker has nothing to wait for.
#[test]
fn without_their_launcher_workers_exit_before_the_rendezvous() {
    for killed in [0, 2] {
        let site = Site::new();
        let job = site.start(&[&ENDLESS[..], &["--workers", "4"]].concat());
        let first = site.worker(killed);
        job.signal(Signal::SIGKILL);
        kill(first, Signal::SIGKILL).unwrap();
        site.await_empty();
        job.end(LIMIT);
    }
}

#[test]
fn the_token_file_is_removed_when_the_launcher_is_killed() {
    let site = Site::new();
    let job = start_endless(&site, &[]);
    assert!(site.path("run/join.json").exists());
    job.signal(Signal::SIGKILL);
    site.await_empty();
    assert!(!site.path("run/join.json").exists());
    // A file that could not be removed is ignored.
    let left = r#"{"address":"127.0.0.1:1","token":"0123456789abcdef"}"#;
    site.write("run/join.json", left);
    let ended = site.run(&["join", "run"]);
    ended.assert_error(4, &["no job runs in run"]);
    job.end(LIMIT);
}

#[test]
fn ranks_under_another_launcher_stop_together_after_a_signal_to_one() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let site = Site::new();
        let port = harness::free_port();
        let start = |rank| Process::start(site.rank(rank, 2, port, &ENDLESS));
        let (asked, other) = (start(0), start(1));
        site.await_step("run", 1);
        asked.signal(signal);
        let ended = (asked.end(LIMIT), other.end(LIMIT));
        assert_eq!((ended.0.code, ended.1.code), (Some(code), Some(code)), "{ended:?}");
        assert_eq!(site.checkpoints("run").len(), 1);
        assert_eq!(site.report("run")["outcome"], "interrupted");
    }
}

/// The launchers of all hosts exit with the code of the signal that one of them received.
#[test]
fn a_stop_on_one_host_is_a_stop_on_all() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let site = Site::new();
        let master = format!("127.0.0.1:{}", free_port());
        let start = |node: &str, out: &str| {
            let hosts = ["--nnodes", "2", "--node-rank", node, "--master", &master, "--workers", "2"];
            let job = ["--set", "train.epochs=1000000", "--out", out];
            Process::start(site.thalweg(&[&["train"], &hosts[..], &job[..]].concat()))
        };
        let hosts = [start("0", "run"), start("1", "run-1")];
        site.await_step("run", 1);
        hosts[0].signal(signal);
        let codes = hosts.map(|host| host.end(LIMIT).code);
        assert_eq!(codes, [Some(code); 2], "{signal}");
        site.assert_empty();
    }
}
