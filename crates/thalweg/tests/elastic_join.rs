//! Elastic jobs that workers join and leave: no step is repeated, and no row is missed or seen twice.

mod harness;

use harness::elastic::{assert_complete, assert_failure, start, worlds};
use harness::{Process, Site, TRAINING_LIMIT};
use nix::sys::signal::Signal;
use serde_json::Value;

#[test]
fn a_terminated_worker_leaves_without_a_repeated_step() {
    for rank in [0, 2] {
        let site = Site::new();
        // The others continue for longer than the step deadline.
        let settings = ["fault.step_deadline=2s", "engine.pace=5ms", "train.epochs=30"];
        let job = start(&site, 3, &settings.map(|setting| ["--set", setting]).concat());
        site.signal_worker(rank, Signal::SIGTERM);
        let report = assert_complete(&site, job);
        assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{}", report["failures"]);
        assert_eq!(worlds(&report), [3, 2]);
        let regrouped = site.await_event("run", "regrouped");
        assert_eq!(
            (&regrouped["left"][0], &regrouped["steps_redone"]),
            (&Value::from(rank), &Value::from(0))
        );
    }
}

/// Whether a process has exited; a zombie counts as exited.
fn has_ended(process: nix::unistd::Pid) -> Option<()> {
    matches!(harness::state(process), None | Some('Z')).then_some(())
}

/// The steps of a run so far.
fn steps(site: &Site) -> u64 {
    let events = site.events("run");
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.filter_map(|event| event["step"].as_u64()).max().unwrap_or(0)
}

/// On SIGTERM the coordinator hands its role over and exits while the others keep training; the next coordinator may be
/// terminated or killed as well.
#[test]
fn a_terminated_coordinator_hands_over_its_role() {
    for (transport, second) in [("auto", Signal::SIGKILL), ("tcp", Signal::SIGTERM)] {
        let site = Site::new();
        let transport = format!("strategy.exchange.transport={transport}");
        let job = start(&site, 3, &["--set", &transport, "--set", "engine.pace=5ms"]);
        let first = site.signal_worker(0, Signal::SIGTERM);
        harness::await_some(TRAINING_LIMIT / 4, "rank 0 does not end", || has_ended(first));
        let then = steps(&site);
        site.await_step("run", then + 20);
        let regrouped = site.await_event("run", "regrouped");
        assert_eq!(
            (&regrouped["left"], &regrouped["lost"], &regrouped["steps_redone"]),
            (&serde_json::json!([0]), &serde_json::json!([]), &Value::from(0))
        );
        let next = site.signal_worker(1, second);
        harness::await_some(TRAINING_LIMIT / 4, "rank 1 does not end", || has_ended(next));
        let report = assert_complete(&site, job);
        assert_eq!(worlds(&report), [3, 2, 1]);
        match second {
            Signal::SIGKILL => assert_failure(&report, 1, "was killed by signal 9 (SIGKILL)"),
            _ => assert_eq!(report["failures"], serde_json::json!([])),
        }
    }
}

/// Workers that joined later cannot reach the launcher, which writes the results: without its own workers the job
/// stops.
#[test]
fn the_job_stops_with_the_last_worker_of_the_launcher() {
    let site = Site::new();
    let job = start(&site, 1, &["--set", "engine.pace=10ms"]);
    let joining = site.start(&["join", "run"]);
    site.await_event("run", "regrouped");
    site.signal_worker(0, Signal::SIGTERM);
    let (job, joining) = (job.end(TRAINING_LIMIT), joining.end(TRAINING_LIMIT));
    assert_eq!((job.code, joining.code), (Some(130), Some(130)), "{} {}", job.stderr, joining.stderr);
    assert_eq!(joining.stderr.lines().last(), Some("the job was stopped"), "{}", joining.stderr);
    assert!(!site.checkpoints("run").is_empty());
    assert_eq!(site.report("run")["outcome"], "interrupted");
    site.assert_empty();
}

