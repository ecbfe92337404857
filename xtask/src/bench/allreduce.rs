//! `cargo xtask bench allreduce`: `thalweg bench allreduce` compared with Open MPI and Gloo on one transport.
//!
//! On `tcp`, Open MPI is restricted to TCP. On `shm` it uses its own shared memory, and two of our variants are measured:
//! tensors that are allocated in the arena, and private tensors that are copied into and out of it.
//!
//! All systems take turns in several rounds, so that noise of the machine affects all of them; each figure is the median.
//! A missed target is a failure.

mod peers;
mod table;

use super::against::{self, Pairs, Verdict};
use super::peer::Peers;
use crate::command::{Outcome, build_thalweg};
use clap::Args;
use peers::Runners;
use std::path::{Path, PathBuf};
use std::process::Command;
use table::{Figures, record};

#[derive(Args)]
pub struct Arguments {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    ranks: Vec<usize>,
    /// The transport: shm or tcp
    #[arg(long, default_value = "shm")]
    transport: String,
    /// Seconds per size and round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds in which all systems take turns
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The launcher of an Open MPI; its mpicc is in the same folder
    #[arg(long, default_value = "mpirun")]
    mpirun: PathBuf,
    #[command(flatten)]
    peers: Peers,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another binary of this project to compare with instead of the peers, in alternating pairs
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
}

/// Measures all systems and prints a table with ratios.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    if let Some(other) = &arguments.against {
        return compare_binaries(arguments, &binary, other);
    }
    let runners = Runners::find(arguments);
    let mut figures = Figures::new();
    for _ in 0..arguments.rounds {
        for &ranks in &arguments.ranks {
            record(&mut figures, &mut our_command(arguments, &binary, ranks))?;
            for mut command in runners.commands(arguments, ranks) {
                record(&mut figures, &mut command)?;
            }
        }
    }
    let (table, passed) = table::table(&arguments.transport, &figures);
    print!("{table}");
    if passed { Ok(()) } else { Err("a target was missed".into()) }
}

fn our_command(arguments: &Arguments, binary: &Path, ranks: usize) -> Command {
    let mut command = Command::new(binary);
    command.args(["bench", "allreduce", "--json", "--transport", &arguments.transport]);
    command.args(["--seconds", &arguments.seconds.to_string(), "--ranks", &ranks.to_string()]);
    command
}

/// The same sizes with another binary of this project, in alternating pairs of rounds; fails if a case is slower.
fn compare_binaries(arguments: &Arguments, ours: &Path, other: &Path) -> Outcome {
    let [mut our_figures, mut other_figures] = [Figures::new(), Figures::new()];
    for round in 0..arguments.rounds.max(1) {
        for &ranks in &arguments.ranks {
            let run =
                |figures: &mut Figures, binary| record(figures, &mut our_command(arguments, binary, ranks));
            if round % 2 == 0 {
                run(&mut our_figures, ours)?;
            }
            run(&mut other_figures, other)?;
            if round % 2 == 1 {
                run(&mut our_figures, ours)?;
            }
        }
    }
    println!("calls per second; {}", against::HEADER);
    let mut passed = true;
    for ((ranks, bytes), kinds) in &our_figures {
        for (kind, times) in kinds {
            let other_times = other_figures.get(&(*ranks, *bytes)).and_then(|kinds| kinds.get(kind));
            let mut pairs = Pairs::default();
            for (time, other) in times.iter().zip(other_times.into_iter().flatten()) {
                pairs.push(1e6 / time, 1e6 / other);
            }
            println!("{}", pairs.line(&format!("{ranks} x {bytes} {kind}"), None));
            passed &= pairs.verdict() != Verdict::Slower;
        }
    }
    if passed { Ok(()) } else { Err("a case is slower than with the other binary".into()) }
}
