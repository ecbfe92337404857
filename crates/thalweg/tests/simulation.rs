//! `engine.kind = "sim"`: a job in one process and in virtual time is deterministic.

mod harness;

use harness::Site;
use serde_json::Value;

const SIM: [&str; 4] = ["train", "--quiet", "--set", "engine.kind=sim"];

#[test]
fn two_runs_of_64_simulated_workers_give_the_same_model_and_trace() {
    let site = Site::new();
    let [one, other] = ["one", "other"].map(|run| {
        let rest =
            ["--workers", "64", "--set", "train.epochs=2", "--set", "train.global_batch=128", "--out", run];
        site.succeed(&[&SIM[..], &rest].concat());
        let read = |name: &str| std::fs::read(site.path(run).join(name)).unwrap();
        (read("model.safetensors"), read("trace.txt"))
    });
    assert!(one.0 == other.0, "another model");
    assert!(one.1 == other.1 && one.1.len() > 100_000, "another trace");
    let report = site.report("one");
    let ranks = report["ranks"].as_array().unwrap();
    assert_eq!((ranks.len(), &ranks[63]["transport"]), (64, &"sim".into()));
    assert!(report["audit"].as_array().unwrap().iter().all(|epoch| epoch["once"] == epoch["expected"]));
    site.assert_empty();
}

#[test]
fn a_slower_network_takes_more_virtual_time_to_the_same_model() {
    let site = Site::new();
    let [fast, slow] = ["50us", "20ms"].map(|latency| {
        let setting = format!("engine.network.latency={latency}");
        let rest = ["--workers", "4", "--set", "train.epochs=1", "--set", &setting, "--out", latency];
        site.succeed(&[&SIM[..], &rest].concat());
        let report = site.report(latency);
        (report["final"]["loss"].as_f64().unwrap(), report["samples_per_s"].as_f64().unwrap())
    });
    assert_eq!(fast.0, slow.0, "the network does not change the result");
    assert!(fast.1 > 5.0 * slow.1, "{fast:?} {slow:?}");
}

#[test]
fn one_slow_link_delays_the_ranks_that_wait_for_it() {
    let site = Site::new();
    let [alike, slow] = ["[]", "[{ from = 0, to = [1, 2], latency = '20ms' }]"].map(|links| {
        let (setting, run) = (format!("engine.network.links={links}"), if links == "[]" { "a" } else { "b" });
        let ring = "strategy.exchange.algorithm=ring";
        let rest =
            ["--workers", "3", "--set", "train.epochs=1", "--set", &setting, "--set", ring, "--out", run];
        site.succeed(&[&SIM[..], &rest].concat());
        let report = site.report(run);
        (report["final"]["loss"].as_f64().unwrap(), report["samples_per_s"].as_f64().unwrap())
    });
    assert_eq!(alike.0, slow.0, "the network does not change the result");
    // A ring all-reduce of three ranks has four sequential steps, so it uses that link at least once.
    assert!(alike.1 > 5.0 * slow.1, "{alike:?} {slow:?}");
    site.assert_empty();
}

#[test]
fn shares_by_speed_give_a_slow_rank_fewer_rows_and_take_less_virtual_time() {
    let site = Site::new();
    let uneven = ["--workers", "4", "--set", "engine.slow={2=3.0}", "--set", "engine.pace=30ms"];
    let [even, speed] = ["even", "speed"].map(|split| {
        let split_by = format!("strategy.split={split}");
        let rest = ["--set", "train.max_steps=100", "--set", &split_by, "--out", split];
        site.succeed(&[&SIM[..], &uneven, &rest].concat());
        site.report(split)
    });
    let rate = |report: &serde_json::Value| report["samples_per_s"].as_f64().unwrap();
    assert!(rate(&speed) > 2.0 * rate(&even), "{} and {} rows/s", rate(&speed), rate(&even));
    let rows = |report: &serde_json::Value, rank: usize| report["ranks"][rank]["rows"].as_u64().unwrap();
    // Apart from the shorter steps at the ends of epochs.
    assert!(rows(&even, 2).abs_diff(rows(&even, 1)) <= 10);
    assert!(10 * rows(&speed, 2) < 7 * rows(&speed, 1) && rows(&speed, 2) > 0);
    let median = |rank: usize| even["ranks"][rank]["step_ms"]["median"].as_f64().unwrap();
    assert!(median(2) > 2.0 * median(1), "{} and {} ms", median(2), median(1));
}

