//! Where the process may end itself: at the edge of the binary. Elsewhere an error is returned, so that destructors run
//! and callers decide.

use super::Finding;
use super::rust::{code_only, has_word};
use super::tree::Tree;

/// Files that may end the process, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    (
        "crates/cluster/src/forced_exit.rs",
        "a signal or the end of the job ends a worker whose program does not return",
    ),
    ("crates/comm/src/linux/process.rs", "wraps _exit, which works whatever locks other threads hold"),
    (
        "crates/thalweg/src/launch.rs",
        "a worker process ends here: its exit code is its result for the launcher",
    ),
    ("crates/thalweg/src/main.rs", "the edge of the binary"),
    (
        "crates/thalweg/src/signals.rs",
        "a signal before training starts ends the process from the signal thread",
    ),
    (
        "crates/thalweg/src/simulation.rs",
        "a signal that cannot wait for the next step ends the process from the signal thread",
    ),
    ("crates/thalweg/src/trainer.rs", "a worker of another launcher has no report to return to the program"),
];

/// Only the allowed files call `process::exit` or its variants, and each exemption is in use.
pub fn process_exit(tree: &Tree) -> Vec<Finding> {
    check(tree, ALLOWED)
}

fn check(tree: &Tree, allowed: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in allowed.iter().filter(|(path, _)| tree.text(path).is_none()) {
        findings.push(Finding::new(path, 1, "does not exist; drop its exemption in xtask/src/tidy/exit.rs"));
    }
    for (file, text) in tree.with_extension("rs") {
        let exemption = allowed.iter().find(|(path, _)| *path == file.path);
        let code = code_only(text);
        let exits: Vec<usize> =
            code.lines().enumerate().filter(|(_, line)| exits(line)).map(|(at, _)| at + 1).collect();
        match exemption {
            None => {
                let advice = "return an error instead; only the edge of the binary ends the process";
                findings.extend(exits.iter().map(|line| Finding::new(&file.path, *line, advice)));
            }
            Some((_, "")) => {
                findings.push(Finding::new(
                    &file.path,
                    1,
                    "give its exemption in xtask/src/tidy/exit.rs a reason",
                ));
            }
            // `main` returns an ExitCode; the edge stays allowed without a use.
            Some(_) if exits.is_empty() && file.stem() != "main" => {
                let advice = "never ends the process; drop its exemption in xtask/src/tidy/exit.rs";
                findings.push(Finding::new(&file.path, 1, advice));
            }
            Some(_) => {}
        }
    }
    findings
}

/// Whether a line of code ends the process, or imports a function that does.
fn exits(line: &str) -> bool {
    let imported = line.trim_start().starts_with("use ") && line.contains("process::{");
    line.contains("process::exit")
        || line.contains("process::abort")
        || line.contains("libc::_exit")
        || line.contains("libc::exit")
        || line.contains("exit_now(")
        || imported && (has_word(line, "exit") || has_word(line, "abort"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[(&str, &str)] =
        &[("a.rs", "the edge"), ("b.rs", "it once did"), ("c.rs", ""), ("gone.rs", "it is gone")];

    #[test]
    fn exits_need_an_exemption_and_exemptions_need_an_exit_and_a_reason() {
        let bare = "fn f() {\n    std::process::exit(1);\n}\n// process::exit in a comment\n";
        let imported = "use std::process::{Command, exit};\n";
        let calm = "use std::process::{Command, ExitCode};\n";
        let tree =
            Tree::of(&[("a.rs", bare), ("b.rs", calm), ("c.rs", bare), ("d.rs", bare), ("e.rs", imported)]);
        let found: Vec<_> =
            check(&tree, ALLOWED).into_iter().map(|finding| (finding.path, finding.line)).collect();
        let expected = [("gone.rs", 1), ("b.rs", 1), ("c.rs", 1), ("d.rs", 2), ("e.rs", 1)];
        assert_eq!(found, expected.map(|(path, line)| (path.to_string(), line)));
    }

    #[test]
    fn every_exemption_has_a_reason() {
        assert!(super::ALLOWED.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
