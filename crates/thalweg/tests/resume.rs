//! A stopped or killed run resumes where it was: bit-identical with the same world size, the same rows with any.

mod harness;

use harness::{LIMIT, Process, Site, TRAINING_LIMIT, await_some};
use nix::sys::signal::{Signal, kill};

/// Steps of an epoch of the digits: 1438 rows, 64 a step.
const EPOCH: u64 = 23;

fn model(site: &Site, run: &str) -> Vec<u8> {
    std::fs::read(site.path(run).join("model.safetensors")).unwrap()
}

fn accuracy(site: &Site, run: &str) -> f64 {
    site.report(run)["final"]["accuracy"].as_f64().unwrap()
}

/// Asserts that every row was seen once per epoch, over all parts of a run.
#[track_caller]
fn assert_audit(site: &Site, run: &str, epochs: u64) {
    let report = site.report(run);
    let audit = report["audit"].as_array().unwrap();
    let mut seen = vec![0; epochs as usize];
    for part in audit {
        assert_eq!((&part["once"], &part["missed"]), (&part["expected"], &0.into()), "{part}");
        assert_eq!(part["repeated"], 0, "{part}");
        seen[part["epoch"].as_u64().unwrap() as usize] += part["once"].as_u64().unwrap();
    }
    assert_eq!(seen, vec![1438; epochs as usize]);
}

#[test]
fn stopped_half_way_and_resumed_is_the_uninterrupted_run_bit_by_bit() {
    let site = Site::new();
    let job = ["train", "--quiet", "--set", "train.epochs=20"];
    site.succeed(&[&job[..], &["--out", "whole"]].concat());
    // In the middle of an epoch, and of the time between two checkpoints.
    site.succeed(&[&job[..], &["--out", "halves", "--set", "train.max_steps=210"]].concat());
    assert!(model(&site, "halves") != model(&site, "whole"));
    site.succeed(&["resume", "halves", "--quiet", "--set", "train.max_steps=460"]);
    site.succeed(&[&job[..], &["--out", "bounded", "--set", "train.max_steps=460"]].concat());
    assert!(model(&site, "halves") == model(&site, "bounded"), "the models differ");
    assert_eq!(site.report("halves")["final"], site.report("whole")["final"]);
    assert_eq!(site.report("halves")["steps"], 20 * EPOCH);
    assert_audit(&site, "halves", 20);
}

/// Far more epochs than any of these tests waits for.
const ENDLESS: &str = "train.epochs=1000000";

/// The end of a run that stopped at some step: an epoch that is not yet over.
fn an_end_after(step: u64) -> (u64, String) {
    let epochs = step / EPOCH + 2;
    (epochs, format!("train.epochs={epochs}"))
}

#[test]
fn an_interrupted_run_resumed_is_the_uninterrupted_run_bit_by_bit() {
    let site = Site::new();
    let job = ["train", "--quiet", "--resume", "--workers", "3"];
    let first = site.start(&[&job[..], &["--out", "parts", "--set", ENDLESS]].concat());
    site.await_step("parts", 1);
    first.signal(Signal::SIGINT);
    assert_eq!(first.end(LIMIT).code, Some(130));
    let (epochs, end) = an_end_after(site.checkpoints("parts")[0]);
    for run in ["parts", "whole"] {
        site.succeed(&[&job[..], &["--out", run, "--set", &end]].concat());
    }
    assert!(model(&site, "parts") == model(&site, "whole"), "the models differ");
    assert_audit(&site, "parts", epochs);
}

#[test]
fn another_world_size_continues_with_the_same_rows_to_the_same_end() {
    let site = Site::new();
    let job = ["train", "--quiet", "--workers", "2"];
    site.succeed(&[&job[..], &["--out", "whole"]].concat());
    site.succeed(&[&job[..], &["--out", "run", "--set", "train.max_steps=345"]].concat());
    site.succeed(&["resume", "run", "--quiet", "--workers", "3", "--set", "train.max_steps=690"]);
    assert_audit(&site, "run", 30);
    let difference = accuracy(&site, "run") - accuracy(&site, "whole");
    assert!(difference.abs() <= 0.003, "accuracy differs by {difference}");
    let world = &site.report("run")["world"];
    assert_eq!(*world, serde_json::json!([{ "step": 0, "workers": 2 }, { "step": 345, "workers": 3 }]));
}

