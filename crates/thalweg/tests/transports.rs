//! Transports between real processes: chosen by host, recorded in the report, with the same result.

mod harness;

use harness::{LIMIT, Process, Site, free_port};
use serde_json::Value;

const STEPS: [&str; 2] = ["--set", "train.max_steps=100"];

/// The transport of every rank.
fn transports(report: &Value) -> Vec<String> {
    let ranks = report["ranks"].as_array().unwrap();
    ranks.iter().map(|rank| rank["transport"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn workers_of_one_host_share_memory_unless_configured_otherwise() {
    let site = Site::new();
    let model = |run: &str, setting: &str| {
        site.succeed(&[&["train", "--workers", "2", "--out", run, "--set", setting][..], &STEPS].concat());
        std::fs::read(site.path(run).join("model.safetensors")).unwrap()
    };
    let models =
        ["auto", "shm", "tcp"].map(|name| model(name, &format!("strategy.exchange.transport={name}")));
    let report = site.report("auto");
    assert_eq!((transports(&report), &report["algorithm"]), (vec!["shm".to_owned(); 2], &"arena".into()));
    let report = site.report("tcp");
    assert_eq!(transports(&report), ["tcp", "tcp"]);
    assert_ne!(report["algorithm"], "arena");
    // The files differ in their job; the parameters are bit-identical.
    let tail = |model: &[u8]| model[model.len() - 4096..].to_vec();
    assert!(models.iter().all(|model| tail(model) == tail(&models[0])), "two numbers have one sum");
    // A named algorithm sends messages, through shared memory.
    model("ring", "strategy.exchange.algorithm=ring");
    let report = site.report("ring");
    assert_eq!((transports(&report), &report["algorithm"]), (vec!["shm".to_owned(); 2], &"ring".into()));
    site.assert_empty();
}

#[test]
fn bytes_through_shared_memory_match_the_formula() {
    let site = Site::new();
    site.succeed(&[&["train", "--workers", "4", "--out", "run"][..], &STEPS].concat());
    let report = site.report("run");
    let parameters = 64 * 128 + 128 + 128 * 10 + 10;
    for rank in report["ranks"].as_array().unwrap() {
        let per_step = rank["bytes_sent"].as_f64().unwrap() / 100.0;
        let formula = 2.0 * 3.0 / 4.0 * 4.0 * f64::from(parameters);
        // Step summaries, and exchanges at the ends of epochs and for checkpoints, come on top.
        assert!(per_step > 0.99 * formula && per_step <= 1.02 * formula, "{per_step} of {formula}");
    }
}

/// The same on tcp with a ring, in buckets sent during back-propagation: headers, step summaries, start and end of the
/// job are within 2%.
#[test]
fn bytes_in_buckets_match_the_formula() {
    let site = Site::new();
    let sets = [
        "model.layers=['dense 512 relu', 'dense 256 relu', 'dense auto']",
        "strategy.exchange.transport=tcp",
        "strategy.exchange.algorithm=ring",
        "strategy.exchange.bucket=64KiB",
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    site.succeed(&[&["train", "--workers", "4", "--out", "run"][..], &sets, &STEPS].concat());
    let report = site.report("run");
    let parameters = 64 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10;
    let formula = 2.0 * 3.0 / 4.0 * 4.0 * f64::from(parameters);
    for rank in report["ranks"].as_array().unwrap() {
        let per_step = rank["bytes_sent"].as_f64().unwrap() / 100.0;
        assert!(per_step > formula && per_step < 1.02 * formula, "{per_step} of {formula}");
    }
    let buckets = report["buckets"].as_array().unwrap();
    let field = |key: &str| buckets.iter().map(|bucket| bucket[key].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(field("first"), ["layers.2.bias", "layers.1.weight", "layers.0.bias", "layers.0.weight"]);
    assert_eq!(field("algorithm"), ["ring"; 4]);
    let sum: u64 = buckets.iter().map(|bucket| bucket["bytes"].as_u64().unwrap()).sum();
    assert!(sum > 4 * parameters as u64, "riders leave with the last one");
}

/// Bytes sent by every rank, in rank order.
fn sent(report: &Value) -> Vec<f64> {
    report["ranks"].as_array().unwrap().iter().map(|rank| rank["bytes_sent"].as_f64().unwrap()).collect()
}

/// Asserts the bytes of the formula, and at most 2% more for headers, step summaries, start, end and ends of epochs.
fn assert_bytes(what: &str, report: &Value, formula: &[f64]) {
    let sent = sent(report);
    assert_eq!(sent.len(), formula.len(), "{what}");
    for (rank, (sent, formula)) in sent.iter().zip(formula).enumerate() {
        let ratio = sent / formula;
        assert!(ratio > 0.98 && ratio <= 1.02, "{what}: rank {rank} sent {sent}, {ratio:.4} of {formula}");
    }
}

/// A network large enough for the overhead to be small.
const NETWORK: [&str; 2] = ["--set", "model.layers=['dense 512 relu', 'dense 256 relu', 'dense auto']"];
const NETWORK_BYTES: f64 = 4.0 * (64.0 * 512.0 + 512.0 + 512.0 * 256.0 + 256.0 + 256.0 * 10.0 + 10.0);

/// The formula of each strategy, as documented.
#[test]
fn bytes_of_every_strategy_match_the_formula() {
    let site = Site::new();
    let report = |run: &str, flags: &[&str]| {
        let tcp = ["--set", "strategy.exchange.transport=tcp"];
        site.succeed(&[&["train", "--out", run][..], &NETWORK, &STEPS, &tcp, flags].concat());
        site.report(run)
    };
    let step = |share: f64| 100.0 * share * NETWORK_BYTES;
    assert_bytes("auto", &report("auto", &["--workers", "4"]), &[step(1.5); 4]);
    // The server has the last rank.
    let served = report("served", &["--workers", "3", "--strategy", "parameter-server"]);
    assert_bytes("parameter-server", &served, &[step(1.0), step(1.0), step(1.0), step(3.0)]);
    let leaves = |run: &str, workers: &str| {
        let report = report(run, &["--workers", workers, "--set", "train.reproducible=true"]);
        assert_eq!(report["algorithm"], "leaf-tree");
        report
    };
    assert_bytes("leaf-tree", &leaves("four", "4"), &[step(1.5); 4]);
    // Of eight leaves three workers hold 2, 2 and 1 subtrees.
    assert_bytes("leaf-tree", &leaves("three", "3"), &[step(2.0), step(2.0), step(4.0 / 3.0)]);
}

/// Gossip: a message is the model and a weight, which the receiver averages. Workers meet at the end of each epoch.
#[test]
fn bytes_of_gossip_match_the_formula() {
    const EPOCHS: f64 = 5.0;
    let site = Site::new();
    let sets =
        ["train.epochs=5", "train.seed=3", "fault.checkpoint_every=0", "strategy.exchange.algorithm=ring"];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let flags = ["train", "--strategy", "gosgd", "--workers", "3", "--out", "run"];
    site.succeed(&[&flags[..], &NETWORK, &sets].concat());
    let report = site.report("run");
    let messages = report["messages"]["sent"].as_f64().unwrap();
    // About one of ten local steps sends: 23 steps per epoch, of three workers.
    assert!((10.0..80.0).contains(&messages), "{messages} messages");
    // The last checkpoint has parameters and Adam's two moments of every worker; rank 0 writes it.
    let formula = (messages + 3.0 * EPOCHS * 2.0 * 2.0 / 3.0 + 2.0 * 3.0) * NETWORK_BYTES;
    let ranks = report["ranks"].as_array().unwrap();
    let sent: f64 = ranks.iter().map(|rank| rank["bytes_sent"].as_f64().unwrap()).sum();
    assert!((sent / formula - 1.0).abs() < 0.02, "{sent} bytes, by the formula {formula}");
}

/// Strategies that send messages give the same result over every transport.
#[test]
fn parameter_servers_and_gossip_train_over_shm_and_tcp() {
    let site = Site::new();
    site.succeed(&[&["train", "--workers", "1", "--out", "one"][..], &STEPS].concat());
    let loss = |run: &str| site.report(run)["final"]["loss"].as_f64().unwrap();
    for carrier in ["shm", "tcp"] {
        let train = |strategy: &str, rest: &[&str]| {
            let (run, transport) =
                (format!("{strategy}-{carrier}"), format!("strategy.exchange.transport={carrier}"));
            let flags =
                ["train", "--strategy", strategy, "--workers", "3", "--out", &run, "--set", &transport];
            site.succeed(&[&flags[..], rest].concat());
            assert!(transports(&site.report(&run)).iter().all(|found| found == carrier), "{run}");
            run
        };
        let served = train("parameter-server", &STEPS);
        assert_eq!(transports(&site.report(&served)).len(), 4, "three workers and their server");
        assert!((loss(&served) - loss("one")).abs() < 1e-5, "{served}: {} {}", loss(&served), loss("one"));
        let asynchronous =
            ["--overwrite", "--set", "strategy.scheduling.kind=async", "--set", "train.epochs=20"];
        let report = site.report(&train("parameter-server", &asynchronous));
        assert!(report["final"]["accuracy"].as_f64().unwrap() >= 0.85, "{}", report["final"]);
        let updates = report["staleness"]["updates"].as_array().unwrap();
        let count: u64 = updates.iter().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(count, report["units"].as_u64().unwrap(), "{updates:?}");
        let gossips = train("gosgd", &["--set", "train.epochs=40"]);
        let report = site.report(&gossips);
        assert!(report["final"]["accuracy"].as_f64().unwrap() >= 0.85, "{gossips}: {}", report["final"]);
        for epoch in report["audit"].as_array().unwrap() {
            assert_eq!((&epoch["once"], &epoch["repeated"]), (&epoch["expected"], &0.into()), "{gossips}");
        }
    }
    site.assert_empty();
}

#[test]
fn a_group_on_two_hosts_mixes_shm_and_tcp() {
    let site = Site::new();
    site.succeed(&[&["train", "--workers", "1", "--out", "one"][..], &NETWORK, &STEPS].concat());
    let port = free_port();
    let ranks: Vec<Process> = ["a", "a", "b"]
        .iter()
        .enumerate()
        .map(|(rank, host)| {
            let ring = ["--set", "strategy.exchange.algorithm=ring"];
            let flags = [&["train", "--out", "run"][..], &NETWORK, &STEPS, &ring].concat();
            let mut command = site.rank(rank, 3, port, &flags);
            Process::start({
                command.env("THALWEG_HOST", host);
                command
            })
        })
        .collect();
    for rank in ranks {
        let ended = rank.end(LIMIT);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let report = site.report("run");
    assert_eq!(transports(&report), ["shm+tcp", "shm+tcp", "tcp"]);
    // A ring that crosses the hosts twice.
    assert_eq!(report["algorithm"], "ring");
    assert_bytes("shm+tcp", &report, &[100.0 * 4.0 / 3.0 * NETWORK_BYTES; 3]);
    assert_ne!(report["algorithm"], "arena", "memory of two hosts is not one");
    let (one, three) = (site.report("one")["final"]["loss"].as_f64(), report["final"]["loss"].as_f64());
    assert!((one.unwrap() - three.unwrap()).abs() < 1e-5, "{one:?} {three:?}");
    site.assert_empty();
}

/// One worker is beside the server and reads its memory; the other is on another host and is sent messages.
#[test]
fn a_server_serves_workers_beside_it_and_on_another_host() {
    let site = Site::new();
    site.succeed(&[&["train", "--workers", "1", "--out", "one"][..], &STEPS].concat());
    for (run, kind) in [("sync", "bsp"), ("async", "async")] {
        let (port, kind) = (free_port(), format!("strategy.scheduling.kind={kind}"));
        let flags = ["train", "--out", run, "--strategy", "parameter-server", "--set", &kind];
        let flags = [&flags[..], &STEPS].concat();
        let ranks: Vec<Process> = ["a", "b", "a"]
            .iter()
            .enumerate()
            .map(|(rank, host)| {
                let mut command = site.rank(rank, 3, port, &flags);
                command.env("THALWEG_HOST", host);
                Process::start(command)
            })
            .collect();
        for rank in ranks {
            let ended = rank.end(LIMIT);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        let report = site.report(run);
        assert_eq!(transports(&report), ["shm+tcp", "tcp", "shm+tcp"], "{run}");
        for epoch in report["audit"].as_array().unwrap() {
            assert_eq!((&epoch["missed"], &epoch["repeated"]), (&0.into(), &0.into()), "{run}");
        }
    }
    let loss = |run: &str| site.report(run)["final"]["loss"].as_f64().unwrap();
    assert!((loss("sync") - loss("one")).abs() < 1e-5, "{} {}", loss("sync"), loss("one"));
    site.assert_empty();
}

#[test]
fn all_reduce_in_shared_memory_is_measured_in_place_and_copying() {
    let site = Site::new();
    let flags = ["--transport", "shm", "--ranks", "3", "--sizes", "4KiB,1MiB", "--seconds", "0.05", "--json"];
    let ended = site.succeed(&[&["bench", "allreduce"][..], &flags].concat());
    let lines: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<(&str, u64)> = lines
        .iter()
        .map(|line| (line["algorithm"].as_str().unwrap(), line["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(
        found,
        [("arena", 4096), ("arena-copying", 4096), ("arena", 1 << 20), ("arena-copying", 1 << 20)]
    );
    for line in &lines {
        assert_eq!(keys(line), KEYS);
        assert_eq!((&line["transport"], &line["n"]), (&"shm".into(), &3.into()));
        assert!(line["us_min"].as_f64().unwrap() > 0.0 && line["us"].as_f64() >= line["us_min"].as_f64());
    }
    site.assert_empty();
}

/// The keys of the benchmark programs for other libraries, and our own.
const KEYS: [&str; 8] = ["algorithm", "bus_gbps", "bytes", "n", "peer", "transport", "us", "us_min"];

fn keys(line: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn every_algorithm_is_measured_by_name_over_tcp() {
    let site = Site::new();
    let flags = ["--transport", "tcp", "--ranks", "3", "--sizes", "64KiB", "--seconds", "0.02", "--json"];
    let names = [
        "ring",
        "binomial-tree",
        "recursive-doubling",
        "halving-doubling",
        "direct",
        "tree-aggregate",
        "hierarchical",
    ];
    for name in names.iter().copied().chain(["auto"]) {
        let chosen = if name == "auto" { vec![] } else { vec!["--algorithm", name] };
        let ended = site.succeed(&[&["bench", "allreduce"][..], &flags, &chosen].concat());
        let lines: Vec<Value> =
            ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1, "{name}: {}", ended.stdout);
        let line = &lines[0];
        assert_eq!(keys(line), KEYS, "{name}");
        let found = (&line["peer"], &line["transport"], &line["n"], &line["bytes"]);
        assert_eq!(found, (&"thalweg".into(), &"tcp".into(), &3.into(), &65536.into()), "{name}");
        let algorithm = line["algorithm"].as_str().unwrap();
        assert!(algorithm == name || name == "auto" && names.contains(&algorithm), "{name}: {algorithm}");
        let (us, gbps) = (line["us"].as_f64().unwrap(), line["bus_gbps"].as_f64().unwrap());
        let carried = 2.0 * 2.0 / 3.0 * 65536.0 / us / 1e3;
        assert!(us > 0.0 && (gbps - carried).abs() <= 0.02 * carried + 0.002, "{name}: {us} us, {gbps} GB/s");
    }
    site.assert_empty();
}
