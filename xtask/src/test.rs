//! `cargo xtask test`: the tests that need nothing but Rust, or with `--external` those that need more.

use crate::command::{Outcome, cargo, run as run_command};
use crate::external;
use clap::Args;

/// What to test.
#[derive(Args)]
pub struct Arguments {
    /// The tests under tests-external: Python packages, MPI, network namespaces
    #[arg(long)]
    external: bool,
    /// Passed on to `cargo test --workspace`, or to pytest
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Runs them.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.external {
        return external::run(&arguments.rest);
    }
    run_command(cargo(&["test", "--workspace"]).args(&arguments.rest))
}
