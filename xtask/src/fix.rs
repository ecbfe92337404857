//! `cargo xtask fix`: automatic fixes; review the change before you commit it.

use crate::command::{Outcome, cargo, run};
use crate::tidy;

/// Clippy's suggestions first, then the format, then tidy.
pub fn run_all() -> Outcome {
    run(&mut cargo(&["clippy", "--fix", "--workspace", "--all-targets", "--allow-dirty", "--allow-staged"]))?;
    run(&mut cargo(&["fmt", "--all"]))?;
    tidy::run(&tidy::Arguments { fix: true })
}
