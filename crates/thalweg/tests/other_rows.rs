//! Rows for a trained model from other files: every accepted layout gives the same predictions, the rest is refused.

mod harness;

use flate2::Compression;
use flate2::write::GzEncoder;
use harness::Site;
use std::io::Write;

/// Values of a row by column name: `y` is whether `a` is more than `b`, the others are misleading.
fn value(name: &str, row: u32) -> String {
    let (a, b) = (row * 37 % 101, row * 61 % 103);
    match name {
        "a" => a.to_string(),
        "b" => b.to_string(),
        "y" => if a > b { "more" } else { "less" }.into(),
        "id" => (1000 + row).to_string(),
        _ => (row * 7 % 13).to_string(),
    }
}

fn table(columns: &[&str], rows: std::ops::Range<u32>, header: bool, delimiter: &str) -> String {
    let line = |row: u32| columns.iter().map(|name| value(name, row)).collect::<Vec<_>>().join(delimiter);
    let header = header.then(|| columns.join(delimiter));
    header.into_iter().chain(rows.map(line)).map(|line| line + "\n").collect()
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A model trained on these columns, `y` being the label, all but `a` and `b` left out.
fn train(site: &Site, columns: &[&str], header: bool) {
    site.write("train.csv", table(columns, 0..600, header, ","));
    let name = |column: &&str| match header {
        true => column.to_string(),
        false => format!("c{}", columns.iter().position(|other| other == column).unwrap()),
    };
    let others: Vec<String> =
        columns.iter().filter(|column| !["a", "b", "y"].contains(*column)).map(name).collect();
    let label = format!("data.label={}", name(&"y"));
    let ignore = format!("data.ignore={others:?}");
    site.succeed(&[
        "train",
        "-q",
        "--overwrite",
        "--out",
        "run",
        "--workers",
        "1",
        "--set",
        "data.source=train.csv",
        "--set",
        &label,
        "--set",
        &ignore,
        "--set",
        "train.epochs=20",
    ]);
}

/// Predictions for 200 rows of a file; also checks the accuracy on it.
fn predictions(site: &Site, file: &str) -> String {
    let answers = site.succeed(&["predict", "run", file]).stdout;
    assert_eq!(
        answers.lines().filter(|line| !line.starts_with("prediction")).count(),
        200,
        "{file}: {answers}"
    );
    answers
}

fn accuracy(site: &Site, file: &str) -> f64 {
    let output = site.succeed(&["evaluate", "run", "--data", file, "--json"]).stdout;
    let object: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(object["rows"], 200, "{file}");
    object["accuracy"].as_f64().unwrap()
}

const LAYOUTS: [&[&str]; 4] =
    [&["y", "a", "b"], &["a", "y", "b"], &["a", "b", "y"], &["id", "a", "note", "y", "b"]];

#[test]
fn rows_without_a_header_are_read_by_column_order_of_training() {
    for columns in LAYOUTS {
        for header in [true, false] {
            let site = Site::new();
            train(&site, columns, header);
            site.write("named.csv", table(columns, 600..800, true, ","));
            // A model trained without a header names columns by index: it takes this file by index too.
            let expected = predictions(&site, "named.csv");
            let measured = accuracy(&site, "named.csv");
            for command in [&["predict", "run", "named.csv"][..], &["evaluate", "run", "named.csv"]] {
                let output = site.succeed(command).stderr;
                assert_eq!(
                    output.matches("is not used: the model was trained without").count(),
                    usize::from(!header)
                );
            }
            assert!(measured > 0.9, "{columns:?} header {header}: {measured}");
            let without = |left: &[&str]| -> Vec<&str> {
                columns.iter().copied().filter(|name| !left.contains(name)).collect()
            };
            for (left, labelled) in
                [(&[][..], true), (&["y"], false), (&["id", "note"], true), (&["y", "id", "note"], false)]
            {
                let kept = without(left);
                let text = table(&kept, 600..800, false, ",");
                for (file, text) in [
                    ("rows.csv", text.clone().into_bytes()),
                    ("rows.tsv", table(&kept, 600..800, false, "\t").into_bytes()),
                    ("semicolons.csv", table(&kept, 600..800, false, ";").into_bytes()),
                    ("rows.csv.gz", packed(&text)),
                ] {
                    site.write(file, text);
                    assert_eq!(
                        predictions(&site, file),
                        expected,
                        "{columns:?} header {header}: {file} {kept:?}"
                    );
                    match labelled {
                        true => assert_eq!(accuracy(&site, file), measured, "{columns:?}: {file} {kept:?}"),
                        false => site
                            .run(&["evaluate", "run", "--data", file])
                            .assert_error(2, &["the label of the model"]),
                    }
                    if !header || columns.len() < 5 {
                        break;
                    }
                }
            }
            site.write("more.csv", "1,2,3,4,5,6,7\n");
            for command in [&["predict", "run", "more.csv"][..], &["evaluate", "run", "--data", "more.csv"]] {
                site.run(command).assert_error(2, &["7 columns without names", "trained on 2"]);
            }
        }
    }
}

#[test]
fn ambiguous_layouts_are_refused() {
    let site = Site::new();
    train(&site, &["id", "a", "b", "y"], true);
    site.write("three.csv", table(&["id", "a", "b"], 600..800, false, ","));
    for command in [&["predict", "run", "three.csv"][..], &["evaluate", "run", "--data", "three.csv"]] {
        let ended = site.run(command);
        ended.assert_error(2, &["3 columns without names: they may be id, a, b or a, b, y"]);
        ended.assert_advice("add a header");
    }
}

#[test]
fn settings_determine_how_files_are_read() {
    let site = Site::new();
    let columns = ["y", "a", "b"];
    train(&site, &columns, true);
    site.write("named.csv", table(&columns, 600..800, true, ","));
    let (expected, measured) = (predictions(&site, "named.csv"), accuracy(&site, "named.csv"));
    // Several files at once, JSON lines, and an unusual delimiter.
    site.write("part-1.csv", table(&columns, 600..700, false, ","));
    site.write("part-2.csv", table(&columns, 700..800, false, ","));
    assert_eq!(
        (predictions(&site, "part-*.csv"), accuracy(&site, "part-*.csv")),
        (expected.clone(), measured)
    );
    let quoted = |row: u32| columns.map(|name| format!("\"{}\"", value(name, row))).join(",");
    site.write("rows.jsonl", (600..800).map(|row| format!("[{}]\n", quoted(row))).collect::<String>());
    assert_eq!(accuracy(&site, "rows.jsonl"), measured);
    let object = |row: u32| {
        format!("{{\"b\":{},\"y\":\"{}\",\"a\":{}}}\n", value("b", row), value("y", row), value("a", row))
    };
    site.write("rows.jsonl.gz", packed(&(600..800).map(object).collect::<String>()));
    assert_eq!(accuracy(&site, "rows.jsonl.gz"), measured);
    let json = predictions(&site, "rows.jsonl.gz");
    assert!(json.starts_with("{\"prediction\":"), "{json}");
    site.write("odd.csv", table(&columns, 600..800, true, "^"));
    let output = site.succeed(&["predict", "run", "odd.csv", "--set", "data.delimiter=^"]).stdout;
    assert_eq!(output, expected);
    site.succeed(&["evaluate", "run", "--data", "odd.csv", "--set", "data.delimiter=^"]);
    site.write("semicolons.csv", table(&columns, 600..800, true, ";"));
    assert_eq!(predictions(&site, "semicolons.csv"), expected);
    for (command, flag) in [("predict", &[][..]), ("evaluate", &["--data"])] {
        let mut line = vec![command, "run"];
        line.extend(flag);
        line.extend(["semicolons.csv", "--set", "data.delimiter=tab"]);
        assert_eq!(site.run(&line).code, Some(2), "{command}: what is asked for holds");
    }
    site.write("header.csv", "y,a,b\n");
    site.write("empty.csv", "");
    site.run(&["predict", "run", "header.csv"]).assert_error(2, &["header.csv holds a header and no rows"]);
    site.run(&["predict", "run", "empty.csv"]).assert_error(2, &["empty.csv is empty"]);
    site.run(&["predict", "run", "odd.csv", "--set", "data.delimeter=^"])
        .assert_error(2, &["data.delimeter"]);
    site.run(&["evaluate", "run", "--data", "named.csv", "--set", "data.header=false"])
        .assert_error(2, &["is not a number"]);
    site.run(&["predict", "run", "named.csv", "--set", "data.header=false"])
        .assert_error(2, &["is not a number"]);
}

#[test]
fn times_in_seconds_are_learned_evaluated_and_predicted() {
    let site = Site::new();
    // Two thousand seconds, each once; single precision would round them to 17 different numbers.
    let row = |row: u32| {
        let second = row * 389 % 2000;
        (1_700_000_000 + u64::from(second), if (second / 100).is_multiple_of(2) { "even" } else { "odd" })
    };
    let table = |rows: std::ops::Range<u32>| {
        rows.map(row).map(|(time, y)| format!("{time},{y}\n")).collect::<String>()
    };
    site.write("train.csv", "time,y\n".to_string() + &table(0..1600));
    site.write("new.csv", table(1600..2000));
    site.succeed(&[
        "train",
        "-q",
        "--out",
        "run",
        "--workers",
        "2",
        "--set",
        "data.source=train.csv",
        "--set",
        "model.layers=['dense 1 tanh', 'dense auto']",
        "--set",
        "train.epochs=1",
    ]);
    let output = site.succeed(&["predict", "run", "new.csv", "--probabilities"]).stdout;
    let answers: std::collections::HashSet<&str> = output.lines().skip(1).collect();
    assert!(answers.len() > 300, "{} different answers to 400 different times", answers.len());
    let output = site.succeed(&["evaluate", "run", "--data", "new.csv"]).stdout;
    assert!(output.contains("on 400 rows of new.csv"), "{output}");
    let output = site.succeed(&["export", "run"]).stderr;
    assert!(output.contains("column `time`: the ONNX input is single precision"), "{output}");

    site.write(
        "years.csv",
        "time,y\n".to_string()
            + &(0..600u64)
                .map(|row| {
                    format!("{},{}\n", if row % 2 == 0 { row } else { 4_000_000_000_000_000 + row }, row % 3)
                })
                .collect::<String>(),
    );
    let output = site.succeed(&[
        "train",
        "-q",
        "--out",
        "ids",
        "--set",
        "data.source=years.csv",
        "--set",
        "train.epochs=1",
    ]);
    assert_eq!(output.stderr.matches("column `time`: ").count(), 1, "{}", output.stderr);
    assert!(output.stderr.contains("cannot be told apart"), "{}", output.stderr);
}

#[test]
fn changed_data_has_no_validation_rows() {
    let site = Site::new();
    train(&site, &["a", "b", "y"], true);
    let before = site.succeed(&["evaluate", "run"]);
    assert!(before.stdout.contains("validation rows of"), "{}", before.stdout);
    let text = std::fs::read_to_string(site.path("train.csv")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[1..].reverse();
    for changed in [format!("{text}1,2,less\n"), lines.join("\n") + "\n"] {
        site.write("train.csv", &changed);
        let newest = site.checkpoints("run").pop().unwrap();
        for model in ["run", &format!("run/checkpoints/step-{newest:09}.safetensors")] {
            let ended = site.run(&["evaluate", model]);
            ended.assert_error(2, &["train.csv has changed since the model was trained"]);
            ended.assert_advice("--data FILE");
        }
        let all = site.succeed(&["evaluate", "run", "train.csv"]).stdout;
        assert_eq!(all, site.succeed(&["evaluate", "run", "--data", "train.csv"]).stdout);
        let rows = format!("on {} rows of train.csv", changed.lines().count() - 1);
        assert!(all.contains(&rows), "{all}");
    }
    site.write("train.csv", &text);
    assert_eq!(site.succeed(&["evaluate", "run"]).stdout, before.stdout);
}
