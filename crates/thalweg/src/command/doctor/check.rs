//! The result of one check: its subject, the finding, and advice.

use crate::view::formatting::{counted, printable};
use serde::Serialize;
use std::fmt::Write;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    /// A job runs, but maybe not as expected.
    Warn,
    /// A job would fail.
    Fail,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    pub name: String,
    pub verdict: Verdict,
    pub found: String,
    pub advice: Option<String>,
}

impl Check {
    pub fn ok(name: &str, found: impl Into<String>) -> Check {
        Check { name: name.into(), verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    pub fn warn(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { verdict: Verdict::Warn, advice: Some(advice.into()), ..Check::ok(name, found) }
    }

    pub fn fail(name: &str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { verdict: Verdict::Fail, advice: Some(advice.into()), ..Check::ok(name, found) }
    }

    pub fn failed(&self) -> bool {
        self.verdict == Verdict::Fail
    }
}

/// The checks as text, one per line, with advice below its check.
pub(super) fn listing(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        };
        let _ = writeln!(text, "{verdict:<4}  {:<width$}  {}", check.name, printable(&check.found));
        if let Some(advice) = &check.advice {
            let _ = writeln!(text, "{:indent$}what to do: {}", "", printable(advice), indent = width + 8);
        }
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count() as u64;
    let summary = match (count(Verdict::Fail), count(Verdict::Warn)) {
        (0, 0) => "all is well".into(),
        (0, warnings) => format!("nothing failed, {}", counted(warnings, "warning")),
        (failures, 0) => counted(failures, "failure"),
        (failures, warnings) => {
            format!("{}, {}", counted(failures, "failure"), counted(warnings, "warning"))
        }
    };
    text + &summary + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_printed_below_its_check() {
        let checks =
            [Check::ok("cores", "2"), Check::fail("port 29500", "in use", "set engine.port to another one")];
        let expected = "\
ok    cores       2
fail  port 29500  in use
                  what to do: set engine.port to another one
1 failure
";
        assert_eq!(listing(&checks), expected);
        assert!(listing(&checks[..1]).ends_with("all is well\n"));
    }
}