#[test]
fn a_killed_run_is_resumed_to_its_end() {
    let site = Site::new();
    let often = ["--quiet", "--set", "fault.checkpoint_every=50", "--set", "fault.elastic=false"];
    let first = site.start(&[&["train", "--out", "run", "--set", ENDLESS], &often[..]].concat());
    site.await_event("run", "checkpoint");
    site.signal_worker(1, Signal::SIGKILL);
    assert_eq!(first.end(LIMIT).code, Some(3));
    let (epochs, end) = an_end_after(site.checkpoints("run")[0]);
    site.succeed(&["resume", "run", "--quiet", "--set", &end]);
    let report = site.report("run");
    assert_eq!((&report["outcome"], &report["steps"]), (&"completed".into(), &(epochs * EPOCH).into()));
    site.succeed(&[&["train", "--out", "whole", "--set", &end], &often[..]].concat());
    assert!(model(&site, "run") == model(&site, "whole"), "the models differ");
}

/// Kills all processes of a job at once, after a checkpoint in its fourth epoch or later.
fn kill_whole_job(site: &Site, job: Process) -> u64 {
    let saved = await_some(TRAINING_LIMIT, "no checkpoint in the fourth epoch", || {
        let events = site.events("run");
        let late = |event: &&serde_json::Value| event["step"].as_u64() > Some(3 * EPOCH);
        let written = |event: &&serde_json::Value| event["event"] == "checkpoint";
        events.iter().filter(written).find(late).and_then(|event| event["step"].as_u64())
    });
    // All are stopped before the first is killed: none detects the death of another, so no membership change is
    // recorded.
    let processes = site.processes();
    for (process, _) in &processes {
        kill(*process, Signal::SIGSTOP).unwrap();
    }
    for (process, _) in &processes {
        let stopped = || (harness::state(*process) == Some('T')).then_some(());
        await_some(LIMIT, "it does not stop", stopped);
    }
    for (process, _) in &processes {
        kill(*process, Signal::SIGKILL).unwrap();
    }
    job.end(LIMIT);
    site.await_empty();
    saved
}

#[test]
fn a_run_that_was_killed_as_a_whole_keeps_its_epochs() {
    let site = Site::new();
    let often = ["--workers", "2", "--set", "fault.checkpoint_every=10", "--set", "train.epochs=1000000"];
    let first = site.start(&[&["train", "--out", "run", "--quiet"], &often[..]].concat());
    kill_whole_job(&site, first);
    assert!(!site.path("run/report.json").exists(), "nothing was left to write it");
    let (epochs, end) = an_end_after(site.checkpoints("run")[0]);
    let ended = site.succeed(&["resume", "run", "--set", &end]);
    assert_audit(&site, "run", epochs);
    let report = site.report("run");
    let reported: Vec<u64> =
        report["epochs"].as_array().unwrap().iter().map(|epoch| epoch["epoch"].as_u64().unwrap()).collect();
    assert_eq!(reported, (0..epochs).collect::<Vec<_>>());
    let summary = format!("for {epochs} epochs, {} steps", epochs * EPOCH);
    assert!(ended.stderr.replace(',', "").contains(&summary.replace(',', "")), "{}", ended.stderr);
    let world = report["world"].as_array().unwrap();
    assert_eq!((world.len(), &world[0]["step"]), (2, &0.into()), "{world:?}");
}

#[test]
fn a_run_whose_report_is_older_than_its_events_keeps_its_epochs() {
    let site = Site::new();
    let run = ["--quiet", "--set", "fault.checkpoint_every=10"];
    site.succeed(&[&["train", "--out", "run", "--set", "train.epochs=2"], &run[..]].concat());
    let second = site.start(&[&["resume", "run", "--set", "train.epochs=1000000"], &run[..]].concat());
    kill_whole_job(&site, second);
    assert_eq!(site.report("run")["steps"], 2 * EPOCH, "the report of the first run");
    let (epochs, end) = an_end_after(site.checkpoints("run")[0]);
    site.succeed(&["resume", "run", "--quiet", "--set", &end]);
    assert_audit(&site, "run", epochs);
}

#[test]
fn a_run_whose_rank_0_was_killed_under_another_launcher_keeps_its_epochs() {
    let site = Site::new();
    let job = ["train", "--quiet", "--out", "run", "--set", ENDLESS, "--set", "fault.checkpoint_every=10"];
    let port = harness::free_port();
    let mut ranks: Vec<Process> = (0..2).map(|rank| Process::start(site.rank(rank, 2, port, &job))).collect();
    kill_whole_job(&site, ranks.remove(0));
    let (epochs, end) = an_end_after(site.checkpoints("run")[0]);
    site.succeed(&["resume", "run", "--quiet", "--workers", "2", "--set", &end]);
    assert_audit(&site, "run", epochs);
}

