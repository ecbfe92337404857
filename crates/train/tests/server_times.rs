//! The time of an update by parameter servers whose connections are the bottleneck, against that of the literature.

mod harness;

use harness::{parameters, simulate};
use std::time::Duration;
use thalweg_comm::transport::sim::Network;
use thalweg_core::event::{Event, Outcome};

const WORKERS: usize = 64;

/// No latency. A message of 150 KB is shorter than what a simulated stream holds, so that it leaves whole.
fn network(half_duplex: bool) -> Network {
    Network {
        latency: Duration::ZERO,
        jitter: 0.0,
        bandwidth: 1e8,
        half_duplex,
        speed: 1e10,
        buffered: true,
        ..Network::ordinary(WORKERS, 1)
    }
}

/// Seconds of so many updates, and the number of parameters.
fn train(servers: usize, steps: usize, half_duplex: bool) -> (f64, usize) {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "strategy.preset=parameter-server",
        "strategy.exchange.bucket=whole",
        "model.layers=['dense 500', 'relu', 'dense 10']",
        "train.global_batch=64",
        "fault.checkpoint_every=0",
        &format!("train.max_steps={steps}"),
        &format!("strategy.servers.count={servers}"),
    ];
    let (ended, _) = simulate(network(half_duplex), &[], folder.path(), &settings);
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
    let seconds = ended.iter().flat_map(|ended| &ended.events).find_map(|event| match event {
        Event::Done { train_s, .. } => Some(*train_s),
        _ => None,
    });
    (seconds.unwrap(), parameters(folder.path()).len())
}

/// The time of an update, as a part of what the formula says.
fn part_of_formula(servers: usize, half_duplex: bool) -> f64 {
    let ((short, _), (long, parameters)) = (train(servers, 1, half_duplex), train(servers, 3, half_duplex));
    let Network { bandwidth, speed, .. } = network(half_duplex);
    let (n, k, parameters) = (WORKERS as f64, servers as f64, parameters as f64);
    let (transfer, addition, update) =
        (4.0 * parameters / bandwidth, parameters / speed, 10.0 * parameters / speed);
    // Langer et al., section 3.4.1, for k servers that have a part of the parameters each.
    let formula = 2.0 * n / k * transfer + (n - 1.0) / k * addition + update / k;
    (long - short) / 2.0 / formula
}

/// The formula counts pushes and pulls one after the other. Where a connection carries both directions at once, pulls overlap
/// the next pushes.
#[test]
fn updates_take_the_time_that_the_literature_says() {
    for servers in [1, 2, 4, 8] {
        let [half, full] = [true, false].map(|half_duplex| part_of_formula(servers, half_duplex));
        println!("{servers} servers: {half:.3} of the formula, {full:.3} with both directions at once");
        assert!((half - 1.0).abs() < 0.15, "{servers} servers: {half:.3} of the formula");
        assert!(full > 0.45 && full < 0.75 * half, "{servers} servers: {full:.3} of the formula");
    }
}
