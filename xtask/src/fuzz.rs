//! `cargo xtask fuzz`: hostile files of every kind that Thalweg reads, by seed.
//!
//! The cases run inside a process of the package `fuzz`, through the functions that the commands call. A panic, an abort, a
//! case of more than two seconds, memory beyond a limit, an error of another kind than "the job or the data is wrong",
//! and an error that does not name the file are findings; each is printed with the command that repeats it. A sample goes
//! through the `thalweg` binary as well.

mod binary;
mod supervise;

use crate::command::{Outcome, build_package, cargo, root};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;
use supervise::{Batch, Tally};

/// What to run.
#[derive(Args)]
pub struct Arguments {
    /// How many cases
    #[arg(long, value_name = "N", default_value_t = 5000)]
    cases: u64,
    /// What all choices are drawn from
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The first case
    #[arg(long, value_name = "CASE", default_value_t = 0)]
    first: u64,
    /// Only files of this kind: job, csv, tsv, jsonl, libsvm, idx, parquet, gz, text, onnx, model, checkpoint, report, join
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// How many of them go through the binary too
    #[arg(long, value_name = "N", default_value_t = 0)]
    binary: u64,
    /// Write the files of the cases under this folder instead of running them
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

/// Runs them and counts.
pub fn run(arguments: &Arguments) -> Outcome {
    let program = build_package(&mut cargo(&[]), "thalweg-fuzz", &[])?;
    let Arguments { cases, seed, first, kind, .. } = arguments;
    let batch = Batch { program, seed: *seed, kind: kind.clone() };
    if let Some(folder) = &arguments.keep {
        return batch.keep(*first, *cases, &root().join(folder));
    }
    println!("fuzz: {cases} cases from case {first} of seed {seed}");
    let mut tally = Tally::default();
    batch.run(*first, *cases, &mut tally)?;
    if arguments.binary > 0 {
        let thalweg = crate::command::build_thalweg(&[])?;
        binary::run(&thalweg, &batch, *first, arguments.binary, &mut tally)?;
    }
    println!(
        "fuzz: {} cases, {} refused with a reason, {} findings",
        tally.cases,
        tally.refused,
        tally.findings.len()
    );
    match tally.findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} files were not read or refused as they should be")),
    }
}

/// What repeats a case.
fn repeated(batch: &Batch, case: u64) -> String {
    let mut command = Command::new("cargo");
    command.args([
        "xtask",
        "fuzz",
        "--cases",
        "1",
        "--seed",
        &batch.seed.to_string(),
        "--first",
        &case.to_string(),
    ]);
    command.args(batch.kind.iter().flat_map(|kind| ["--kind", kind]));
    crate::command::spelled(&command)
}
