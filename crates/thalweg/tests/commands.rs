//! The commands other than training.

mod harness;

use harness::{Ended, Site};
use serde_json::Value;

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error} in {}", ended.stdout))
}

#[test]
fn every_command_explains_itself() {
    let site = Site::new();
    let help = site.succeed(&["--help"]).stdout;
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let names =
        listed.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let mut count = 0;
    for name in names.filter(|name| *name != "help") {
        let help = site.succeed(&[name, "--help"]).stdout;
        assert!(help.contains(&format!("Usage: thalweg {name}")), "{help}");
        count += 1;
    }
    assert!(count >= 5, "{help}");
    for command in [&["--help"][..], &["train", "--help"], &["resume", "--help"]] {
        let help = site.succeed(command).stdout;
        assert!(help.contains("129, 130, 143  stopped by SIGHUP") && help.contains("SIGUSR1"), "{help}");
    }
    assert!(site.succeed(&["--version"]).stdout.starts_with("thalweg "));
}

#[test]
fn a_similar_command_is_suggested() {
    let site = Site::new();
    let ended = site.run(&["trian"]);
    ended.assert_error(2, &["cannot read the job file trian"]);
    ended.assert_advice("`thalweg train`");
    site.write("job.toml", "");
    let ended = site.run(&["trian", "job.toml"]);
    ended.assert_error(2, &["there is no command `trian`"]);
    ended.assert_advice("`thalweg train`");
    let ended = site.run(&["--resume", "--overwrite"]);
    assert!(ended.stderr.contains("'--resume' cannot be used with '--overwrite'"), "{}", ended.stderr);
    let ended = site.run(&["train", "jbo.toml"]);
    ended.assert_error(2, &["cannot read the job file jbo.toml"]);
    ended.assert_advice("did you mean ./job.toml?");
    assert!(!site.path("runs").exists());
}

#[test]
fn the_resolved_job_lists_the_origin_of_each_value() {
    let site = Site::new();
    site.write("job.toml", "[train]\nseed = 11\n");
    let arguments =
        ["config", "job.toml", "--strategy", "horovod", "--set", "train.epochs=3", "--workers", "5"];
    let text = site.succeed(&arguments).stdout;
    let line = |key: &str| {
        let found = text.lines().find(|line| line.starts_with(&format!("{key} = ")));
        found.unwrap_or_else(|| panic!("no {key} in {text}")).split_once('#').unwrap()
    };
    for (key, value, origin) in [
        ("seed", "11", "job.toml:2"),
        ("epochs", "3", "--set train.epochs=3"),
        ("workers", "5", "--workers 5"),
        ("preset", "\"horovod\"", "--strategy horovod"),
        ("algorithm", "\"ring\"", "preset horovod"),
        ("global_batch", "64", "default"),
    ] {
        let (output, why) = line(key);
        assert_eq!((output.trim(), why.trim()), (format!("{key} = {value}").as_str(), origin));
    }
    // The output is a job file with the same values.
    site.write("printed.toml", &text);
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_once('#').map_or(line, |(value, _)| value).trim().into()).collect()
    };
    assert_eq!(values(&site.succeed(&["config", "printed.toml"]).stdout), values(&text));
}

#[test]
fn the_resolved_job_as_json() {
    let site = Site::new();
    let listed = json(&site.succeed(&["config", "--json", "--set", "train.epochs=3"]));
    let entry =
        |key: &str| listed.as_array().unwrap().iter().find(|entry| entry["key"] == key).unwrap().clone();
    assert_eq!(
        (&entry("train.epochs")["value"], &entry("train.epochs")["origin"]),
        (&3.into(), &"--set train.epochs=3".into())
    );
    assert_eq!(entry("data.label")["value"], Value::Null);
    let keys = json(&site.succeed(&["config", "--keys", "--json"]));
    assert_eq!(keys.as_array().unwrap().len(), listed.as_array().unwrap().len());
}

#[test]
fn strategies_for_people_and_scripts() {
    let site = Site::new();
    let listed = json(&site.succeed(&["strategies", "--json"]));
    let text = site.succeed(&["strategies"]).stdout;
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    for name in ["single", "allreduce", "horovod", "pytorch-ddp", "baidu"] {
        assert!(names.contains(&name) && text.contains(name), "{name}");
    }
    for entry in listed.as_array().unwrap() {
        assert!(entry["system"].is_string() && entry["summary"].is_string(), "{entry}");
        assert!(entry["dials"].is_object() && entry["missing"].is_array(), "{entry}");
    }
}

