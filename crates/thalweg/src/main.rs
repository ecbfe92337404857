//! The `thalweg` binary.

use std::process::ExitCode;
use thalweg::cli::Cli;

fn main() -> ExitCode {
    match Cli::of_command_line().and_then(Cli::run) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