/// Two leave at the same step boundary, the coordinator among them; a worker that joins meanwhile is admitted by the
/// next coordinator.
#[test]
fn workers_leave_and_join_during_a_coordinator_handover() {
    let site = Site::new();
    let job = start(&site, 3, &["--set", "engine.pace=10ms"]);
    let leaving = [0, 1].map(|rank| site.signal_worker(rank, Signal::SIGTERM));
    let joining = site.start(&["join", "run"]);
    for process in leaving {
        harness::await_some(TRAINING_LIMIT / 4, "one that leaves does not end", || has_ended(process));
    }
    joining.await_stderr("joined as rank 3; ");
    let report = assert_complete(&site, job);
    let joining = joining.end(TRAINING_LIMIT);
    assert_eq!(joining.code, Some(0));
    assert_eq!(joining.stderr.lines().last(), Some("the job is complete"), "{}", joining.stderr);
    assert_eq!(report["failures"], serde_json::json!([]));
    assert_eq!(worlds(&report).last(), Some(&2), "{:?}", worlds(&report));
    let events = site.events("run");
    assert!(events.iter().all(|event| event["event"] != "regrouped" || event["steps_redone"] == 0));
}

#[test]
fn a_worker_joins_by_the_run_folder_and_trains_to_the_end() {
    let site = Site::new();
    let job = start(&site, 1, &["--set", "train.epochs=600"]);
    let joining = site.start(&["join", "run"]);
    joining.await_stderr("joined as rank 1; 2 workers now");
    let by_address = site.events("run").into_iter().find(|event| event["event"] == "listening").unwrap();
    let refused = site.run(&["join", by_address["address"].as_str().unwrap()]);
    assert_eq!(refused.code, Some(4), "without the token: {}", refused.stderr);
    site.await_event("run", "regrouped");
    joining.signal(Signal::SIGINT);
    let left = joining.end(TRAINING_LIMIT);
    assert_eq!(left.code, Some(0));
    let last = left.stderr.lines().last();
    assert_eq!(last, Some("this worker has left; the job goes on without it"), "{}", left.stderr);
    let ended = job.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report = site.report("run");
    assert_eq!(worlds(&report), [1, 2, 1]);
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{}", report["failures"]);
    assert!(!site.path("run/join.json").exists());
    assert!(site.run(&["join", "run"]).stderr.contains("no job runs in run"));
}

#[test]
fn one_worker_then_four_then_two_take_the_same_steps_to_the_last_bit() {
    let site = Site::new();
    let job = ["--set", "train.reproducible=true", "--set", "train.epochs=50"];
    site.succeed(&[&["train", "--out", "fixed", "--quiet", "--workers", "3"], &job[..]].concat());
    let paced = ["--set", "engine.pace=10ms"];
    let grown = site.start(&[&["train", "--out", "grown", "--workers", "1"], &job[..], &paced[..]].concat());
    site.await_step("grown", 1);
    let joined: Vec<Process> = (0..3).map(|_| site.start(&["join", "grown"])).collect();
    let with = |members: Value| {
        harness::await_some(TRAINING_LIMIT, &format!("no group of {members}"), || {
            let mut events = site.events("grown").into_iter().filter(|event| event["event"] == "regrouped");
            events.any(|event| event["members"] == members).then_some(())
        });
    };
    with(serde_json::json!([0, 1, 2, 3]));
    let mut leaving = joined.into_iter();
    for worker in leaving.by_ref().take(2) {
        worker.signal(Signal::SIGTERM);
        assert_eq!(worker.end(TRAINING_LIMIT).code, Some(0));
    }
    let (grown, stayed) = (grown.end(TRAINING_LIMIT), leaving.next().unwrap().end(TRAINING_LIMIT));
    assert_eq!((grown.code, stayed.code), (Some(0), Some(0)), "{} {}", grown.stderr, stayed.stderr);
    let report = site.report("grown");
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{}", report["failures"]);
    assert_eq!(worlds(&report).last(), Some(&2));
    let model = |run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    assert!(model("grown") == model("fixed"), "the models differ");
}

