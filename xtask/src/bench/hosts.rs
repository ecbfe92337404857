//! `cargo xtask bench hosts`: several hosts on links of a known rate, compared with a plain TCP stream.
//!
//! Hosts are network namespaces of this machine and share its cores: only links are measured. At each rate an all-reduce is
//! compared with its bound, 2 (n - 1) / n times its bytes at the goodput of a plain stream in the same run. At the first
//! rate a job is trained with the gradient in buckets and as a whole, on as many hosts as there are cores (so that each
//! computes while bytes are in flight) and on all hosts; then a host is disconnected.

mod network;
mod ranks;
pub mod stream;

use super::peer::yes;
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use network::Network;
use ranks::{Ranks, numbers};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct Arguments {
    /// Hosts, one rank on each
    #[arg(long, default_value_t = 4)]
    hosts: usize,
    /// Rates of the links in the notation of `tc`; training uses the first
    #[arg(long, value_delimiter = ',', default_value = "1gbit,100mbit")]
    rates: Vec<String>,
    /// Size of the all-reduce in MiB
    #[arg(long, default_value_t = 16)]
    mebibytes: usize,
    /// Seconds per all-reduce and per plain stream
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Share of the bound to reach.
const TARGET: f64 = 0.95;
/// Timeout of a group of ranks.
const LIMIT: Duration = Duration::from_secs(120);
const STEP_DEADLINE: Duration = Duration::from_secs(2);

/// A job whose exchange takes about as long as its computation at 1 Gbit/s: 5.4 MB in 14 tensors.
const JOB: &[&str] = &[
    "model.layers=['dense 512 relu', 'dense 512 relu', 'dense 512 relu', 'dense 512 relu', 'dense 512 relu', 'dense 512 relu', 'dense auto']",
    "train.global_batch=1024",
    "train.epochs=1000000",
];

/// Fails if an all-reduce misses its target or a disconnected host is not named in time.
pub fn run(arguments: &Arguments) -> Outcome {
    if let Some(reason) = Network::unavailable() {
        println!("skipped: hosts: {reason}");
        return Ok(());
    }
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let mut passed = true;
    for rate in &arguments.rates {
        let network = Network::up(arguments.hosts, rate)?;
        passed &= all_reduce(&network, rate, &binary, arguments)?;
    }
    let Some(rate) = arguments.rates.first() else { return Ok(()) };
    let cores = std::thread::available_parallelism().map_or(1, usize::from).clamp(2, arguments.hosts.max(2));
    if cores < arguments.hosts {
        let network = Network::up(cores, rate)?;
        train_whole_and_bucketed(&network, rate, &binary)?;
    }
    let network = Network::up(arguments.hosts, rate)?;
    train_whole_and_bucketed(&network, rate, &binary)?;
    disconnect_host(&network, &binary)?;
    if passed { Ok(()) } else { Err("a target was missed".into()) }
}

/// Measures an all-reduce and its bound; returns whether the target is met.
fn all_reduce(network: &Network, rate: &str, binary: &Path, arguments: &Arguments) -> Outcome<bool> {
    let before = stream::goodput(network, 0, 1, arguments.seconds)?;
    let size = format!("{}MiB", arguments.mebibytes);
    let seconds = arguments.seconds.to_string();
    let command = ["bench", "allreduce", "--json", "--transport", "tcp", "--algorithm", "ring"];
    let command = [&command[..], &["--sizes", &size, "--seconds", &seconds]].concat();
    let mut ranks = Ranks::start(network, binary, &command)?;
    ranks.succeed(LIMIT)?;
    let text = ranks.output(0);
    let after = stream::goodput(network, network.len() - 1, 0, arguments.seconds)?;
    let goodput = (before + after) / 2.0;
    let measured = |key: &str| numbers(&text, key).first().map(|us| us / 1e6);
    let (Some(median), Some(best)) = (measured("us"), measured("us_min")) else {
        return Err(format!("no figures in: {text}"));
    };
    let n = network.len() as f64;
    let bound = 2.0 * (n - 1.0) / n * (arguments.mebibytes << 20) as f64 / goodput;
    println!(
        "{rate:>8}: plain stream {:.1} and {:.1} MB/s; all-reduce of {size} among {n}: {:.1} ms (best {:.1}), bound {:.1} \
         ms: {:.1}% of it (best {:.1}%; to reach {:.0}%: {})",
        before / 1e6,
        after / 1e6,
        1e3 * median,
        1e3 * best,
        1e3 * bound,
        100.0 * bound / median,
        100.0 * bound / best,
        100.0 * TARGET,
        yes(bound / median >= TARGET),
    );
    Ok(bound / median >= TARGET)
}

fn train_whole_and_bucketed(network: &Network, rate: &str, binary: &Path) -> Outcome {
    ["whole", "auto"].into_iter().try_for_each(|bucket| train(network, rate, binary, bucket))
}

/// Trains some steps and prints the rate and the share of overlapped exchange.
fn train(network: &Network, rate: &str, binary: &Path, bucket: &str) -> Outcome {
    let bucket_setting = format!("strategy.exchange.bucket={bucket}");
    let settings =
        [JOB, &["train.max_steps=40", "strategy.exchange.algorithm=ring", &bucket_setting]].concat();
    let mut ranks = Ranks::train(network, binary, &settings)?;
    ranks.succeed(LIMIT)?;
    let report = ranks.report()?;
    let sum = |key: &str| numbers(&report, key).iter().sum::<f64>();
    let (overlapped, exposed) = (sum("hidden_s"), sum("exchange_s"));
    println!(
        "{rate:>8}: training on {} hosts, bucket = {bucket}: {:.0} rows/s; exchange {:.2} s exposed, {overlapped:.2} s \
         overlapped over all ranks: {:.0}% overlapped",
        network.len(),
        numbers(&report, "samples_per_s").first().copied().unwrap_or(f64::NAN),
        exposed,
        100.0 * overlapped / (overlapped + exposed).max(1e-9),
    );
    Ok(())
}

/// Disconnects the last host: its rank must be named within the step deadline, and the other ranks continue.
fn disconnect_host(network: &Network, binary: &Path) -> Outcome {
    let deadline = format!("fault.step_deadline={}s", STEP_DEADLINE.as_secs());
    let settings = [JOB, &[&deadline, "strategy.exchange.algorithm=ring"]].concat();
    let mut ranks = Ranks::train(network, binary, &settings)?;
    ranks.wait_for_steps(LIMIT)?;
    let last = network.len() - 1;
    network.disconnect(last)?;
    let begin = Instant::now();
    ranks.wait_for_output(0, &format!("rank {last}"), LIMIT)?;
    let named = begin.elapsed();
    ranks.wait_for_output(0, "going on from step", LIMIT)?;
    let in_time = named <= STEP_DEADLINE;
    println!(
        "a disconnected host: rank {last} named after {:.2} s (step deadline {:.0} s: {}), the others continue after {:.2} s",
        named.as_secs_f64(),
        STEP_DEADLINE.as_secs_f64(),
        if in_time { "met" } else { "MISSED" },
        begin.elapsed().as_secs_f64(),
    );
    match in_time {
        true => Ok(()),
        false => Err(format!("rank {last} was named too late:\n{}", ranks.output(0))),
    }
}
