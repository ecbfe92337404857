//! Elastic jobs that lose ranks: the others continue, no row is missed or seen twice, and the report names the rank.

mod harness;

use harness::elastic::{LONG, assert_complete, assert_failure, start, start_short, worlds};
use harness::{Process, Site, TRAINING_LIMIT};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::Duration;

fn kill(ranks: &[usize], more: &[&str]) -> Value {
    let site = Site::new();
    let job = start_short(&site, 3, more);
    for rank in ranks {
        site.signal_worker(*rank, Signal::SIGKILL);
    }
    let report = assert_complete(&site, job);
    ranks.iter().for_each(|rank| assert_failure(&report, *rank, "was killed by signal 9 (SIGKILL)"));
    // The report keeps the work of lost ranks beside that of the others.
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

/// With `train.reproducible` a run that lost a worker gives the bits of a run on one worker.
#[test]
fn a_reproducible_run_writes_the_same_file_whichever_rank_is_lost() {
    let on = ["--set", "train.reproducible=true", "--set", "train.epochs=12"];
    let file = |site: &Site, run: &str| std::fs::read(site.path(run).join("model.safetensors")).unwrap();
    let whole = Site::new();
    let arguments = [&LONG[..1], &["--out", "alone", "--workers", "1"], &LONG[3..], &on[..]].concat();
    whole.succeed(&arguments);
    for transport in ["strategy.exchange.transport=auto", "strategy.exchange.transport=tcp"] {
        let site = Site::new();
        let job = start_short(&site, 3, &[&on[..], &["--set", transport]].concat());
        site.signal_worker(1, Signal::SIGKILL);
        let ended = job.end(TRAINING_LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(worlds(&site.report("run")), [3, 2], "{transport}");
        assert!(file(&site, "run") == file(&whole, "alone"), "{transport}: another file");
        assert_eq!(site.report("run")["epochs"], whole.report("alone")["epochs"], "{transport}");
    }
}

/// A worker reports an impossible generation: it is excluded and aborted, and the job continues.
#[test]
fn a_worker_with_false_reports_is_excluded_and_the_others_continue() {
    for rank in [0, 1] {
        let site = Site::new();
        let lie = format!("fault.inject=[{{step=34,rank={rank},kind=\"lie\"}}]");
        let report = assert_complete(&site, start_short(&site, 3, &["--set", &lie]));
        assert_failure(&report, rank, "broke the protocol: it reports generation 4294967295");
        assert_eq!(worlds(&report), [3, 2]);
    }
}

/// A member sends intact frames that do not belong there: of another operation or group, with a length that swallows the
/// next frames, or the last one of its link.
#[test]
fn a_worker_that_forges_frames_is_named_and_the_others_continue() {
    // Over the ring, rank 1 sends to the same rank in every step; buckets admit frames of other operations.
    let buckets = ["--set", "strategy.exchange.bucket=tensor", "--set", "strategy.exchange.algorithm=ring"];
    for (step, transport, more) in
        (30..34).flat_map(|step| [(step, "tcp", &[][..]), (step, "tcp", &buckets), (step, "shm", &buckets)])
    {
        let site = Site::new();
        let lie = format!("fault.inject=[{{step={step},rank=1,kind=\"lie\"}}]");
        let transport = format!("strategy.exchange.transport={transport}");
        let arguments = [&["--set", &transport, "--set", &lie], more].concat();
        let report = assert_complete(&site, start_short(&site, 3, &arguments));
        assert_eq!(worlds(&report), [3, 2], "{step}, {transport} {more:?}: {report}");
        assert_eq!(report["failures"][0]["rank"], 1, "{step}, {transport} {more:?}: {report}");
        if step == 32 && !more.is_empty() {
            // The false length is on the frame of a message, and no strategy sends any here.
            assert_failure(&report, 1, "is in another operation");
        }
    }
}

#[test]
fn two_workers_may_be_killed_at_once() {
    for ranks in [[0, 1], [1, 2], [0, 2]] {
        assert_eq!(worlds(&kill(&ranks, &[])).last(), Some(&1));
    }
}

#[test]
fn a_worker_may_be_killed_over_tcp() {
    for rank in [0, 2] {
        assert_eq!(worlds(&kill(&[rank], &["--set", "strategy.exchange.transport=tcp"])), [3, 2]);
    }
}

/// Buckets in flight at the failure are dropped; the step is repeated.
#[test]
fn a_worker_may_be_killed_during_back_propagation() {
    let buckets = ["--set", "strategy.exchange.transport=tcp", "--set", "strategy.exchange.bucket=tensor"];
    for rank in [0, 1] {
        let site = Site::new();
        let job = start_short(&site, 3, &buckets);
        site.signal_worker(rank, Signal::SIGKILL);
        let report = assert_complete(&site, job);
        assert_eq!(worlds(&report), [3, 2]);
        // Either cause is right: its exit or its missing heartbeat may be detected first.
        assert_failure(&report, rank, "");
        assert_eq!(report["buckets"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn a_stopped_worker_is_excluded_for_good() {
    for rank in [0, 1] {
        let site = Site::new();
        let job = start_short(&site, 3, &["--set", "fault.step_deadline=2s"]);
        site.signal_worker(rank, Signal::SIGSTOP);
        let report = assert_complete(&site, job);
        assert_failure(&report, rank, "has been silent for");
        assert_eq!(worlds(&report), [3, 2]);
    }
}

/// Rank 0 dies, and the program of the rank that takes its role over hangs, while its coordinator runs: the process is ended,
/// and the next rank takes the role.
#[test]
fn a_successor_of_the_coordinator_that_hangs_is_ended_and_named() {
    let faults = r#"fault.inject=[{step=34,rank=0,kind="kill"},{step=34,rank=1,kind="livelock"}]"#;
    for (workers, transport) in [(3, "shm"), (3, "tcp"), (4, "tcp")] {
        let site = Site::new();
        let transport = format!("strategy.exchange.transport={transport}");
        let more = ["--set", "fault.step_deadline=2s", "--set", faults, "--set", &transport];
        let report = assert_complete(&site, start_short(&site, workers, &more));
        assert_failure(&report, 0, "was killed by signal 9 (SIGKILL)");
        // It hangs before it has connected to its own coordinator, or in the next group.
        assert_failure(&report, 1, "");
        assert_eq!(worlds(&report).last(), Some(&(workers as u64 - 2)), "{transport}: {report}");
    }
}

#[test]
fn a_lost_worker_is_replaced_with_fault_respawn() {
    for rank in [0, 1] {
        let site = Site::new();
        let job = start(&site, 2, &["--set", "fault.respawn=true"]);
        site.signal_worker(rank, Signal::SIGKILL);
        let report = assert_complete(&site, job);
        assert_failure(&report, rank, "was killed by signal 9 (SIGKILL)");
        assert_eq!(worlds(&report), [2, 1, 2]);
    }
}

/// The rank that takes the place of a killed one reaches steps after the fault's, not the fault.
#[test]
fn an_injected_fault_does_not_strike_the_replacement() {
    let site = Site::new();
    let kill = "fault.inject=[{step=30, rank=1, kind='kill'}]";
    let job = start(&site, 2, &["--set", "fault.respawn=true", "--set", kill]);
    let report = assert_complete(&site, job);
    assert_failure(&report, 1, "was killed by signal 9 (SIGKILL)");
    assert_eq!(worlds(&report), [2, 1, 2]);
}

/// Without a rank that has the state the job ends, although replacements were started.
#[test]
fn the_loss_of_all_workers_ends_the_job_despite_respawn() {
    let site = Site::new();
    let job = start(&site, 2, &["--set", "fault.respawn=true"]);
    let workers = [site.worker(0), site.worker(1)];
    for worker in workers {
        nix::sys::signal::kill(worker, Signal::SIGKILL).unwrap();
    }
    let ended = job.end(TRAINING_LIMIT);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("was killed by signal 9 (SIGKILL)"), "{}", ended.stderr);
    site.assert_empty();
}

/// Another version is installed while a job runs: its replacements run the version of the job.
#[test]
fn a_replacement_is_the_same_program_though_its_file_is_not() {
    let site = Site::new();
    let (built, own) = (env!("CARGO_BIN_EXE_thalweg"), site.path("thalweg"));
    // ETXTBSY: a forked child of another test may hold the copy open for writing for a moment.
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
fn a_worker_killed_before_the_rendezvous_is_left_out() {
    for rank in [0, 1] {
        let site = Site::new();
        let job = site.start(&[&LONG[..], &["--workers", "3"]].concat());
        site.signal_worker(rank, Signal::SIGKILL);
        assert_complete(&site, job);
    }
}

#[test]
fn too_few_workers_time_out_with_an_error() {
    let site = Site::new();
    let job = start(&site, 2, &["--set", "fault.min_workers=2", "--set", "fault.join_deadline=2s"]);
    site.signal_worker(1, Signal::SIGKILL);
    let ended = job.end(TRAINING_LIMIT);
    ended.assert_error(3, &["rank 1 ", "fault.min_workers is 2", "none joined within 2 s"]);
    site.assert_empty();
}

#[test]
fn injected_faults_are_survived() {
    let site = Site::new();
    let inject = r#"fault.inject=[{step=20,rank=2,kind="kill"},{step=60,rank=0,kind="slow"},{step=90,rank=1,kind="corrupt"}]"#;
    let tcp = "strategy.exchange.transport=tcp";
    let report = assert_complete(&site, start_short(&site, 3, &["--set", inject, "--set", tcp]));
    assert_failure(&report, 2, "was killed by signal 9 (SIGKILL)");
    assert_failure(&report, 1, "do not start a frame");
    let struck: Vec<Value> =
        site.events("run").into_iter().filter(|event| event["event"] == "struck").collect();
    assert_eq!(struck.len(), 3, "{struck:?}");
    let full = r#"fault.inject=[{step=20,rank=0,kind="disk-full"}]"#;
    let ended = site.run(&["train", "--out", "full", "--set", full]);
    ended.assert_error(1, &["cannot write the checkpoint", "no storage space"]);
}

/// Each fault may take two deadlines of 2 s and 3 s, and much longer on a busy machine.
const CHAOS_LIMIT: Duration = Duration::from_secs(1200);

#[test]
fn fifty_faults_lose_no_row() {
    let site = Site::new();
    let run = ["chaos", "--faults", "50", "--fault-seed", "133", "--workers", "4", "--json", "--quiet"];
    let ended = site.start(&run).end(CHAOS_LIMIT);
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
    // Ten times the documented limits: 5 s, and two deadlines of 2 s and 3 s.
    assert!(outcome["max_silence_s"].as_f64().unwrap() < 50.0, "{outcome}");
    assert!(outcome["max_stall_s"].as_f64().unwrap() < 70.0, "{outcome}");
    site.assert_empty();
}

/// Faults on four workers with this strategy: no row is lost or repeated.
fn assert_survives_faults(strategy: &str, faults: u64, max_steps_redone: u64) {
    let site = Site::new();
    let count = faults.to_string();
    let run = ["chaos", "--strategy", strategy, "--faults", &count, "--fault-seed", "2", "--workers", "4"];
    let ended = site.start(&[&run[..], &["--json", "--quiet"]].concat()).end(CHAOS_LIMIT);
    assert_eq!(ended.code, Some(0), "{strategy}: {}", ended.stderr);
    let outcome: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&outcome["finished"], &outcome["faults"]), (&Value::from(true), &Value::from(faults)));
    assert_eq!(
        (&outcome["samples_missed"], &outcome["samples_repeated"]),
        (&Value::from(0), &Value::from(0)),
        "{strategy}"
    );
    assert!(outcome["max_steps_redone"].as_u64().unwrap() <= max_steps_redone, "{outcome}");
    assert!(outcome["units_committed"].as_u64().unwrap() >= faults, "{outcome}");
    site.assert_empty();
}

#[test]
fn faults_in_rounds_of_local_training_lose_no_row() {
    // A round is 10 steps.
    assert_survives_faults("sparknet", 10, 10);
}

#[test]
fn faults_among_workers_with_models_of_their_own_lose_no_row() {
    assert_survives_faults("dpsgd", 8, 1);
    assert_survives_faults("gosgd", 8, 0);
}

/// `thalweg strategies` lists whether jobs of a preset survive the loss of a rank; `chaos` refuses those that do not.
const WITH_SERVER: [(&str, &str); 7] = [
    ("parameter-server", "bsp"),
    ("parameter-server", "async"),
    ("parameter-server", "ssp"),
    ("petuum", "essp"),
    ("tensorflow-ps", "quorum"),
    ("easgd", "async"),
    ("easgd", "bsp"),
];

#[test]
fn a_lost_worker_of_a_server_is_survived() {
    for (strategy, scheduling) in WITH_SERVER {
        for rank in [0, 2] {
            let site = Site::new();
            let scheduling = format!("strategy.scheduling.kind={scheduling}");
            let job = start_short(&site, 3, &["--strategy", strategy, "--set", &scheduling]);
            site.signal_worker(rank, Signal::SIGKILL);
            let report = assert_complete(&site, job);
            let failure = &report["failures"][0];
            assert_eq!(failure["rank"], rank, "{strategy}, {scheduling}: {failure}");
            assert_eq!(failure["cause"], "was killed by signal 9 (SIGKILL)", "{strategy}, {scheduling}");
            assert_eq!(worlds(&report), [3, 2], "{strategy}, {scheduling}");
        }
    }
}

#[test]
fn a_lost_server_ends_the_job_and_is_named() {
    for (strategy, scheduling) in WITH_SERVER {
        let site = Site::new();
        let scheduling = format!("strategy.scheduling.kind={scheduling}");
        let job = start_short(&site, 3, &["--strategy", strategy, "--set", &scheduling]);
        site.signal_worker(3, Signal::SIGKILL);
        let ended = job.end(TRAINING_LIMIT);
        // The launcher may have noticed it first, if all others ended before the coordinator told it.
        ended.assert_error(3, &["rank 3"]);
        ended.assert_advice("thalweg resume");
        assert_eq!(site.report("run")["error"]["culprit"]["rank"], 3, "{strategy}, {scheduling}");
    }
}

#[test]
fn every_preset_behaves_as_listed_when_a_rank_is_lost() {
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
        let listed = missing.iter().any(|what| what.as_str().unwrap().contains("a lost rank"));
        assert_eq!(listed, !elastic, "{name}: {missing:?}");
        let kill = r#"fault.inject=[{ step = 5, rank = 1, kind = "kill" }]"#;
        // Of leases a worker gets some only while the others compute: at this pace both work from the start.
        let pace = ["--set", "engine.pace=5ms", "--set", "train.max_steps=100"];
        let settings = [&["--set", kill, "--workers", "2"][..], &pace].concat();
        let ended = site.run(&[&["train", "--strategy", name, "--out", name][..], &settings].concat());
        assert_eq!(ended.code, Some(if elastic { 0 } else { 3 }), "{name}: {}", ended.stderr);
        assert_eq!(site.report(name)["failures"][0]["rank"], 1, "{name}");
    }
    let refused = site.run(&["chaos", "--set", "fault.elastic=false"]);
    refused.assert_error(2, &["this job ends when a worker is lost"]);
    refused.assert_advice("`sparknet`");
}
