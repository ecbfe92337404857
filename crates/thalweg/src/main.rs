//! The `thalweg` binary.

use std::io::Write;
use std::process::ExitCode;
use thalweg::cli::Cli;

fn main() -> ExitCode {
    match Cli::from_command_line().and_then(Cli::run) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // stderr may be closed; the exit code still reports the failure.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