#[test]
fn without_a_checkpoint_resume_refuses_and_train_starts_from_the_beginning() {
    let site = Site::new();
    let job = ["train", "--out", "run", "--set", "train.epochs=2", "--set", "fault.checkpoint_every=0"];
    site.succeed(&[&job[..], &["--quiet"]].concat());
    std::fs::remove_dir_all(site.path("run/checkpoints")).unwrap();
    let ended = site.run(&["resume", "run"]);
    ended.assert_error(2, &["run holds no checkpoint to resume from"]);
    ended.assert_advice("`thalweg train run/job.toml` trains anew in a folder of its own");
    ended.assert_advice("with `--out run --resume` it replaces the finished model.safetensors");
    assert_eq!(site.report("run")["outcome"], "completed", "all is as it was");

    let fresh = "run holds no checkpoint: training starts from the beginning and replaces model.safetensors";
    let ended = site.succeed(&["train", "run/job.toml", "--out", "run", "--resume"]);
    assert!(ended.stderr.contains(fresh), "{}", ended.stderr);
    let notices = site.events("run").into_iter().filter(|event| event["message"] == fresh).count();
    assert_eq!(notices, 1);
    let ended = site.succeed(&["train", "run/job.toml", "--out", "run", "--resume"]);
    assert!(!ended.stderr.contains(fresh), "{}", ended.stderr);
    assert!(ended.stderr.contains("already trained for 2 epochs; continue with --set train.epochs=3"));

    std::fs::remove_dir_all(site.path("run/checkpoints")).unwrap();
    std::fs::remove_file(site.path("run/model.safetensors")).unwrap();
    let ended = site.run(&["resume", "run"]);
    ended.assert_advice("`thalweg train run/job.toml --out run --resume` starts it from the beginning");
}

#[test]
fn the_same_command_starts_resumes_and_finds_no_steps_left() {
    let site = Site::new();
    let command = ["train", "--quiet", "--resume", "--out", "run", "--set", "train.epochs=2"];
    site.succeed(&command);
    let first = model(&site, "run");
    let report = site.report("run");
    assert_eq!((&report["outcome"], &report["steps"]), (&"completed".into(), &(2 * EPOCH).into()));
    let ended = site.succeed(&command);
    assert_eq!(ended.stderr, "warning: already trained for 2 epochs; continue with --set train.epochs=3\n");
    assert!(model(&site, "run") == first);
    assert_eq!(site.report("run"), report, "the times are those of the training");
    // Nor does a resume that asks for less change what the run was asked for.
    let job = std::fs::read(site.path("run/job.toml")).unwrap();
    site.succeed(&["resume", "run", "--epochs", "1"]);
    assert!(std::fs::read(site.path("run/job.toml")).unwrap() == job);
    // Without --out: the newest run of that name, or a first one.
    let unnamed = ["train", "--quiet", "--resume", "--set", "train.epochs=1"];
    site.succeed(&unnamed);
    site.succeed(&unnamed);
    assert!(site.path("runs/digits-1").exists() && !site.path("runs/digits-2").exists());
    let ended = site.succeed(&["train", "--resume", "--set", "train.epochs=2"]);
    let expected = format!("going on with runs/digits-1 after step {EPOCH}\n");
    assert!(ended.stderr.starts_with(&expected), "{}", ended.stderr);
}

/// A run of 250 steps with checkpoints at 100, 200 and 250.
fn finished_run() -> Site {
    let site = Site::new();
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "train.max_steps=250"]);
    assert_eq!(site.checkpoints("run"), [250, 200, 100]);
    site
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_newest_intact_one_is_used() {
    let site = finished_run();
    let damages: [fn(&mut Vec<u8>); 3] =
        [|bytes| bytes[60_000] ^= 1, |bytes| bytes.truncate(60_000), |bytes| bytes.clear()];
    for (damage, (newest, whole)) in damages.into_iter().zip([(250, 200), (300, 200), (350, 300)]) {
        assert_eq!(site.checkpoints("run")[0], newest);
        let name = format!("run/checkpoints/step-{newest:09}.safetensors");
        let mut bytes = std::fs::read(site.path(&name)).unwrap();
        damage(&mut bytes);
        std::fs::write(site.path(&name), bytes).unwrap();
        let end = format!("train.max_steps={}", newest + 50);
        let ended = site.succeed(&["resume", "run", "--quiet", "--set", &end]);
        for part in [format!("{name} is damaged"), format!("training goes on from step {whole}")] {
            assert!(ended.stderr.contains(&part), "{part:?} is missing in {}", ended.stderr);
        }
        assert!(site.path(&format!("{name}.damaged")).exists());
    }
    site.succeed(&["train", "--quiet", "--out", "whole", "--set", "train.max_steps=400"]);
    assert!(model(&site, "run") == model(&site, "whole"), "the models differ");
}

