//! `cargo xtask fuzz`: mutated files for every file reader of Thalweg, by seed.
//!
//! The cases run in a process of the package `fuzz`, through the functions that the commands call. Findings are a panic, an
//! abort, a case of over two seconds, memory beyond a limit, an error of a kind other than job or data, and an error that
//! does not name the file; each is printed with the command that repeats it. A sample also runs through the `thalweg`
//! binary.

mod binary;
mod supervise;

use crate::command::{Outcome, build_package, cargo, root};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;
use supervise::{CaseRunner, FuzzResults};

#[derive(Args)]
pub struct Arguments {
    /// Number of cases
    #[arg(long, value_name = "N", default_value_t = 5000)]
    cases: u64,
    /// Seed of all random choices
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The first case
    #[arg(long, value_name = "CASE", default_value_t = 0)]
    first: u64,
    /// Only files of this kind: job, csv, tsv, jsonl, libsvm, idx, parquet, gz, text, onnx, model, checkpoint, report, join
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Number of cases that also run through the binary
    #[arg(long, value_name = "N", default_value_t = 0)]
    binary: u64,
    /// Write the files of the cases under this folder instead of running them
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let program = build_package(&mut cargo(&[]), "thalweg-fuzz", &[])?;
    let Arguments { cases, seed, first, kind, .. } = arguments;
    let runner = CaseRunner { program, seed: *seed, kind: kind.clone() };
    if let Some(folder) = &arguments.keep {
        return runner.keep(*first, *cases, &root().join(folder));
    }
    println!("fuzz: {cases} cases from case {first} of seed {seed}");
    let mut results = FuzzResults::default();
    runner.run(*first, *cases, &mut results)?;
    if arguments.binary > 0 {
        let thalweg = crate::command::build_thalweg(&[])?;
        binary::run(&thalweg, &runner, *first, arguments.binary, &mut results)?;
    }
    println!(
        "fuzz: {} cases, {} refused with a reason, {} findings",
        results.cases,
        results.refused,
        results.findings.len()
    );
    match results.findings.len() {
        0 => Ok(()),
        count => Err(format!("{count} files were neither read nor refused correctly")),
    }
}

/// The command that repeats a case.
fn repeat_command(runner: &CaseRunner, case: u64) -> String {
    let mut command = Command::new("cargo");
    command.args([
        "xtask",
        "fuzz",
        "--cases",
        "1",
        "--seed",
        &runner.seed.to_string(),
        "--first",
        &case.to_string(),
    ]);
    command.args(runner.kind.iter().flat_map(|kind| ["--kind", kind]));
    crate::command::shell_line(&command)
}
