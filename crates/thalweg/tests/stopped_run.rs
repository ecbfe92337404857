//! Commands take the newest checkpoint of a stopped run as its model, and name the kind of a file they cannot take.

mod harness;

use harness::{LIMIT, Site};
use nix::sys::signal::Signal;

#[test]
fn a_stopped_run_is_evaluated_predicted_exported_and_inspected() {
    let site = Site::new();
    let job = site.start(&["train", "--out", "run", "--set", "train.epochs=1000000"]);
    site.await_step("run", 1);
    job.signal(Signal::SIGINT);
    assert_eq!(job.end(LIMIT).code, Some(130));
    assert!(!site.path("run/model.safetensors").exists());
    let step = site.checkpoints("run").into_iter().max().unwrap();
    site.write("rows.csv", vec!["3"; 64].join(",") + "\n");
    let file = format!("run/checkpoints/step-{step:09}.safetensors");
    for model in ["run", &file] {
        for command in [
            &["evaluate", model][..],
            &["predict", model, "rows.csv"],
            &["export", model, "out.onnx", "--force"],
            &["inspect", model],
        ] {
            let ended = site.succeed(command);
            assert!(
                ended.stderr.contains(&format!("using the checkpoint of step {step}\n")),
                "{command:?}: {}",
                ended.stderr
            );
        }
    }
}

#[test]
fn a_checkpoint_predicts_as_the_model_of_its_step() {
    let site = Site::new();
    let often = ["--set", "train.epochs=2", "--set", "fault.checkpoint_every=10"];
    site.succeed(&[&["train", "-q", "--out", "run"], &often[..]].concat());
    let step = site.checkpoints("run").into_iter().max().unwrap();
    assert_eq!(site.report("run")["steps"], step);
    let model = site.succeed(&["evaluate", "run"]);
    assert_eq!(model.stderr, "", "a finished model needs no word");
    let file = format!("run/checkpoints/step-{step:09}.safetensors");
    assert_eq!(site.succeed(&["evaluate", &file]).stdout, model.stdout);
    std::fs::remove_file(site.path("run/model.safetensors")).unwrap();
    assert_eq!(site.succeed(&["evaluate", "run"]).stdout, model.stdout);
    // A damaged one is named and skipped.
    site.write(&file, "cut short");
    let output = site.succeed(&["evaluate", "run"]).stderr;
    let (damage, older) = output.split_once('\n').unwrap();
    assert!(damage.starts_with("warning: ") && damage.contains(&format!("{file} is damaged")), "{output}");
    assert!(
        older.starts_with("using the checkpoint of step ") && !older.contains(&format!("step {step}\n")),
        "{output}"
    );
}

#[test]
fn a_run_resumed_and_stopped_predicts_with_its_newest_checkpoint() {
    let site = Site::new();
    site.succeed(&["train", "-q", "--out", "run", "--set", "train.epochs=1"]);
    let finished = site.report("run")["steps"].as_u64().unwrap();
    let first = site.succeed(&["evaluate", "run"]);
    assert_eq!(first.stderr, "");
    let job = site.start(&["resume", "run", "--set", "train.epochs=1000000"]);
    site.await_step("run", finished + 20);
    job.signal(Signal::SIGINT);
    assert_eq!(job.end(LIMIT).code, Some(130));
    let step = site.checkpoints("run").into_iter().max().unwrap();
    assert!(step > finished, "{step}");
    let using = format!(
        "using the checkpoint of step {step}, which is newer than model.safetensors (step {finished})\n"
    );
    for command in [&["evaluate", "run"][..], &["export", "run", "out.onnx"], &["inspect", "run"]] {
        let output = site.succeed(command).stderr;
        assert!(output.contains(&using), "{command:?}: {output}");
    }
    let file = format!("run/checkpoints/step-{step:09}.safetensors");
    let newest = site.succeed(&["evaluate", "run"]).stdout;
    assert_ne!(newest, first.stdout);
    assert_eq!(site.succeed(&["evaluate", &file]).stdout, newest);
    // The file itself is still the model of its step.
    let model = site.succeed(&["evaluate", "run/model.safetensors"]);
    assert_eq!((model.stderr.as_str(), &model.stdout), ("", &first.stdout));
    // Without an intact checkpoint the finished model is used, with a warning about the damage.
    for step in site.checkpoints("run") {
        site.write(&format!("run/checkpoints/step-{step:09}.safetensors"), "cut short");
    }
    let model = site.succeed(&["evaluate", "run"]);
    assert_eq!(model.stdout, first.stdout);
    assert!(model.stderr.starts_with("warning: ") && model.stderr.contains(&file), "{}", model.stderr);
    assert!(model.stderr.ends_with(&format!("using the model of step {finished}\n")), "{}", model.stderr);
}

#[test]
fn the_kind_of_a_wrong_file_is_named() {
    let site = Site::new();
    site.succeed(&["train", "-q", "--out", "run", "--set", "train.max_steps=3"]);
    site.write("rows.csv", "1,2\n");
    std::fs::create_dir(site.path("empty")).unwrap();
    let checkpoint = "run/checkpoints/step-000000003.safetensors";
    let refused = |command: &[&str], error: &str, advice: &str| {
        let ended = site.run(command);
        ended.assert_error(2, &[error]);
        ended.assert_advice(advice);
    };
    refused(
        &["evaluate", "run/job.toml"],
        "run/job.toml is a job, not a model",
        "`thalweg train run/job.toml`",
    );
    refused(
        &["predict", "run/report.json"],
        "is the report of a run, not a model",
        "the folder of the run: run",
    );
    refused(
        &["export", "run/events.jsonl"],
        "is the events of a run, not a model",
        "the folder of the run: run",
    );
    refused(&["evaluate", "rows.csv"], "rows.csv is data, not a model", "thalweg init rows.csv");
    refused(&["evaluate", "empty"], "empty holds neither a model nor a checkpoint", "the folder of a run");
    let run = "not the folder of a run";
    refused(&["resume", "run/model.safetensors"], run, "`thalweg evaluate`");
    refused(&["resume", "run/model.safetensors"], "is a trained model", "`thalweg train` wrote to");
    refused(&["resume", checkpoint], "is a checkpoint, not the folder", "`thalweg resume run` continues");
    refused(&["resume", "run/job.toml"], "is a job, not the folder of a run", "thalweg train run/job.toml");
    refused(&["train", checkpoint], "is a checkpoint, not a job", "`thalweg resume run` continues");
    refused(&["train", "run/model.safetensors"], "is a trained model, not a job", "evaluate");
    refused(&["train", "run/report.json"], "is the report of a run, not a job", "run");
    refused(&["train", "run"], "run is the folder of a run, not a job", "`thalweg resume run`");
}