#[test]
fn without_an_intact_checkpoint_nothing_starts() {
    let site = finished_run();
    for step in site.checkpoints("run") {
        site.write(&format!("run/checkpoints/step-{step:09}.safetensors"), b"");
    }
    let ended = site.run(&["resume", "run", "--set", "train.max_steps=300"]);
    ended.assert_error(
        2,
        &["no checkpoint can be loaded", "run/checkpoints/step-000000250.safetensors is damaged"],
    );
    ended.assert_advice("--overwrite");
    assert_eq!(site.checkpoints("run"), [250, 200, 100], "all is as it was");
    assert_eq!(site.report("run")["outcome"], "completed", "nothing was started");
}

#[test]
fn a_run_resumes_with_another_strategy_and_back() {
    let site = finished_run();
    let mut steps = 250;
    for strategy in [
        "parameter-server",
        "gosgd",
        "easgd",
        "block-momentum",
        "single",
        "diloco",
        "horovod",
        "sparknet",
        "block-momentum",
        "diloco",
        "allreduce",
    ] {
        steps += 10;
        let end = format!("train.max_steps={steps}");
        site.succeed(&["resume", "run", "--quiet", "--strategy", strategy, "--set", &end]);
        let report = site.report("run");
        assert_eq!((&report["steps"], &report["first_step"]), (&steps.into(), &(steps - 10).into()));
        assert_eq!(report["job"]["strategy.preset"], strategy);
        assert_eq!(
            report["final"]["accuracy"].as_f64().map(|accuracy| accuracy > 0.9),
            Some(true),
            "{strategy}"
        );
    }
    let ended = site.run(&["resume", "run", "--strategy", "single", "--workers", "3"]);
    ended.assert_error(2, &["engine.workers = 3 conflicts with preset `single`"]);
}

#[test]
fn keys_that_determine_the_rows_cannot_change() {
    let site = finished_run();
    let job = std::fs::read(site.path("run/job.toml")).unwrap();
    for (assignment, message) in [
        ("train.seed=9", "train.seed was 7, now it is 9"),
        ("train.global_batch=32", "train.global_batch was 64, now it is 32"),
        ("data.validation=0.5", "data.validation was "),
        (r#"model.layers=["dense auto"]"#, "tensor `layers.0.bias` is [128], but the model has [10]"),
        ("train.optimizer.kind=sgd", "written with the optimizer `adam`"),
    ] {
        let ended = site.run(&["resume", "run", "--set", assignment]);
        ended.assert_error(2, &[message]);
        ended.assert_advice("--overwrite");
        assert_eq!(std::fs::read(site.path("run/job.toml")).unwrap(), job, "{assignment} left its traces");
    }
    let ended = site.run(&["resume", "elsewhere"]);
    ended.assert_error(2, &["elsewhere holds no run"]);
    ended.assert_advice("thalweg train");
}

#[test]
fn a_run_does_not_resume_with_other_data() {
    let site = Site::new();
    let rows: String = (0..200).map(|row| format!("{},{},{}\n", row % 89, row % 7, row % 2)).collect();
    site.write("rows.csv", &rows);
    let job = ["train", "--quiet", "--out", "run", "--set", "data.source=rows.csv"];
    site.succeed(&[&job[..], &["--set", "train.max_steps=10"]].concat());
    site.write("rows.csv", rows.replacen("\n5,5,1\n", "\n5,6,1\n", 1));
    let ended = site.run(&["resume", "run", "--set", "train.max_steps=20"]);
    ended.assert_error(
        2,
        &["the data has changed since run/checkpoints/step-000000010.safetensors was written"],
    );
    ended.assert_advice("put the old data back");
    std::fs::remove_file(site.path("rows.csv")).unwrap();
    site.write("moved.csv", &rows);
    let ended = site.run(&["resume", "run", "--set", "train.max_steps=20"]);
    ended.assert_error(2, &["cannot read rows.csv: there is no such file"]);
    ended.assert_advice("if the data has moved, --set data.source=PATH gives its new path");
    let moved = ["--set", "train.max_steps=20", "--set", "data.source=moved.csv"];
    site.succeed(&[&["resume", "run", "--quiet"], &moved[..]].concat());
}

#[test]
fn ranks_under_another_launcher_resume() {
    let site = Site::new();
    let job = ["train", "--quiet", "--resume", "--out", "run"];
    for steps in ["train.max_steps=40", "train.max_steps=80"] {
        let port = harness::free_port();
        let arguments = [&job[..], &["--set", steps]].concat();
        let ranks: Vec<Process> =
            (0..2).map(|rank| Process::start(site.rank(rank, 2, port, &arguments))).collect();
        for rank in ranks {
            let ended = rank.end(harness::TRAINING_LIMIT);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
    }
    site.succeed(&["train", "--quiet", "--out", "whole", "--set", "train.max_steps=80"]);
    assert!(model(&site, "run") == model(&site, "whole"), "the models differ");
}