#[test]
fn a_run_writes_its_files_and_can_be_evaluated() {
    let site = Site::new();
    let ended = site.succeed(&["train", "--json", "--quiet", "--out", "run", "--set", "train.epochs=10"]);
    let report = json(&ended);
    assert_eq!((report.clone(), ended.stderr.as_str()), (site.report("run"), ""));
    for key in
        ["format", "job", "dials", "world", "final", "wall_s", "samples_per_s", "ranks", "audit", "failures"]
    {
        assert!(!report[key].is_null(), "no {key}");
    }
    assert_eq!((&report["outcome"], &report["failures"]), (&"completed".into(), &Value::Array(vec![])));
    for rank in report["ranks"].as_array().unwrap() {
        for key in
            ["rank", "host", "compute_s", "exchange_s", "hidden_s", "wait_s", "bytes_sent", "bytes_received"]
        {
            assert!(!rank[key].is_null(), "no {key}");
        }
    }
    let files = std::fs::read_dir(site.path("run")).unwrap().flatten();
    let files: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    for file in ["model.safetensors", "events.jsonl", "report.json", "job.toml", "checkpoints"] {
        assert!(files.iter().any(|name| name == file), "no {file} in {files:?}");
    }
    assert!(files.iter().any(|name| name.starts_with("events.out.tfevents.")), "{files:?}");

    let evaluated = json(&site.succeed(&["evaluate", "run", "--json"]));
    assert_eq!(evaluated["rows"], 359);
    assert_eq!(evaluated["accuracy"], report["final"]["accuracy"], "the model is the one that was validated");
    let output = site.succeed(&["evaluate", "run/model.safetensors"]).stdout;
    let accuracy = report["final"]["accuracy"].as_f64().unwrap();
    assert!(output.starts_with(&format!("accuracy {accuracy:.4}, loss ")), "{output}");
    assert!(output.contains("359 validation rows of builtin:digits"), "{output}");
    let all = json(&site.succeed(&["evaluate", "run", "--data", "builtin:digits", "--json"]));
    assert_eq!(all["rows"], 1797);
    site.run(&["evaluate", "nowhere"]).assert_error(2, &["nowhere does not exist"]);
    site.write("rows.csv", "1,2\n");
    let ended = site.run(&["evaluate", "rows.csv"]);
    ended.assert_error(2, &["rows.csv is data, not a model"]);
    ended.assert_advice("give the folder of a run, its model.safetensors");
}

#[test]
fn a_model_is_evaluated_on_other_rows_of_the_same_columns() {
    let site = Site::new();
    let row = |n: u32| {
        format!(
            "{},{},{}\n",
            n * 37 % 101,
            n * 61 % 103,
            if n * 37 % 101 > n * 61 % 103 { "more" } else { "less" }
        )
    };
    let table = |rows: std::ops::Range<u32>| "a,b,which\n".to_string() + &rows.map(row).collect::<String>();
    site.write("rows.csv", table(0..800));
    site.write("later.csv", table(800..1000));
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "data.source=rows.csv"]);
    let evaluated = json(&site.succeed(&["evaluate", "run", "--data", "later.csv", "--json"]));
    assert_eq!(evaluated["rows"], 200);
    assert!(evaluated["accuracy"].as_f64().unwrap() > 0.9, "{evaluated}");
    site.write("other.csv", "a,c,which\n1,2,more\n");
    site.run(&["evaluate", "run", "--data", "other.csv"]).assert_error(2, &["other.csv", "`b`"]);

    let held = ["--set", "data.source=rows.csv", "--set", "data.validation=later.csv"];
    site.succeed(&[&["train", "--quiet", "--out", "held", "--set", "train.epochs=1"], &held[..]].concat());
    let output = site.succeed(&["evaluate", "held"]).stdout;
    assert!(output.ends_with("on 200 rows of later.csv, kept for validation\n"), "{output}");
    std::fs::remove_file(site.path("later.csv")).unwrap();
    let ended = site.run(&["evaluate", "held"]);
    ended.assert_error(2, &["cannot read later.csv: there is no such file"]);
    ended.assert_advice("name another source with --data");
}

