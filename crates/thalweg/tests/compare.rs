//! `thalweg compare` on the built-in digits.

mod harness;

use harness::{LIMIT, Site};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The objects of `--json`.
fn objects(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["strategy"].as_str().unwrap()).collect()
}

#[test]
fn strategies_are_compared_with_one_worker_and_finished_runs_are_not_run_again() {
    let site = Site::new();
    let command = [
        "compare",
        "--strategies",
        "allreduce,sparknet[merge.every=3]",
        "--seeds",
        "2",
        "--out",
        "cmp",
        "--json",
        "--target",
        "accuracy=0.6",
        "--epochs",
        "8",
        "--html",
        "page.html",
        "--markdown",
        "table.md",
    ];
    let first = site.succeed(&command);
    let all = objects(&first.stdout);
    assert_eq!(names(&all), ["single", "allreduce", "sparknet[merge.every=3]"]);
    for object in &all {
        assert_eq!(
            (&object["runs"], &object["reached"], &object["missed"]),
            (&2.into(), &2.into(), &0.0.into())
        );
        let number = |key: &str| object[key].as_f64().unwrap();
        let product = number("rows_ratio") * number("rows_per_s_ratio");
        assert!((number("speedup") - product).abs() < 1e-9 * product, "{object}");
        let shares = number("compute_share") + number("exchange_share") + number("wait_share");
        assert!((shares - 1.0).abs() < 1e-9, "{object}");
    }
    // All-reduce takes the steps of one worker.
    assert_eq!((&all[0]["own_workers"], &all[1]["own_workers"]), (&true.into(), &false.into()));
    assert_eq!(all[0]["rows_to_target"], all[1]["rows_to_target"]);
    let report = site.report("cmp/allreduce/seed-8");
    assert_eq!((&report["job"]["train.seed"], &report["outcome"]), (&8.into(), &"target_reached".into()));
    assert!(report["evaluations"].as_array().unwrap().iter().all(|at| at["rows"].as_u64().unwrap() > 0));
    assert!(std::fs::read_to_string(site.path("page.html")).unwrap().contains("<polyline"));
    assert!(std::fs::read_to_string(site.path("table.md")).unwrap().contains("| allreduce | 2/2 |"));
    let again = site.succeed(&command);
    assert_eq!(again.stdout, first.stdout);
    assert!(again.stderr.contains("6 runs in cmp, 6 of them finished before"), "{}", again.stderr);
    let other = site.run(&[&command[..], &["--lr", "0.5"]].concat());
    other.assert_error(2, &["cmp/single/seed-7 holds a run of another job", "train.optimizer.lr"]);
}

#[test]
fn an_interrupted_comparison_goes_on_where_it_was() {
    let site = Site::new();
    let command = [
        "compare",
        "--strategies",
        "allreduce",
        "--seeds",
        "1",
        "--out",
        "cmp",
        "--json",
        "--epochs",
        "6",
        "--set",
        "engine.pace=10ms",
    ];
    let job = site.start(&command);
    site.await_step("cmp/allreduce/seed-7", 20);
    job.signal(Signal::SIGINT);
    let ended = job.end(LIMIT);
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("1 of 2 runs are done; the same command goes on"), "{}", ended.stderr);
    assert_eq!(names(&objects(&ended.stdout)), ["single"]);
    site.assert_empty();
    let before = site.report("cmp/allreduce/seed-7");
    assert_eq!(before["outcome"], "interrupted");
    let ended = site.succeed(&command);
    let all = objects(&ended.stdout);
    assert_eq!(names(&all), ["single", "allreduce"]);
    let report = site.report("cmp/allreduce/seed-7");
    assert_eq!(report["first_step"], before["steps"]);
    // Both parts count.
    let steps = all[0]["steps"].as_f64().unwrap();
    assert_eq!((all[1]["steps"].as_f64(), all[1]["updates"].as_f64()), (Some(steps), Some(steps)));
    let train_s = before["train_s"].as_f64().unwrap() + report["train_s"].as_f64().unwrap();
    assert!((all[1]["train_s"].as_f64().unwrap() - train_s).abs() < 1e-9);
    let times: Vec<f64> =
        report["evaluations"].as_array().unwrap().iter().map(|at| at["train_s"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times.len() >= 6, "{times:?}");
    assert_eq!(site.succeed(&command).stdout, ended.stdout);
}

/// A rate with which the loss becomes infinite is a result like others.
#[test]
fn every_strategy_shows_its_best_rate() {
    let site = Site::new();
    let ended = site.succeed(&[
        "compare",
        "--strategies",
        "allreduce",
        "--seeds",
        "1",
        "--out",
        "cmp",
        "--json",
        "--rates",
        "1,1e30",
        "--set",
        "engine.kind=sim",
        "--set",
        "train.max_steps=12",
    ]);
    for object in objects(&ended.stdout) {
        assert_eq!((&object["rate_factor"], &object["rates_tuned"]), (&1.0.into(), &true.into()));
        let rates = object["rates"].as_array().unwrap();
        let failed: Vec<u64> = rates.iter().map(|rate| rate["failed"].as_u64().unwrap()).collect();
        assert_eq!(failed, [0, 1], "{object}");
    }
}

#[test]
fn networks_are_simulated_and_say_so() {
    let site = Site::new();
    let ended = site.succeed(&[
        "compare",
        "--strategies",
        "allreduce",
        "--seeds",
        "1",
        "--out",
        "cmp",
        "--networks",
        "--set",
        "train.max_steps=5",
    ]);
    for name in ["fast", "1 Gbit/s", "100 Mbit/s", "wide area"] {
        assert!(
            ended.stdout.contains(&format!("simulated network, in virtual time: {name}")),
            "{}",
            ended.stdout
        );
    }
    assert!(ended.stdout.contains("learning rates were not tuned"), "{}", ended.stdout);
    assert!(site.path("cmp/wide-area/allreduce/seed-7/report.json").exists());
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_starts() {
    let site = Site::new();
    for (arguments, parts) in [
        (
            &["--strategies", "allreduc"][..],
            &["--strategies: unknown strategy `allreduc`", "`allreduce`"][..],
        ),
        (
            &["--strategies", "gosgd[gossip.probability=7]"],
            &["gosgd[gossip.probability=7]: ", "strategy.gossip"],
        ),
        (&["--strategies", "gosgd", "--set", "train.reproducible=true"], &["gosgd: ", "train.reproducible"]),
        (&["--strategy", "gosgd"], &["--strategy names one strategy", "--strategies"]),
        (&["--target", "f1=1"], &["known metrics are accuracy and loss"]),
        (&["--rates", "0"], &["above 0"]),
    ] {
        let ended = site.run(&[&["compare", "--out", "cmp"], arguments].concat());
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{arguments:?}: {}", ended.stderr);
        }
        assert!(!site.path("cmp").exists(), "{arguments:?}");
    }
}
