//! A rank that is lost, leaves or joins: the others go on, no row is missed or seen twice, and the report says who it was.

mod harness;

use harness::{PATIENCE, Process, Site};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Digits in steps that are not too quick to be hit, some thousand of them.
const LONG: [&str; 9] = [
    "train",
    "--out",
    "run",
    "--set",
    r#"model.layers=["dense 512 relu", "dense auto"]"#,
    "--set",
    "train.epochs=60",
    "--set",
    "engine.pace=2ms",
];

fn start(site: &Site, workers: usize, more: &[&str]) -> Process {
    let workers = workers.to_string();
    let process = site.start(&[&LONG[..], &["--workers", &workers], more].concat());
    site.await_step("run", 1);
    process
}

/// The job went well, and every row was seen once in every epoch.
fn assert_complete(site: &Site, process: Process) -> Value {
    let ended = process.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    site.assert_empty();
    let report = site.report("run");
    assert_eq!(report["outcome"], "completed");
    let audit = report["audit"].as_array().unwrap();
    assert_eq!(audit.len(), 60);
    for epoch in audit {
        assert_eq!((&epoch["missed"], &epoch["repeated"]), (&Value::from(0), &Value::from(0)), "{epoch}");
    }
    assert!(report["final"]["accuracy"].as_f64().unwrap() > 0.95, "{}", report["final"]);
    report
}

fn worlds(report: &Value) -> Vec<u64> {
    report["world"].as_array().unwrap().iter().map(|world| world["workers"].as_u64().unwrap()).collect()
}

fn assert_failure(report: &Value, rank: usize, cause: &str) {
    let failures = report["failures"].as_array().unwrap();
    let failure =
        failures.iter().find(|failure| failure["rank"] == rank).unwrap_or_else(|| panic!("{failures:?}"));
    assert!(failure["cause"].as_str().unwrap().contains(cause), "{failure}");
    assert!(failure["operation"].is_string() && failure["step"].is_u64(), "{failure}");
    assert!(failure["recover_s"].is_number(), "{failure}");
    assert!(failure["steps_redone"].as_u64().unwrap() <= 1, "{failure}");
}

fn kill(ranks: &[usize], more: &[&str]) -> Value {
    let site = Site::new();
    let job = start(&site, 3, more);
    for rank in ranks {
        site.signal_worker(*rank, Signal::SIGKILL);
    }
    let report = assert_complete(&site, job);
    ranks.iter().for_each(|rank| assert_failure(&report, *rank, "was killed by signal 9 (SIGKILL)"));
    // What the lost ones had done stays in the report, beside those who stayed.
    let accounts = report["ranks"].as_array().unwrap();
    assert_eq!(accounts.len(), 3, "{accounts:?}");
    for account in accounts {
        let lost = ranks.iter().any(|rank| account["rank"] == *rank);
        assert_eq!(account["gone_at"].as_u64().is_some_and(|step| step > 0), lost, "{account}");
        assert!(account["rows"].as_u64().unwrap() > 0, "{account}");
        assert!(account["compute_s"].as_f64().unwrap() > 0.0, "{account}");
    }
    report
}

#[test]
fn any_worker_may_be_killed() {
    for rank in 0..3 {
        assert_eq!(worlds(&kill(&[rank], &[])), [3, 2]);
    }
}

/// With `train.reproducible` a run that lost a worker on its way ends with the bits of one that never had others.
#[test]
fn a_reproducible_run_ends_with_the_same_file_whoever_was_lost() {
    let on = ["--set", "train.reproducible=true", "--set", "train.epochs=12"];
    let file = |site: &Site, run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    let whole = Site::new();
    let arguments = [&LONG[..1], &["--out", "alone", "--workers", "1"], &LONG[3..], &on[..]].concat();
    whole.succeed(&arguments);
    for transport in ["strategy.exchange.transport=auto", "strategy.exchange.transport=tcp"] {
        let site = Site::new();
        let job = start(&site, 3, &[&on[..], &["--set", transport]].concat());
        site.signal_worker(1, Signal::SIGKILL);
        let ended = job.end(PATIENCE);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(worlds(&site.report("run")), [3, 2], "{transport}");
        assert!(file(&site, "run") == file(&whole, "alone"), "{transport}: another file");
        assert_eq!(site.report("run")["epochs"], whole.report("alone")["epochs"], "{transport}");
    }
}

