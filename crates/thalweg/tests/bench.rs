//! `thalweg bench`, as scripts use it, and threads inside a worker.

mod harness;

use harness::Site;
use serde_json::Value;

#[test]
fn training_is_measured_in_real_workers() {
    let site = Site::new();
    for (workers, threads) in [("1", "2"), ("2", "1")] {
        let flags = ["--workers", workers, "--threads", threads, "--seconds", "0.5", "--json"];
        let ended = site.succeed(&[&["bench", "train", "--work", "mlp-b64"][..], &flags].concat());
        assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
        let measured: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!((&measured["peer"], &measured["work"]), (&"thalweg".into(), &"mlp-b64".into()));
        assert_eq!(measured["workers"].to_string(), workers);
        assert_eq!(measured["threads"].to_string(), threads);
        let number = |key: &str| measured[key].as_f64().unwrap_or_else(|| panic!("{key} in {measured}"));
        assert!(number("samples_per_s") > 0.0 && number("best") >= number("samples_per_s"));
        assert_eq!(number("exchange_share") > 0.0, workers == "2");
        assert!(number("user_us_per_row") > 0.0);
        assert!(number("peak_rss_bytes") > 1e6);
    }
    let flags = ["--workers", "2", "--seconds", "0.3", "--reproducible", "--json"];
    let ended = site.succeed(&[&["bench", "train", "--work", "mlp-b64"][..], &flags].concat());
    let measured: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(measured["reproducible"] == true && measured["cost"].as_f64() > Some(0.1), "{measured}");
    let ended = site.succeed(&["bench", "train", "--work", "lstm", "--seconds", "0.5"]);
    assert!(ended.stdout.starts_with("lstm, 1 worker of 1 thread: "), "{}", ended.stdout);
    site.run(&["bench", "train", "--seconds", "0"]).assert_error(2, &["--seconds 0"]);
    site.run(&["bench", "train", "--threads", "99"]).assert_error(2, &["engine.threads", "between 1 and 64"]);
    site.assert_empty();
}

/// Two servers own a half each; every result is checked by the ranks themselves.
#[test]
fn pushes_pulls_and_updates_are_measured_between_real_processes() {
    let site = Site::new();
    for (transport, servers, workers) in [("shm", 1, 1), ("shm", 2, 3), ("tcp", 1, 1), ("tcp", 2, 3)] {
        let (of_servers, of_workers) = (servers.to_string(), workers.to_string());
        let counts = ["--servers", &of_servers, "--workers", &of_workers, "--seconds", "0.05", "--json"];
        let flags = [&["--transport", transport, "--sizes", "4B,300004B"][..], &counts].concat();
        let ended = site.succeed(&[&["bench", "paramserver"][..], &flags].concat());
        let lines: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut expected = vec!["push", "pull", "update"];
        if (transport, workers) == ("tcp", 1) {
            expected.insert(2, "stream");
        }
        let expected: Vec<(&str, u64)> =
            [4, 300_004].iter().flat_map(|bytes| expected.iter().map(|op| (*op, *bytes))).collect();
        let of = |line: &Value, key: &str| line[key].as_u64().unwrap();
        let found: Vec<(&str, u64)> =
            lines.iter().map(|line| (line["op"].as_str().unwrap(), of(line, "bytes"))).collect();
        assert_eq!(found, expected, "{transport}");
        for line in &lines {
            assert_eq!((of(line, "servers"), of(line, "workers")), (servers, workers));
            assert_eq!(line["transport"], transport);
            let peer = if line["op"] == "stream" { "socket" } else { "thalweg" };
            assert_eq!(line["peer"], peer);
            let rate = if line["op"] == "update" { "updates_per_s" } else { "us" };
            assert!(line["gbps"].as_f64() >= Some(0.0) && line[rate].as_f64() > Some(0.0), "{line}");
        }
    }
    site.run(&["bench", "paramserver", "--servers", "0"]).assert_error(2, &["--servers"]);
    site.run(&["bench", "paramserver", "--seconds", "0"]).assert_error(2, &["--seconds 0"]);
    site.assert_empty();
}

/// The ranks check every message and every sum themselves.
#[test]
fn messages_and_an_all_reduce_are_measured_alone_and_at_once() {
    let site = Site::new();
    for (transport, ranks) in [("shm", 2), ("tcp", 3)] {
        let count = ranks.to_string();
        let flags = ["--ranks", &count, "--sizes", "4B,300004B", "--seconds", "0.05", "--json"];
        let ended = site.succeed(&[&["bench", "messages", "--transport", transport][..], &flags].concat());
        let lines: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let sizes: Vec<_> = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [4, 300_004], "{transport}");
        for line in &lines {
            assert_eq!((&line["transport"], &line["n"]), (&transport.into(), &ranks.into()));
            for key in ["message_us", "allreduce_us", "message_at_once_us", "allreduce_at_once_us", "ratio"] {
                assert!(line[key].as_f64() > Some(0.0), "{key} of {line}");
            }
        }
    }
    site.run(&["bench", "messages", "--ranks", "1"]).assert_error(2, &["--ranks 1"]);
    site.run(&["bench", "messages", "--seconds", "0"]).assert_error(2, &["--seconds 0"]);
    site.assert_empty();
}

#[test]
fn several_threads_give_the_result_of_one() {
    let site = Site::new();
    let loss = |run: &str, threads: &str| {
        let threads = format!("engine.threads={threads}");
        let settings = ["--workers", "1", "--set", "train.max_steps=40", "--set", &threads, "--out", run];
        site.succeed(&[&["train"][..], &settings].concat());
        site.report(run)["final"]["loss"].as_f64().unwrap()
    };
    let (one, two, again) = (loss("one", "1"), loss("two", "2"), loss("again", "2"));
    assert!((one - two).abs() < 1e-4 * one, "{one} {two}");
    assert_eq!(two, again, "the same threads give the same bits");
}
