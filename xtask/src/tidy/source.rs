//! Rules about Rust files: names, length, unfinished code, `unsafe` and Linux-only code.

use super::Finding;
use super::rust::{code_only, has_word};
use super::tree::{File, Tree};

const VAGUE_NAMES: &[&str] = &["utils", "util", "common", "base", "helpers", "helper", "misc"];
/// No file is longer than this.
const MAX_LINES: usize = 500;
/// A longer file needs a reason in its head.
const LONG: usize = 400;
/// A longer file gets a notice.
const GROWING: usize = 350;
/// How the reason begins, in the module comment.
const REASON: &str = "//! Longer than 400 lines because ";

/// No file has a vague name.
pub fn file_names(tree: &Tree) -> Vec<Finding> {
    let vague = tree.files.iter().filter(|file| VAGUE_NAMES.contains(&concept(file)));
    vague.map(|file| Finding::new(&file.path, 1, "name the file for its one subject")).collect()
}

/// The name of a file; `mod.rs` is named by its folder.
fn concept(file: &File) -> &str {
    match file.stem() {
        "mod" => file.folder().rsplit('/').next().unwrap_or_default(),
        stem => stem,
    }
}

/// No Rust file is past 400 lines without a reason in its head, and none past 500.
pub fn file_length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        let lines = text.lines().count();
        if lines > MAX_LINES {
            let advice = format!("{lines} lines; split it by subject, {MAX_LINES} at most");
            findings.push(Finding::new(&file.path, MAX_LINES + 1, advice));
        } else if lines > LONG && !has_reason(text) {
            let advice = format!("{lines} lines; split it by subject, or add `{REASON}...` to its head");
            findings.push(Finding::new(&file.path, LONG + 1, advice));
        }
    }
    findings
}

/// Whether the module comment gives a reason for the length.
fn has_reason(text: &str) -> bool {
    let mut head = text.lines().take_while(|line| line.starts_with("//!"));
    head.any(|line| line.strip_prefix(REASON).is_some_and(|reason| !reason.trim().is_empty()))
}

/// The Rust files that are getting long, longest first.
pub fn long_files(tree: &Tree) -> Vec<(&str, usize)> {
    let lengths = tree.with_extension("rs").map(|(file, text)| (file.path.as_str(), text.lines().count()));
    let mut long: Vec<_> = lengths.filter(|(_, lines)| (GROWING + 1..=MAX_LINES).contains(lines)).collect();
    long.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    long
}

/// No unfinished code, debug output or ignored test.
pub fn left_open(tree: &Tree) -> Vec<Finding> {
    let open_in_code = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let open_anywhere = [concat!("FIX", "ME")];
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        let code = code_only(text);
        for (number, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            let in_code = open_in_code.iter().filter(|mark| code.contains(**mark));
            for mark in in_code.chain(open_anywhere.iter().filter(|mark| line.contains(**mark))) {
                findings.push(Finding::new(&file.path, number + 1, format!("finish it and remove `{mark}`")));
            }
        }
    }
    findings
}

/// `unsafe` is used only in the allowed files, each time with a comment on why it is sound.
pub fn unsafe_code(tree: &Tree, allowed: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        let lines: Vec<&str> = text.lines().collect();
        for (number, _) in code_only(text).lines().enumerate().filter(|(_, code)| has_word(code, "unsafe")) {
            if !allowed.contains(&file.path.as_str()) {
                let advice = "use safe code, or add the file to UNSAFE_ALLOWED in xtask/src/tidy.rs";
                findings.push(Finding::new(&file.path, number + 1, advice));
            } else if !is_explained(&lines, number) {
                findings.push(Finding::new(
                    &file.path,
                    number + 1,
                    "explain why it is sound in a `// SAFETY:` comment",
                ));
            }
        }
    }
    findings
}

/// Signs of Linux-only code.
const LINUX_MARKS: &[&str] = &[
    "\"/proc",
    "\"/sys/",
    "\"proc/",
    "\"sys/",
    "\"/dev/shm",
    "target_os",
    "os::linux",
    "memfd",
    "nix::libc",
];