/// Some megabytes of state are sent over tcp while the others train; the model is bit-identical to a run without the
/// join.
#[test]
fn a_joining_worker_receives_the_state_while_the_others_train() {
    let site = Site::new();
    let job = [
        "--set",
        r#"model.layers=["dense 768 relu", "dense 768 relu", "dense auto"]"#,
        "--set",
        "train.optimizer={kind='adam', lr=0.001}",
        "--set",
        "train.reproducible=true",
        // Long epochs: steps are left in the current one whenever the worker joins.
        "--set",
        "train.global_batch=8",
        "--set",
        "train.epochs=2",
        "--set",
        "strategy.exchange.transport=tcp",
    ];
    site.succeed(&[&["train", "--out", "fixed", "--quiet", "--workers", "1"], &job[..]].concat());
    let paced = ["--set", "engine.pace=40ms"];
    let grown = site.start(&[&["train", "--out", "grown", "--workers", "2"], &job[..], &paced[..]].concat());
    site.await_step("grown", 1);
    let joining = site.start(&["join", "grown"]);
    let caught_up = site.await_event("grown", "caught_up");
    let (grown, joining) = (grown.end(TRAINING_LIMIT), joining.end(TRAINING_LIMIT));
    assert_eq!((grown.code, joining.code), (Some(0), Some(0)), "{} {}", grown.stderr, joining.stderr);
    let regrouped = site.await_event("grown", "regrouped");
    assert_eq!((&regrouped["joined"][0], &caught_up["ranks"][0]), (&Value::from(2), &Value::from(2)));
    let [from, to] = [&regrouped, &caught_up].map(|event| event["step"].as_u64().unwrap());
    assert!(to > from && caught_up["steps"] == to - from, "{regrouped} {caught_up}");
    assert!(caught_up["bytes"].as_u64().unwrap() > 7 << 20, "{caught_up}");
    assert!(grown.stderr.contains("rank 2 received the job's state (7."), "{}", grown.stderr);
    let report = site.report("grown");
    let rows: Vec<u64> =
        report["ranks"].as_array().unwrap().iter().map(|rank| rank["rows"].as_u64().unwrap()).collect();
    assert!(rows.len() == 3 && rows[2] > 0 && rows[2] < rows[0], "{rows:?}");
    let model = |run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    assert!(model("grown") == model("fixed"), "the models differ");
}

/// Local rounds keep their state in private memory: on one host too, a new worker takes it over while the others train.
#[test]
fn a_worker_that_joins_local_rounds_takes_the_state_over_while_the_others_train() {
    // One row a step: 1438 steps in an epoch, of which the last two rounds are too few for a transfer.
    let settings = ["train.global_batch=1", "strategy.merge.every=4", "fault.join_piece=100KiB"];
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    for strategy in ["sparknet", "block-momentum", "diloco"] {
        let site = Site::new();
        let more = ["--strategy", strategy, "--set", "train.epochs=1000000"];
        let job = start(&site, 2, &[&more, &settings[..]].concat());
        let regrouped = |joins: usize| {
            let mut events = site.events("run").into_iter().filter(|event| event["event"] == "regrouped");
            events.nth(joins - 1).and_then(|event| event["step"].as_u64())
        };
        let mut joining = Vec::new();
        let expected = loop {
            joining.push(site.start(&["join", "run"]));
            let step = harness::await_some(TRAINING_LIMIT, "no group", || regrouped(joining.len()));
            if step % 1438 < 1438 - 8 {
                break 1 + joining.len();
            }
        };
        let caught_up = site.await_event("run", "caught_up");
        assert_eq!(caught_up["ranks"], serde_json::json!([expected]), "{strategy}");
        assert!(caught_up["steps"].as_u64() > Some(0), "{strategy}: {caught_up}");
        job.signal(Signal::SIGINT);
        assert_eq!(job.end(TRAINING_LIMIT).code, Some(130), "{strategy}");
        for worker in joining {
            assert_eq!(worker.end(TRAINING_LIMIT).code, Some(130), "{strategy}");
        }
        for epoch in site.report("run")["audit"].as_array().unwrap() {
            assert_eq!((&epoch["missed"], &epoch["repeated"]), (&0.into(), &0.into()), "{strategy}: {epoch}");
        }
    }
}
