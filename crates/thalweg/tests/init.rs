//! `thalweg init`, and the messages of the commands about unusual tables.

mod harness;

use harness::Site;

/// A table sorted by its two classes: the second one begins far behind the first rows.
fn sorted_rows() -> String {
    let row = |n: usize| format!("{}.5,{}\n", n % 50 + n / 9_000 * 60, ["calm", "storm"][n / 11_000]);
    (0..22_000).map(row).collect()
}

#[test]
fn all_classes_of_a_sorted_file_are_found() {
    let site = Site::new();
    site.write("wind.csv", format!("speed,weather\n{}", sorted_rows()));
    let ended = site.succeed(&["init", "wind.csv"]);
    assert!(ended.stderr.contains("wind.csv: 22,000 rows, 2 columns"), "{}", ended.stderr);
    assert!(ended.stderr.contains("a classification with 2 classes"), "{}", ended.stderr);
    site.succeed(&["train", "wind.toml", "--quiet", "--set", "train.max_steps=2", "--out", "run"]);
}

#[test]
fn flags_of_init_are_written_into_the_job() {
    let site = Site::new();
    let rows: String = (0..60).map(|n| format!("{}.5,{},{}.25\n", n, n % 3, n * 7 % 11)).collect();
    site.write("rows.csv", format!("a,b,c\n{rows}"));
    let flags = ["--label", "b", "--task", "regression", "--set", "train.epochs=2", "--set"];
    let more = ["train.optimizer.lr=0.25", "--set", "data.ignore=[\"c\"]", "--out", "mine.toml"];
    site.succeed(&[&["init", "rows.csv"], &flags[..], &more[..]].concat());
    let job = std::fs::read_to_string(site.path("mine.toml")).unwrap();
    let parts = ["label = \"b\"  # as asked for", "task = \"regression\"", "epochs = 2", "ignore = [\"c\"]"];
    for part in parts {
        assert!(job.contains(part), "{part:?} is missing in\n{job}");
    }
    assert!(job.contains("lr = 0.25") && job.contains("kind = \"adam\""), "{job}");
    site.succeed(&["train", "mine.toml", "--quiet", "--out", "run"]);
    assert_eq!(site.report("run")["epochs"].as_array().unwrap().len(), 2);
    site.run(&["init", "rows.csv", "--label", "d"]).assert_error(2, &["unknown column `d`"]);
    site.run(&["init", "rows.csv", "--set", "train.epoch=2"]).assert_error(2, &["epochs"]);
    let ended = site.succeed(&["init", "rows.csv", "--json"]);
    let seen: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((seen["rows"].as_u64(), seen["label"]["why"].as_str()), (Some(60), Some("the last column")));
    assert_eq!(
        (seen["job"].as_str(), seen["columns"][1]["different"].as_u64()),
        (Some("rows.toml"), Some(3))
    );
}

#[test]
fn jobs_of_different_data_get_different_names() {
    let site = Site::new();
    for name in ["set.train.csv", "set.test.csv", "set.train.tsv"] {
        site.write(
            name,
            "a,y\n1.5,0\n2.5,1\n3.5,0\n4.5,1\n".replace(',', if name.ends_with("tsv") { "\t" } else { "," }),
        );
        site.succeed(&["init", name]);
    }
    for name in ["set.train.toml", "set.test.toml", "set.train.tsv.toml"] {
        assert!(site.path(name).exists(), "{name}");
    }
    let ended = site.run(&["init", "set.test.csv"]);
    ended.assert_error(2, &["set.test.toml exists already"]);
    ended.assert_advice("--force");
    site.succeed(&["init", "set.test.csv", "--force"]);
    site.succeed(&["train", "set.train.toml", "--quiet", "--set", "train.max_steps=2"]);
    assert!(site.path("runs/set.train-1/report.json").exists());
}

#[test]
fn wide_sparse_rows_get_a_linear_model() {
    let site = Site::new();
    let row = |n: usize| format!("{} {}:1 {}:0.5\n", n % 2, n % 300 + 1, n * 7 % 40_000 + 1000);
    site.write("rows.svm", (0..800).map(row).collect::<String>());
    site.succeed(&["init", "rows.svm"]);
    let job = std::fs::read_to_string(site.path("rows.toml")).unwrap();
    assert!(job.contains("layers = [\"dense auto\"]") && job.contains("linear"), "{job}");
}

#[test]
fn useless_columns_are_left_out() {
    let site = Site::new();
    let species = |n: usize| ["ash", "oak", "elm"][n * 7 % 3];
    let row = |n: usize| format!("{n},{}.5,{},{}\n", n % 17, n * 7 % 3, species(n));
    site.write("trees.csv", format!(",height,code,species\n{}", (0..90).map(row).collect::<String>()));
    let ended = site.succeed(&["init", "trees.csv"]);
    for part in ["left out: the row numbers of a data frame", "left out: gives `species` away", "by its name"]
    {
        assert!(ended.stderr.contains(part), "{part:?} is missing in\n{}", ended.stderr);
    }
    let job = std::fs::read_to_string(site.path("trees.toml")).unwrap();
    assert!(job.contains("ignore = [\"c0\", \"code\"]"), "{job}");
    let ended = site.succeed(&["train", "--set", "data.source=trees.csv", "--set", "train.max_steps=2"]);
    assert!(
        ended.stderr.contains("warning: trees.csv: column 0 has no name and numbers the rows"),
        "{}",
        ended.stderr
    );
}