#[test]
fn a_missing_file_is_the_same_error_in_every_command() {
    let site = Site::new();
    site.succeed(&["train", "--quiet", "--out", "run", "--set", "train.max_steps=1"]);
    site.write("rows.csv", "1\n");
    for command in [
        &["train", "--set", "data.source=rosw.csv"][..],
        &["init", "rosw.csv"],
        &["evaluate", "run", "--data", "rosw.csv"],
        &["predict", "run", "rosw.csv"],
    ] {
        let ended = site.run(command);
        ended.assert_error(2, &["cannot read rosw.csv: there is no such file"]);
        ended.assert_advice("did you mean ./rows.csv?");
        assert_eq!(ended.stdout, "", "{command:?}");
    }
    let ended = site.run(&["predict", "run", "rows.csv"]);
    ended.assert_error(2, &["the input has 1 columns without names, but the model was trained on 64"]);
    assert_eq!(ended.stdout, "", "no header before the rows are known to fit");
    site.write("rows.jsonl", "{\"p0\": 1, \"p1\": 2}\n");
    let ended = site.run(&["predict", "run", "rows.jsonl"]);
    ended.assert_error(2, &["input row 1: the model has no column `p0`; did you mean `c0`?"]);
    ended.assert_advice("its columns are c0, c1, ");
}

#[test]
fn a_job_is_written_for_what_can_be_learned() {
    let site = Site::new();
    let rows: String = (0..200)
        .map(|n| format!("{},2011-01-{:02},{},call {n} now\n", ["ham", "spam"][n % 2], n % 28 + 1, n % 3))
        .collect();
    site.write("mail.csv", format!("kind,day,links,text\n{rows}"));
    let ended = site.succeed(&["init", "mail.csv"]);
    for part in ["left out: dates", "left out: different in almost every row"] {
        assert!(ended.stderr.contains(part), "{part:?} is missing in\n{}", ended.stderr);
    }
    let job = std::fs::read_to_string(site.path("mail.toml")).unwrap();
    assert!(job.contains("label = \"kind\"") && job.contains("ignore = [\"day\", \"text\"]"), "{job}");
    let ended = site.succeed(&["train", "mail.toml", "--out", "run", "--set", "train.max_steps=2"]);
    assert!(ended.stderr.contains("thalweg train run/job.toml --workers 4"), "{}", ended.stderr);
    let rows: String = (0..200).map(|n| format!("{},call {n} now\n", ["ham", "spam"][n % 2])).collect();
    site.write("text.csv", rows);
    let ended = site.run(&["init", "text.csv"]);
    ended.assert_error(2, &["no column to learn from besides `c0`; `c1` is left out: different in almost"]);
    assert!(!site.path("text.toml").exists());
    site.write("one.csv", "a,label\n1,yes\n2,yes\n3,yes\n");
    let ended = site.run(&["init", "one.csv"]);
    ended.assert_error(2, &["every row has the same label `yes` in column `label`"]);
    ended.assert_advice("at least two classes");
    assert!(!site.path("one.toml").exists());
}

#[test]
fn predictions_are_written_atomically() {
    let site = Site::new();
    let rows: String = (0..600).map(|n| format!("{} {}:1.5 7:{}\n", n % 2, n % 5 + 1, n % 2)).collect();
    site.write("rows.svmlight", &rows);
    let short = ["--set", "data.source=rows.svmlight", "--set", "train.max_steps=5"];
    site.succeed(&[&["train", "--quiet", "--out", "run"], &short[..]].concat());
    site.succeed(&["predict", "run", "rows.svmlight", "--out", "answers.csv"]);
    let answers = std::fs::read_to_string(site.path("answers.csv")).unwrap();
    assert_eq!((answers.lines().count(), answers.lines().next()), (601, Some("prediction,probability")));
    // More than one batch of rows, then an invalid one.
    let rows = "{\"1\": 1.5}\n".repeat(600) + "{\"1\": \"abc\"}\n";
    site.write("rows.jsonl", rows);
    let ended = site.run(&["predict", "run", "rows.jsonl", "--out", "answers.csv"]);
    ended.assert_error(2, &["row 601"]);
    assert_eq!(std::fs::read_to_string(site.path("answers.csv")).unwrap(), answers, "the old ones stay");
    let left = std::fs::read_dir(site.path(".")).unwrap().flatten().map(|entry| entry.file_name());
    assert!(!left.into_iter().any(|name| name.to_string_lossy().ends_with(".tmp")));
}

#[test]
fn a_missed_target_is_reported_and_no_failure() {
    let site = Site::new();
    for (target, outcome) in [("0.5", "target_reached"), ("1.0", "target_missed")] {
        let target = format!("train.target.accuracy={target}");
        let job = ["train", "--quiet", "--out", outcome, "--set", "train.epochs=5", "--set", &target];
        site.succeed(&job);
        assert_eq!(site.report(outcome)["outcome"], outcome);
    }
    assert!(site.report("target_reached")["steps"].as_u64().unwrap() < 5 * 23);
}