#[test]
fn simulated_workers_are_lost_as_real_ones_and_two_runs_give_the_same_bytes() {
    let site = Site::new();
    let faults =
        "fault.inject=[{ step = 6, rank = 2, kind = 'kill' }, { step = 11, rank = 0, kind = 'kill' },
        { step = 15, rank = 5, kind = 'stop' }, { step = 20, rank = 1, kind = 'cut' }]";
    let [one, other] = ["one", "other"].map(|run| {
        let rest = ["--workers", "8", "--set", "train.epochs=2", "--set", faults, "--out", run];
        site.succeed(&[&SIM[..], &rest].concat());
        let read = |name: &str| std::fs::read(site.path(run).join(name)).unwrap();
        (read("model.safetensors"), read("trace.txt"))
    });
    assert!(one == other, "another model or trace");
    let report = site.report("one");
    assert!(report["audit"].as_array().unwrap().iter().all(|epoch| epoch["once"] == epoch["expected"]));
    let culprits: Vec<_> = report["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failure| failure["rank"].as_u64().unwrap())
        .collect();
    assert_eq!(culprits, [2, 0, 5, 1]);
    site.assert_empty();
}

/// Faults strike simulated ranks as they strike processes, workers join from a reserve, and time is virtual: a repeat prints
/// the same.
#[test]
fn chaos_on_simulated_ranks_loses_no_row_and_repeats() {
    let site = Site::new();
    for strategy in ["allreduce", "dpsgd", "gosgd"] {
        let chaos =
            ["chaos", "--strategy", strategy, "--workers", "4", "--faults", "40", "--fault-seed", "5"];
        let run = [&chaos[..], &["--set", "engine.kind=sim", "--json", "--quiet"]].concat();
        let [one, other] = [0, 1].map(|_| site.succeed(&run).stdout);
        assert_eq!(one, other, "{strategy}");
        let outcome: Value = serde_json::from_str(&one).unwrap();
        assert_eq!((&outcome["finished"], &outcome["faults"]), (&true.into(), &40.into()), "{outcome}");
        let lost = (&outcome["samples_missed"], &outcome["samples_repeated"]);
        assert_eq!(lost, (&0.into(), &0.into()), "{outcome}");
        assert!(outcome["max_steps_redone"].as_u64().unwrap() <= 1, "{outcome}");
        for kind in ["kill", "join", "livelock", "stop", "cut"] {
            assert!(outcome["kinds"][kind].is_u64(), "{strategy}: no {kind} among {}", outcome["kinds"]);
        }
    }
    site.assert_empty();
}

#[test]
fn unsupported_simulations_are_refused() {
    let site = Site::new();
    let hosts = ["--nnodes", "2", "--node-rank", "0", "--master", "127.0.0.1"];
    site.run(&[&SIM[..], &hosts].concat()).assert_error(2, &["engine.kind", "hosts"]);
    let ended = site.run(&[&SIM[..], &["--set", "engine.network.bandwidth=0B"]].concat());
    ended.assert_error(2, &["engine.network.bandwidth", "above 0"]);
    let links = "engine.network.links=[{ from = 0, to = 7, latency = '1ms' }]";
    let ended = site.run(&[&SIM[..], &["--set", links]].concat());
    ended.assert_error(2, &["engine.network.links", "there is no rank 7"]);
    let ended = site.run(&[&SIM[..], &["--set", "fault.respawn=true"]].concat());
    ended.assert_error(2, &["fault.respawn", "engine.kind"]);
    site.assert_empty();
}
