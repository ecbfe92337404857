//! The `thalweg` binary.

use clap::Parser;
use std::process::ExitCode;
use thalweg::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