#[test]
fn a_run_without_arguments_prints_the_summary() {
    let site = Site::new();
    let ended = site.succeed(&[]);
    assert_eq!(ended.stdout, "", "results go to files, progress to standard error");
    for part in ["2 workers", "validation accuracy", "runs/digits-1", "thalweg evaluate runs/digits-1"] {
        assert!(ended.stderr.contains(part), "{part:?} is missing in\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains('\u{1b}'), "no control characters where there is no terminal");
    site.succeed(&["--quiet"]);
    assert!(site.path("runs/digits-2/report.json").exists());
}

#[test]
fn flags_set_keys_of_the_job_and_are_their_origin() {
    let site = Site::new();
    site.write("job.toml", "[train]\nepochs = 9\ntarget = { accuracy = 0.9 }\n");
    let flags = ["--epochs", "2", "--batch", "32", "--lr", "0.01", "--seed", "5", "--optimizer", "sgd"];
    let shown =
        site.succeed(&[&["config", "job.toml", "--set", "train.target="][..], &flags].concat()).stdout;
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    for line in [
        "epochs = 2 # --epochs 2",
        "global_batch = 32 # --batch 32",
        "lr = 0.01 # --lr 0.01",
        "seed = 5 # --seed 5",
        "kind = \"sgd\" # --optimizer sgd",
        "# accuracy # not set",
    ] {
        let wanted: Vec<&str> = line.split_whitespace().collect();
        assert!(lines.contains(&wanted), "{line}: {shown}");
    }
    site.succeed(&[&["train", "job.toml", "-q", "--out", "run"][..], &flags].concat());
    let report = site.report("run");
    assert_eq!(
        (&report["job"]["train.epochs"], &report["job"]["train.optimizer.kind"]),
        (&2.into(), &"sgd".into())
    );
    let ended = site.run(&["train", "--optimizer", "adm"]);
    ended.assert_error(2, &["--optimizer adm: train.optimizer.kind", "did you mean `adam`"]);
    site.run(&["train", "--seed", "18446744073709551615"]).assert_error(2, &["--seed", "train.seed"]);
    let inject = r#"fault.inject=[{ step = 1, rank = 7, kind = "kill" }]"#;
    site.run(&["train", "--set", inject]).assert_error(2, &["there is no rank 7: ranks are 0 to 1"]);
    // A rank that may join later may be named.
    site.succeed(&["config", "--set", inject, "--set", "fault.max_workers=8"]);
}

#[test]
fn resume_takes_the_flags_of_train() {
    let site = Site::new();
    site.succeed(&["train", "-q", "--out", "run", "--epochs", "1"]);
    site.succeed(&["resume", "run", "-q", "--epochs", "2", "--lr", "0.002", "--workers", "1"]);
    let report = site.report("run");
    assert_eq!(report["epochs"].as_array().unwrap().len(), 2);
    assert_eq!(report["job"]["train.optimizer.lr"], 0.002);
}

#[test]
fn another_optimizer_does_not_keep_the_values_of_the_previous_one() {
    let site = Site::new();
    site.write("job.toml", "[train.optimizer]\nkind = \"momentum\"\nmomentum = 0.8\nlr = 0.01\n");
    let shown = site.succeed(&["config", "job.toml", "--optimizer", "adam", "--json"]).stdout;
    assert!(!shown.contains("0.8") && shown.contains("0.01"), "{shown}");
    // Values from the command line are kept.
    let contradiction =
        ["config", "job.toml", "--optimizer", "adam", "--set", "train.optimizer.momentum=0.7"];
    site.run(&contradiction).assert_error(2, &["train.optimizer.momentum: belongs to"]);
}

#[test]
fn an_invalid_rate_is_refused_and_a_batch_beyond_the_rows_is_a_warning() {
    let site = Site::new();
    site.run(&["train", "--lr", "-1"]).assert_error(2, &["train.optimizer.lr", "above 0"]);
    let ended = site.run(&["train", "--lr", "fast"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("'fast' for '--lr <RATE>': a number is expected"), "{}", ended.stderr);
    let ended = site.succeed(&["train", "-q", "--batch", "100000", "--epochs", "1"]);
    let expected = "warning: a batch of 100,000 holds all 1,438 training rows: one step per epoch";
    assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
    let ended = site.succeed(&["train", "-q", "--batch", "1438", "--epochs", "1"]);
    assert_eq!(ended.stderr, "", "as many as there are may be meant");
}
