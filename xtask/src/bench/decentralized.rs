//! `cargo xtask bench decentralized`: accuracy and consensus of every decentralized strategy over virtual time.
//!
//! Each trains the digits on the simulated network, where a seed repeats a run. The table goes to standard output, the curves
//! to an SVG file.

mod chart;

use crate::command::{Outcome, build_thalweg, shell_line, succeeds_within};
use chart::{Chart, Curve};
use clap::Args;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const STRATEGIES: [&str; 15] = [
    "sparknet",
    "block-momentum",
    "diloco",
    "slowmo",
    "post-local-sgd",
    "mpca-sgd",
    "easgd",
    "tree-easgd",
    "dpsgd",
    "sgp",
    "adpsgd",
    "gosgd",
    "gossip-learning",
    "ensemble",
    "allreduce",
];

#[derive(Args)]
pub struct Arguments {
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_value = "64,256")]
    workers: Vec<usize>,
    /// Strategies
    #[arg(long, value_delimiter = ',', default_values = STRATEGIES)]
    strategies: Vec<String>,
    #[arg(long, default_value_t = 20)]
    epochs: u32,
    /// A binary of thalweg; without it the release build
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Seconds after which a run is given up
    #[arg(long, default_value_t = 120)]
    limit: u64,
    /// The picture
    #[arg(long, default_value = "docs/decentralized.svg")]
    svg: PathBuf,
}

/// What a run came to, epoch by epoch.
struct Run {
    strategy: String,
    workers: usize,
    epochs: Vec<Epoch>,
    bytes_per_step: f64,
}

#[derive(Clone, Copy)]
struct Epoch {
    /// Virtual seconds of training.
    seconds: f64,
    accuracy: f64,
    /// Of the workers' own models.
    mean_of_workers: Option<f64>,
    consensus: Option<f64>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let mut runs = Vec::new();
    println!(
        "| workers | strategy | virtual s | accuracy | of a worker's model | consensus | bytes per local step |"
    );
    println!("|---|---|---|---|---|---|---|");
    for workers in &arguments.workers {
        for strategy in &arguments.strategies {
            match train(arguments, &binary, strategy, *workers) {
                Ok(run) => {
                    println!("{}", row(&run));
                    runs.push(run);
                }
                Err(reason) => eprintln!("{workers} workers of {strategy}: {reason}"),
            }
        }
    }
    let svg = picture(&arguments.workers, &arguments.strategies, &runs);
    fs::write(&arguments.svg, svg)
        .map_err(|error| format!("cannot write {}: {error}", arguments.svg.display()))
}

fn train(arguments: &Arguments, binary: &Path, strategy: &str, workers: usize) -> Outcome<Run> {
    let folder = std::env::temp_dir().join(format!("thalweg-decentralized-{}", std::process::id()));
    let mut command = Command::new(binary);
    command.args([
        "train",
        "--overwrite",
        "--strategy",
        strategy,
        "--workers",
        &workers.to_string(),
        "--out",
    ]);
    command.arg(&folder);
    let epochs = format!("train.epochs={}", arguments.epochs);
    for setting in [
        "engine.kind=sim",
        "engine.network.speed=1e8",
        "train.global_batch=256",
        "train.optimizer={kind=\"sgd\", lr=0.1}",
        "fault.checkpoint_every=0",
        &epochs,
    ] {
        command.args(["--set", setting]);
    }
    if strategy == "gossip-learning" {
        // Every rank evaluates the mean of all models in caches, not each of them.
        command.args(["--set", "strategy.ensemble.combine=merge"]);
    }
    if !succeeds_within(&mut command, Duration::from_secs(arguments.limit)) {
        return Err(format!("`{}` failed, or took more than {} s", shell_line(&command), arguments.limit));
    }
    let text = fs::read_to_string(folder.join("report.json")).map_err(|error| error.to_string());
    let _ = fs::remove_dir_all(&folder);
    let report: Value = serde_json::from_str(&text?).map_err(|error| error.to_string())?;
    let epochs = epochs_of(&report);
    if epochs.is_empty() {
        return Err("the report has no epochs".into());
    }
    let bytes_per_step = match report["local"]["bytes_per_step"].as_f64() {
        Some(bytes) => bytes,
        None => bytes_per_step(&report, workers),
    };
    Ok(Run { strategy: strategy.into(), workers, epochs, bytes_per_step })
}

