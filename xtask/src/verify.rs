//! `cargo xtask verify`: everything that can be said about the tree without running it; changes nothing.
//!
//! All checks run, so that one look shows all there is to do; the end says which failed and how to repeat each.

use crate::command::{self, Outcome, cargo, spelled, succeeds};
use crate::tidy;
use std::process::Command;

/// Runs every check.
fn run_checks() -> Vec<(String, Outcome)> {
    let mut checks = vec![
        check("format", cargo(&["fmt", "--all", "--check"])),
        check("clippy", cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        check("documentation", documentation()),
    ];
    announce("tidy");
    checks.push(("cargo xtask tidy".into(), tidy::run(&tidy::Arguments::default())));
    if succeeds(&mut cargo(&["deny", "--version"])) {
        checks.push(check("licences", cargo(&["deny", "check", "licenses", "bans", "sources"])));
    } else {
        announce("licences");
        println!("skipped: cargo-deny is not installed (cargo install --locked cargo-deny)");
    }
    checks
}

/// Runs every check and sums up.
pub fn run() -> Outcome {
    let mut failed = Vec::new();
    for (repeat, outcome) in run_checks() {
        failed.extend(outcome.err().map(|message| format!("  {message}\n      repeat: {repeat}")));
    }
    if failed.is_empty() {
        println!("\nverify: all is well");
        return Ok(());
    }
    Err(format!("verify found something to do:\n{}", failed.join("\n")))
}

fn documentation() -> Command {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn check(name: &str, mut command: Command) -> (String, Outcome) {
    announce(name);
    let outcome = command::run(&mut command).map_err(|_| format!("{name} failed"));
    (spelled(&command), outcome)
}

fn announce(name: &str) {
    println!("\n== {name}");
}
