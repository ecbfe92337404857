//! Development tasks, one file each: `cargo xtask verify | fix | tidy | test | fuzz | bench`.
//!
//! `verify` changes nothing; `fix` applies automatic fixes. Tasks run the usual tools and print the command that repeats a
//! failure.

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
#[command(name = "cargo xtask", about = "Development tasks of the Thalweg workspace")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check format, clippy, documentation, tidy rules and licences; changes nothing
    Verify,
    /// Format, apply clippy's suggestions and the automatic fixes of tidy
    Fix,
    /// Check the tidy rules of the repository
    Tidy(tidy::Arguments),
    /// Run the tests; with --external those that need Python packages, MPI or network namespaces
    Test(test::Arguments),
    /// Fuzz every file reader, by seed
    Fuzz(fuzz::Arguments),
    /// Run benchmarks
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Verify => verify::run(),
        Task::Fix => fix::run_all(),
        Task::Tidy(arguments) => tidy::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