/// What a worker reports of its generation cannot be true: it is alive, given up and told so, and its end is not the job's.
#[test]
fn a_worker_that_lies_is_given_up_and_the_others_go_on() {
    for rank in [0, 1] {
        let site = Site::new();
        let lie = format!("fault.inject=[{{step=34,rank={rank},kind=\"lie\"}}]");
        let report = assert_complete(&site, start(&site, 3, &["--set", &lie]));
        assert_failure(&report, rank, "broke the protocol: it reports generation 4294967295");
        assert_eq!(worlds(&report), [3, 2]);
    }
}

/// One of those who began sends its neighbour whole frames that do not belong there: of another operation or group, or the
/// last one of its link.
#[test]
fn a_worker_that_forges_frames_is_named_and_the_others_go_on() {
    for step in [30, 31, 33] {
        let site = Site::new();
        let lie = format!("fault.inject=[{{step={step},rank=1,kind=\"lie\"}}]");
        let tcp = ["--set", "strategy.exchange.transport=tcp", "--set", &lie];
        let report = assert_complete(&site, start(&site, 3, &tcp));
        assert_eq!(worlds(&report), [3, 2], "{step}: {report}");
        assert_eq!(report["failures"][0]["rank"], 1, "{step}: {report}");
    }
}

#[test]
fn two_may_be_killed_at_once() {
    for ranks in [[0, 1], [1, 2], [0, 2]] {
        assert_eq!(worlds(&kill(&ranks, &[])).last(), Some(&1));
    }
}

#[test]
fn over_tcp_as_well() {
    for rank in [0, 2] {
        assert_eq!(worlds(&kill(&[rank], &["--set", "strategy.exchange.transport=tcp"])), [3, 2]);
    }
}