#[test]
fn every_command_refuses_files_that_are_not_text() {
    let site = Site::new();
    site.write("good.csv", "a,y\n1.5,0\n2.5,1\n3.5,0\n4.5,1\n5.5,0\n");
    site.succeed(&[
        "train",
        "--quiet",
        "--set",
        "data.source=good.csv",
        "--set",
        "train.max_steps=2",
        "--out",
        "run",
    ]);
    let utf16: Vec<u8> =
        "\u{feff}a,y\r\n1.5,0\r\n2.5,1\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    site.write("wide.csv", utf16);
    site.write("book.csv", b"PK\x03\x04\x14\x00\x06\x00");
    for (name, what) in
        [("wide.csv", "wide.csv is text in UTF-16"), ("book.csv", "an Excel workbook or a zip archive")]
    {
        let source = format!("data.source={name}");
        for command in [
            &["init", name][..],
            &["train", "--set", &source],
            &["predict", "run", name],
            &["evaluate", "run", "--data", name],
        ] {
            site.run(command).assert_error(2, &[what]);
        }
    }
}

#[test]
fn unseen_categories_are_a_warning() {
    let site = Site::new();
    let rows: String = (0..60).map(|n| format!("{},{}\n", ["oslo", "rome", ""][n % 3], n % 2)).collect();
    site.write("people.csv", format!("city,y\n{rows}"));
    let train =
        ["train", "--quiet", "--out", "run", "--set", "data.source=people.csv", "--set", "data.missing=mean"];
    site.succeed(&[&train[..], &["--set", "train.max_steps=2"]].concat());
    site.write("new.csv", "city,y\nbern,0\nrome,1\nbern,1\n");
    let output = "warning: column `city`: the category `bern` was not in the training rows and counts as missing (2 rows)";
    for command in [&["predict", "run", "new.csv"][..], &["evaluate", "run", "--data", "new.csv"]] {
        let ended = site.succeed(command);
        assert!(ended.stderr.contains(output), "{command:?}: {}", ended.stderr);
    }
    site.write("new.jsonl", "{\"city\": \"bern\"}\n{\"city\": \"bern\"}\n");
    assert!(site.succeed(&["predict", "run", "new.jsonl"]).stderr.contains(output));
}

#[test]
fn without_validation_rows_the_metrics_are_those_of_training() {
    let site = Site::new();
    let job = ["train", "--set", "data.validation=0", "--set", "train.epochs=2", "--out", "run"];
    let ended = site.succeed(&job);
    assert!(ended.stderr.contains("none kept for validation"), "{}", ended.stderr);
    assert!(ended.stderr.contains("training accuracy") && !ended.stderr.contains("validation accuracy"));
    let report = site.report("run");
    assert!(report["epochs"][0]["validation"].as_object().unwrap().is_empty());
    assert!(report["epochs"][0]["training"]["accuracy"].as_f64().is_some());
    assert_eq!(report["final"], report["epochs"][1]["training"]);
}

#[test]
fn init_handles_mixed_columns_and_odd_names() {
    let site = Site::new();
    let row = |row: u32| match row % 4 {
        0 => format!("{}.5,A/5 {row},{}\n", row % 83, row % 2),
        _ => format!("{}.5,{},{}\n", row % 83, row * 17, row % 2),
    };
    let rows: String = (0..400).map(row).collect();
    site.write("rows.csv", format!("\"a\r\nb\u{1}c\",ticket,y\n{rows}"));
    let output = site.succeed(&["init", "rows.csv"]).stderr;
    assert!(
        output.contains("left out: numbers and texts: `A/5 0` is not a number, nor are 99 more"),
        "{output}"
    );
    site.succeed(&["train", "-q", "rows.toml", "--set", "train.max_steps=2", "--out", "run"]);
    let refused = site.run(&["train", "-q", "--set", "data.source=rows.csv"]);
    refused.assert_error(2, &["`A/5 0` is not a number"]);
    for way in ["data.categorical = [\"ticket\"]", "data.ignore = [\"ticket\"]", "data.missing"] {
        assert!(refused.stderr.contains(way), "{}", refused.stderr);
    }
    site.run(&["init", "rows.csv", "--json", "-o", "-"]).assert_error(2, &["--json and --out -"]);
    site.write("missing.csv", "a,y\n1.5,0\n2.5,1\n,0\n4.5,1\n5.5,0\n6.5,1\n");
    site.run(&["train", "-q", "--set", "data.source=missing.csv"])
        .assert_error(2, &["missing.csv line 4, column `a`: the value is missing"]);
}
