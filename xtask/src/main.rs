//! Chores of the workspace, one file each: `cargo xtask verify | fix | tidy | test | fuzz | bench`.
//!
//! `verify` only looks; `fix` changes what a machine can change. Everything here calls the tools a developer would
//! call by hand and says which command repeats a failure.

mod bench;
mod command;
mod external;
mod fix;
mod fuzz;
mod test;
mod tidy;
mod verify;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the Thalweg workspace")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Format, clippy, documentation, tidy rules and licences; changes nothing
    Verify,
    /// Format, apply clippy's suggestions and mend what tidy can mend
    Fix,
    /// Only the tidy rules of the repository
    Tidy(tidy::Arguments),
    /// The tests; with --external those that need Python packages, MPI or network namespaces
    Test(test::Arguments),
    /// Hostile files of every kind that is read, by seed
    Fuzz(fuzz::Arguments),
    /// Measurements of what the project promises
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Verify => verify::run(),
        Chore::Fix => fix::run_all(),
        Chore::Tidy(arguments) => tidy::run(&arguments),
        Chore::Test(arguments) => test::run(&arguments),
        Chore::Fuzz(arguments) => fuzz::run(&arguments),
        Chore::Bench(arguments) => bench::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
