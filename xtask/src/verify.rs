//! `cargo xtask verify`: everything that can be said about the tree without running it; changes nothing.
//!
//! All checks run, so that one look shows all there is to do; the end says which failed and how to repeat each.

use crate::command::{self, Outcome, cargo, spelled, succeeds, succeeds_within};
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
            println!("skipped: advisories: no database can be had (cargo deny fetch db)");
        }
    } else {
        announce("licences");
        println!("skipped: cargo-deny is not installed (cargo install --locked cargo-deny)");
    }
    checks
}

/// Whether the database of known weaknesses is here, the newest one if it can be reached.
fn has_advisories() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let kept = home.map(|home| home.join("advisory-dbs")).and_then(|folder| folder.read_dir().ok());
    succeeds_within(&mut cargo(&["deny", "fetch", "db"]), FETCH)
        || kept.is_some_and(|mut kept| kept.next().is_some())
}

/// Time that a download may take.
const FETCH: Duration = Duration::from_secs(60);

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