/// Buckets that were under way when it happened are forgotten; the step is done again.
#[test]
fn in_the_middle_of_back_propagation_as_well() {
    let buckets = ["--set", "strategy.exchange.transport=tcp", "--set", "strategy.exchange.bucket=tensor"];
    for rank in [0, 1] {
        let site = Site::new();
        let job = start(&site, 3, &buckets);
        site.signal_worker(rank, Signal::SIGKILL);
        let report = assert_complete(&site, job);
        assert_eq!(worlds(&report), [3, 2]);
        // Whether its end or its silence was seen first does not matter here.
        assert_failure(&report, rank, "");
        assert_eq!(report["buckets"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn a_stopped_worker_is_given_up_and_never_comes_back() {
    for rank in [0, 1] {
        let site = Site::new();
        let job = start(&site, 3, &["--set", "fault.step_deadline=2s"]);
        site.signal_worker(rank, Signal::SIGSTOP);
        let report = assert_complete(&site, job);
        assert_failure(&report, rank, "has been silent for");
        assert_eq!(worlds(&report), [3, 2]);
    }
}

#[test]
fn a_worker_that_is_asked_to_end_leaves_without_a_redone_step() {
    for rank in [0, 2] {
        let site = Site::new();
        // The others go on for longer than a silent rank has.
        let job = start(&site, 3, &["--set", "fault.step_deadline=3s", "--set", "engine.pace=5ms"]);
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

/// Whether a process is still there, as the kernel says; one that was not waited for is not.
fn has_ended(process: nix::unistd::Pid) -> Option<()> {
    matches!(harness::state(process), None | Some('Z')).then_some(())
}

/// The steps of a run so far.
fn steps(site: &Site) -> u64 {
    let events = site.events("run");
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.filter_map(|event| event["step"].as_u64()).max().unwrap_or(0)
}

/// The coordinator's role passes on when the process that has it is asked to end: that one does, while the others train on,
/// and the next coordinator may be asked to end or be killed as well.
#[test]
fn the_coordinator_hands_its_role_on_and_ends() {
    for (transport, second) in [("auto", Signal::SIGKILL), ("tcp", Signal::SIGTERM)] {
        let site = Site::new();
        let transport = format!("strategy.exchange.transport={transport}");
        let job = start(&site, 3, &["--set", &transport, "--set", "engine.pace=10ms"]);
        let first = site.signal_worker(0, Signal::SIGTERM);
        harness::await_some(PATIENCE / 4, "rank 0 does not end", || has_ended(first));
        let then = steps(&site);
        site.await_step("run", then + 20);
        let regrouped = site.await_event("run", "regrouped");
        assert_eq!(
            (&regrouped["left"], &regrouped["lost"], &regrouped["steps_redone"]),
            (&serde_json::json!([0]), &serde_json::json!([]), &Value::from(0))
        );
        let next = site.signal_worker(1, second);
        harness::await_some(PATIENCE / 4, "rank 1 does not end", || has_ended(next));
        let report = assert_complete(&site, job);
        assert_eq!(worlds(&report), [3, 2, 1]);
        match second {
            Signal::SIGKILL => assert_failure(&report, 1, "was killed by signal 9 (SIGKILL)"),
            _ => assert_eq!(report["failures"], serde_json::json!([])),
        }
    }
}

/// Those who joined from elsewhere have nobody to tell their results: without the launcher's own workers the job stops.
#[test]
fn the_last_worker_of_the_launcher_does_not_leave_the_job_to_strangers() {
    let site = Site::new();
    let job = start(&site, 1, &["--set", "engine.pace=10ms"]);
    let newcomer = site.start(&["join", "run"]);
    site.await_event("run", "regrouped");
    site.signal_worker(0, Signal::SIGTERM);
    let (job, newcomer) = (job.end(PATIENCE), newcomer.end(PATIENCE));
    assert_eq!((job.code, newcomer.code), (Some(130), Some(130)), "{} {}", job.stderr, newcomer.stderr);
    assert!(!site.checkpoints("run").is_empty());
    assert_eq!(site.report("run")["outcome"], "interrupted");
    site.assert_empty();
}

/// Two leave at the same boundary, the coordinator among them; one that wants to come meanwhile comes to the next one.
#[test]
fn others_leave_and_come_while_the_role_passes_on() {
    let site = Site::new();
    let job = start(&site, 3, &["--set", "engine.pace=10ms"]);
    let leaving = [0, 1].map(|rank| site.signal_worker(rank, Signal::SIGTERM));
    let newcomer = site.start(&["join", "run"]);
    for process in leaving {
        harness::await_some(PATIENCE / 4, "one that leaves does not end", || has_ended(process));
    }
    newcomer.await_said("joined as rank 3; ");
    let report = assert_complete(&site, job);
    assert_eq!(newcomer.end(PATIENCE).code, Some(0));
    assert_eq!(report["failures"], serde_json::json!([]));
    assert_eq!(worlds(&report).last(), Some(&2), "{:?}", worlds(&report));
    let events = site.events("run");
    assert!(events.iter().all(|event| event["event"] != "regrouped" || event["steps_redone"] == 0));
}

#[test]
fn a_lost_worker_is_replaced_if_asked_for() {
    for rank in [0, 1] {
        let site = Site::new();
        let job = start(&site, 2, &["--set", "fault.respawn=true"]);
        site.signal_worker(rank, Signal::SIGKILL);
        let report = assert_complete(&site, job);
        assert_failure(&report, rank, "was killed by signal 9 (SIGKILL)");
        assert_eq!(worlds(&report), [2, 1, 2]);
    }
}

/// With nobody left who has the state, the job is over, though others were started in their places.
#[test]
fn the_loss_of_all_at_once_ends_the_job_though_lost_ones_are_replaced() {
    let site = Site::new();
    let job = start(&site, 2, &["--set", "fault.respawn=true"]);
    let workers = [site.worker(0), site.worker(1)];
    for worker in workers {
        nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
    }
    let ended = job.end(PATIENCE);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("was killed by signal 9 (SIGKILL)"), "{}", ended.stderr);
    site.assert_empty();
}

/// Somebody installs another version while a job runs: its workers go on with their own.
#[test]
fn a_replacement_is_the_same_program_though_its_file_is_not() {
    let site = Site::new();
    let (built, own) = (env!("CARGO_BIN_EXE_thalweg"), site.path("thalweg"));
    // A copy can be busy: another test's child may hold it open for writing for a moment.
    std::fs::hard_link(built, &own).or_else(|_| std::fs::copy(built, &own).map(|_| ())).unwrap();
    let arguments = [&LONG[..], &["--workers", "2", "--set", "fault.respawn=true"]].concat();
    let job = Process::start(site.program(site.path("thalweg"), &arguments));
    site.await_step("run", 1);
    std::fs::remove_file(site.path("thalweg")).unwrap();
    site.write("thalweg", "no program at all");
    site.signal_worker(1, Signal::SIGKILL);
    let report = assert_complete(&site, job);
    assert_eq!(worlds(&report), [2, 1, 2]);
}

#[test]
fn a_worker_killed_before_the_ranks_have_met_is_done_without() {
    for rank in [0, 1] {
        let site = Site::new();
        let job = site.start(&[&LONG[..], &["--workers", "3"]].concat());
        site.signal_worker(rank, Signal::SIGKILL);
        assert_complete(&site, job);
    }
}

#[test]
fn too_few_workers_wait_and_then_say_so() {
    let site = Site::new();
    let job = start(&site, 2, &["--set", "fault.min_workers=2", "--set", "fault.join_deadline=2s"]);
    site.signal_worker(1, Signal::SIGKILL);
    let ended = job.end(PATIENCE);
    ended.assert_error(3, &["rank 1 ", "fault.min_workers is 2", "nobody joined within 2 s"]);
    site.assert_empty();
}

#[test]
fn a_worker_joins_by_the_run_folder_and_works_along_to_the_end() {
    let site = Site::new();
    let job = start(&site, 1, &["--set", "train.epochs=600"]);
    let newcomer = site.start(&["join", "run"]);
    newcomer.await_said("joined as rank 1; 2 workers now");
    let by_address = site.events("run").into_iter().find(|event| event["event"] == "listening").unwrap();
    let refused = site.run(&["join", by_address["address"].as_str().unwrap()]);
    assert_eq!(refused.code, Some(4), "without the token: {}", refused.stderr);
    site.await_event("run", "regrouped");
    newcomer.signal(Signal::SIGINT);
    assert_eq!(newcomer.end(PATIENCE).code, Some(0));
    let ended = job.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report = site.report("run");
    assert_eq!(worlds(&report), [1, 2, 1]);
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{}", report["failures"]);
    assert!(!site.path("run/join.json").exists());
    assert!(site.run(&["join", "run"]).stderr.contains("no job runs in run"));
}

#[test]
fn faults_that_the_job_asks_for_happen_and_are_survived() {
    let site = Site::new();
    let inject = r#"fault.inject=[{step=20,rank=2,kind="kill"},{step=60,rank=0,kind="slow"},{step=90,rank=1,kind="corrupt"}]"#;
    let tcp = "strategy.exchange.transport=tcp";
    let report = assert_complete(&site, start(&site, 3, &["--set", inject, "--set", tcp]));
    assert_failure(&report, 2, "was killed by signal 9 (SIGKILL)");
    assert_failure(&report, 1, "do not start a frame");
    let struck: Vec<Value> =
        site.events("run").into_iter().filter(|event| event["event"] == "struck").collect();
    assert_eq!(struck.len(), 3, "{struck:?}");
    let full = r#"fault.inject=[{step=20,rank=0,kind="disk-full"}]"#;
    let ended = site.run(&["train", "--out", "full", "--set", full]);
    ended.assert_error(1, &["cannot write the checkpoint", "no storage space"]);
}

#[test]
fn fifty_faults_lose_no_row() {
    let site = Site::new();
    let ended =
        site.run(&["chaos", "--faults", "50", "--fault-seed", "133", "--workers", "4", "--json", "--quiet"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&outcome["finished"], &outcome["faults"]), (&Value::from(true), &Value::from(50)));
    assert_eq!(
        (&outcome["samples_missed"], &outcome["samples_repeated"]),
        (&Value::from(0), &Value::from(0))
    );
    assert!(outcome["max_steps_redone"].as_u64().unwrap() <= 1, "{outcome}");
    assert!(outcome["median_detect_s"].is_number() && outcome["median_recover_s"].is_number(), "{outcome}");
    for kind in ["livelock", "cut-one-way", "lie", "unreachable"] {
        assert!(outcome["kinds"][kind].is_u64(), "no {kind} among {}", outcome["kinds"]);
    }
    // Ten times what is promised: 5 s, and two deadlines of 2 s and 3 s.
    assert!(outcome["max_silence_s"].as_f64().unwrap() < 50.0, "{outcome}");
    assert!(outcome["max_stall_s"].as_f64().unwrap() < 70.0, "{outcome}");
    site.assert_empty();
}

#[test]
fn one_worker_then_four_then_two_take_the_same_steps_to_the_last_bit() {
    let site = Site::new();
    let job = ["--set", "train.reproducible=true", "--set", "train.epochs=50"];
    site.succeed(&[&["train", "--out", "fixed", "--quiet", "--workers", "3"], &job[..]].concat());
    let paced = ["--set", "engine.pace=10ms"];
    let grown = site.start(&[&["train", "--out", "grown", "--workers", "1"], &job[..], &paced[..]].concat());
    site.await_step("grown", 1);
    let newcomers: Vec<Process> = (0..3).map(|_| site.start(&["join", "grown"])).collect();
    let with = |members: Value| {
        harness::await_some(PATIENCE, &format!("no group of {members}"), || {
            let mut events = site.events("grown").into_iter().filter(|event| event["event"] == "regrouped");
            events.any(|event| event["members"] == members).then_some(())
        });
    };
    with(serde_json::json!([0, 1, 2, 3]));
    let mut leaving = newcomers.into_iter();
    for newcomer in leaving.by_ref().take(2) {
        newcomer.signal(Signal::SIGTERM);
        assert_eq!(newcomer.end(PATIENCE).code, Some(0));
    }
    let (grown, stayed) = (grown.end(PATIENCE), leaving.next().unwrap().end(PATIENCE));
    assert_eq!((grown.code, stayed.code), (Some(0), Some(0)), "{} {}", grown.stderr, stayed.stderr);
    let report = site.report("grown");
    assert_eq!(report["failures"].as_array().unwrap().len(), 0, "{}", report["failures"]);
    assert_eq!(worlds(&report).last(), Some(&2));
    let model = |run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    assert!(model("grown") == model("fixed"), "the models differ");
}

/// Some megabytes of state pass over tcp while the others train, and the model has the bits of a run that nobody came to.
#[test]
fn a_newcomer_takes_the_state_while_the_others_train() {
    let site = Site::new();
    let job = [
        "--set",
        r#"model.layers=["dense 768 relu", "dense 768 relu", "dense auto"]"#,
        "--set",
        "train.optimizer={kind='adam', lr=0.001}",
        "--set",
        "train.reproducible=true",
        // Long epochs: some steps are left of one whenever the newcomer comes.
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
    let newcomer = site.start(&["join", "grown"]);
    let caught_up = site.await_event("grown", "caught_up");
    let (grown, newcomer) = (grown.end(PATIENCE), newcomer.end(PATIENCE));
    assert_eq!((grown.code, newcomer.code), (Some(0), Some(0)), "{} {}", grown.stderr, newcomer.stderr);
    let regrouped = site.await_event("grown", "regrouped");
    assert_eq!((&regrouped["joined"][0], &caught_up["ranks"][0]), (&Value::from(2), &Value::from(2)));
    let [from, to] = [&regrouped, &caught_up].map(|event| event["step"].as_u64().unwrap());
    assert!(to > from && caught_up["steps"] == to - from, "{regrouped} {caught_up}");
    assert!(caught_up["bytes"].as_u64().unwrap() > 7 << 20, "{caught_up}");
    assert!(grown.stderr.contains("rank 2 took the job's state (7."), "{}", grown.stderr);
    let report = site.report("grown");
    let rows: Vec<u64> =
        report["ranks"].as_array().unwrap().iter().map(|rank| rank["rows"].as_u64().unwrap()).collect();
    assert!(rows.len() == 3 && rows[2] > 0 && rows[2] < rows[0], "{rows:?}");
    let model = |run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    assert!(model("grown") == model("fixed"), "the models differ");
}

/// `thalweg strategies` says of each preset whether its jobs go on without a rank: that is what happens, and `chaos`
/// refuses the others.
#[test]
fn the_listed_claims_about_lost_ranks_are_what_happens() {
    let site = Site::new();
    let listed = site.succeed(&["strategies", "--json"]).stdout;
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    for preset in &listed {
        let name = preset["name"].as_str().unwrap();
        let Some(elastic) = preset["elastic"].as_bool() else {
            assert_eq!(name, "single", "only one worker has nothing to say");
            continue;
        };
        let missing = preset["missing"].as_array().unwrap();
        let told = missing.iter().any(|what| what.as_str().unwrap().contains("the loss of a rank"));
        assert_eq!(told, !elastic, "{name}: {missing:?}");
        let kill = r#"fault.inject=[{ step = 5, rank = 1, kind = "kill" }]"#;
        let settings = ["--set", kill, "--set", "train.max_steps=30", "--workers", "2"];
        let ended = site.run(&[&["train", "--strategy", name, "--out", name][..], &settings].concat());
        assert_eq!(ended.code, Some(if elastic { 0 } else { 3 }), "{name}: {}", ended.stderr);
        assert_eq!(site.report(name)["failures"][0]["rank"], 1, "{name}");
        if !elastic {
            site.run(&["chaos", "--strategy", name])
                .assert_error(2, &["this job ends when a worker is lost"]);
        }
    }
    assert!(listed.iter().any(|preset| preset["elastic"] == false), "{listed:?}");
}
