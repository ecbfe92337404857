//! `cargo xtask verify`: all static checks; changes nothing.
//!
//! All checks run even if one fails; the summary lists the failed ones with the commands that repeat them.

use crate::command::{self, Outcome, cargo, shell_line, succeeds, succeeds_within};
use crate::tidy;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

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
        if has_advisories() {
            checks.push(check("advisories", cargo(&["deny", "check", "--disable-fetch", "advisories"])));
        } else {
            announce("advisories");
            println!("skipped: advisories: no database is available (cargo deny fetch db)");
        }
    } else {
        announce("licences");
        println!("skipped: cargo-deny is not installed (cargo install --locked cargo-deny)");
    }
    checks
}

/// Whether a database of advisories is available, after an attempt to update it.
fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let cached = home.map(|home| home.join("advisory-dbs")).and_then(|folder| folder.read_dir().ok());
    succeeds_within(&mut cargo(&["deny", "fetch", "db"]), FETCH_TIMEOUT)
        || cached.is_some_and(|mut cached| cached.next().is_some())
}

const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs every check and sums up.
pub fn run() -> Outcome {
    let mut failed = Vec::new();
    for (repeat, outcome) in run_checks() {
        failed.extend(outcome.err().map(|message| format!("  {message}\n      repeat: {repeat}")));
    }
    if failed.is_empty() {
        println!("\nverify: all checks passed");
        return Ok(());
    }
    Err(format!("checks failed:\n{}", failed.join("\n")))
}

fn documentation() -> Command {
    let mut command = cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

fn check(name: &str, mut command: Command) -> (String, Outcome) {
    announce(name);
    let outcome = command::run(&mut command).map_err(|_| format!("{name} failed"));
    (shell_line(&command), outcome)
}

fn announce(name: &str) {
    println!("\n== {name}");
}
