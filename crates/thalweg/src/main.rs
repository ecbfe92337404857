//! The `thalweg` binary.

use std::io::Write;
use std::process::ExitCode;
use thalweg::cli::Cli;

fn main() -> ExitCode {
    match Cli::of_command_line().and_then(Cli::run) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The terminal may have been closed: the exit code says it all the same.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