/// Of strategies that report no local steps: one per worker and step of the job.
fn bytes_per_step(report: &Value, workers: usize) -> f64 {
    let ranks = report["ranks"].as_array().map_or(&[][..], Vec::as_slice);
    let sent: f64 = ranks.iter().filter_map(|rank| rank["bytes_sent"].as_f64()).sum();
    sent / (report["steps"].as_f64().unwrap_or(1.0) * workers as f64)
}

/// Every epoch with the evaluation at its end.
fn epochs_of(report: &Value) -> Vec<Epoch> {
    let list = |name: &str| report[name].as_array().map_or(&[][..], Vec::as_slice);
    let epoch = |epoch: &Value| {
        let at = list("evaluations").iter().find(|at| at["step"] == epoch["step"])?;
        let members = epoch["members"].as_array().map_or(&[][..], Vec::as_slice);
        let sum: f64 = members.iter().filter_map(|member| member["accuracy"].as_f64()).sum();
        Some(Epoch {
            seconds: at["train_s"].as_f64()?,
            accuracy: at["metrics"]["accuracy"].as_f64()?,
            mean_of_workers: (!members.is_empty()).then(|| sum / members.len() as f64),
            consensus: epoch["consensus"].as_f64(),
        })
    };
    list("epochs").iter().filter_map(epoch).collect()
}

fn row(run: &Run) -> String {
    let Some(last) = run.epochs.last() else { return String::new() };
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    format!(
        "| {} | `{}` | {:.3} | {:.3} | {} | {} | {:.0} |",
        run.workers,
        run.strategy,
        last.seconds,
        last.accuracy,
        number(last.mean_of_workers),
        number(last.consensus),
        run.bytes_per_step
    )
}

/// A column of charts for each number of workers.
fn picture(workers: &[usize], strategies: &[String], runs: &[Run]) -> String {
    let mut charts = Vec::new();
    for count in workers {
        let curves = |value: fn(&Epoch) -> Option<f64>| -> Vec<Curve> {
            let of_count = runs.iter().filter(|run| run.workers == *count);
            of_count
                .map(|run| Curve {
                    index: strategies.iter().position(|name| *name == run.strategy).unwrap_or(0),
                    points: run.epochs.iter().filter_map(|at| Some((at.seconds, value(at)?))).collect(),
                })
                .collect()
        };
        charts.push(vec![
            Chart {
                title: format!("{count} workers: accuracy"),
                is_logarithmic: false,
                curves: curves(|at| Some(at.accuracy)),
            },
            Chart {
                title: format!("{count} workers: consensus (distance from the published model)"),
                is_logarithmic: true,
                curves: curves(|at| at.consensus.filter(|distance| *distance > 1e-6)),
            },
        ]);
    }
    chart::svg(&charts, strategies, "virtual seconds of training")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_read_from_a_report() {
        let text = r#"{ "steps": 12, "ranks": [{ "bytes_sent": 480 }],
            "evaluations": [{ "step": 6, "train_s": 0.5, "metrics": { "accuracy": 0.25 } }],
            "epochs": [{ "step": 6, "consensus": 1.5, "members": [{ "accuracy": 0.1 }, { "accuracy": 0.3 }] }, { "step": 12 }] }"#;
        let report: Value = serde_json::from_str(text).unwrap();
        let epochs = epochs_of(&report);
        assert_eq!(epochs.len(), 1);
        let Epoch { seconds, accuracy, mean_of_workers, consensus } = epochs[0];
        assert_eq!((seconds, accuracy, consensus), (0.5, 0.25, Some(1.5)));
        assert!((mean_of_workers.unwrap() - 0.2).abs() < 1e-9 && bytes_per_step(&report, 2) == 20.0);
    }
}