/// Linux-only code of the product is in one module; tests and tools are free.
pub fn linux_only(tree: &Tree, module: &str) -> Vec<Finding> {
    let product =
        |path: &str| path.starts_with("crates/") && path.contains("/src/") && !path.starts_with(module);
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs").filter(|(file, _)| product(&file.path)) {
        for (number, line) in text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]") {
            let comment = line.trim_start().starts_with("//");
            if !comment && LINUX_MARKS.iter().any(|mark| line.contains(mark)) {
                findings.push(Finding::new(&file.path, number + 1, format!("move it to {module}")));
            }
        }
    }
    findings
}

/// Whether the line, or a comment directly above it, has a safety comment.
fn is_explained(lines: &[&str], number: usize) -> bool {
    let mentions = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    let above = lines[..number].iter().rev().map(|line| line.trim_start());
    mentions(lines[number])
        || above.take_while(|line| line.starts_with("//") || line.starts_with("#[")).any(mentions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(findings: &[Finding]) -> Vec<(&str, usize)> {
        findings.iter().map(|finding| (finding.path.as_str(), finding.line)).collect()
    }

    #[test]
    fn vague_names_are_found() {
        let tree =
            Tree::of(&[("a/utils.rs", ""), ("b/common/mod.rs", ""), ("c/mod.rs", ""), ("d/ring.rs", "")]);
        assert_eq!(lines_of(&file_names(&tree)), [("a/utils.rs", 1), ("b/common/mod.rs", 1)]);
    }

    #[test]
    fn long_files_need_a_reason_and_none_passes_the_maximum() {
        let lines = |count: usize| "x\n".repeat(count);
        let headed = |head: &str, count: usize| format!("//! Subject.\n{head}\n{}", lines(count));
        let reasoned = headed("//! Longer than 400 lines because the table is one subject.", 498);
        let empty = headed("//! Longer than 400 lines because ", 400);
        let late = format!("{}//! Longer than 400 lines because it is late.\n", lines(400));
        let tree = Tree::of(&[
            ("fine.rs", &lines(400)),
            ("bare.rs", &lines(401)),
            ("reasoned.rs", &reasoned),
            ("empty.rs", &empty),
            ("late.rs", &late),
            ("longest.rs", &headed("//! Longer than 400 lines because it is.", 499)),
            ("a.md", &lines(501)),
        ]);
        let expected = [("bare.rs", 401), ("empty.rs", 401), ("late.rs", 401), ("longest.rs", 501)];
        assert_eq!(lines_of(&file_length(&tree)), expected);
    }

    #[test]
    fn growing_files_are_listed_longest_first() {
        let lines = |count: usize| "x\n".repeat(count);
        let tree = Tree::of(&[
            ("a.rs", &lines(350)),
            ("b.rs", &lines(351)),
            ("c.rs", &lines(500)),
            ("d.rs", &lines(501)),
        ]);
        assert_eq!(long_files(&tree), [("c.rs", 500), ("b.rs", 351)]);
    }

    #[test]
    fn unfinished_code_is_found_outside_comments() {
        let fixme = concat!("// FIX", "ME later\n");
        let source = format!("// todo! in words\nlet a = \"dbg!(x)\";\ntodo!()\n#[ignore = \"x\"]\n{fixme}");
        let tree = Tree::of(&[("a.rs", &source)]);
        assert_eq!(lines_of(&left_open(&tree)), [("a.rs", 3), ("a.rs", 4), ("a.rs", 5)]);
    }

    #[test]
    fn linux_only_code_has_one_module() {
        let bare = "fn f() {\n    read(\"/proc/self/status\");\n}\n#[cfg(test)]\nread(\"/proc/1\")\n";
        let paths = ["crates/comm/src/linux/a.rs", "crates/comm/src/b.rs", "crates/comm/tests/c.rs"];
        let tree = Tree::of(&paths.map(|path| (path, bare)));
        assert_eq!(lines_of(&linux_only(&tree, "crates/comm/src/linux/")), [("crates/comm/src/b.rs", 2)]);
    }

    #[test]
    fn unsafe_needs_an_allowed_file_and_a_reason() {
        let explained = "// SAFETY: it holds\n#[inline]\nunsafe { f() }\n// unsafe in words\n";
        let bare = "let x = 1;\nunsafe { f() }\n";
        let tree = Tree::of(&[("a.rs", explained), ("b.rs", bare), ("c.rs", bare)]);
        assert_eq!(lines_of(&unsafe_code(&tree, &["a.rs", "b.rs"])), [("b.rs", 2), ("c.rs", 2)]);
    }
}
