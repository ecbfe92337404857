//! Rules about Rust files: their names, their length, what stands in them.

use super::Finding;
use super::rust::{code_only, has_word};
use super::tree::{File, Tree};

const VAGUE_NAMES: &[&str] = &["utils", "util", "common", "base", "helpers", "helper", "misc"];
const LONGEST: usize = 500;
const LONG: usize = 350;

/// No file is named for holding things.
pub fn file_names(tree: &Tree) -> Vec<Finding> {
    let vague = tree.files.iter().filter(|file| VAGUE_NAMES.contains(&concept(file)));
    vague.map(|file| Finding::new(&file.path, 1, "name the file for the one thing it is about")).collect()
}

/// What a file is named for; `mod.rs` is named by its folder.
fn concept(file: &File) -> &str {
    match file.stem() {
        "mod" => file.folder().rsplit('/').next().unwrap_or_default(),
        stem => stem,
    }
}

/// No Rust file is past 500 lines.
pub fn file_length(tree: &Tree) -> Vec<Finding> {
    let lengths = tree.with_extension("rs").map(|(file, text)| (file, text.lines().count()));
    lengths
        .filter(|(_, lines)| *lines > LONGEST)
        .map(|(file, lines)| {
            let advice = format!("{lines} lines; split it by subject, {LONGEST} at most");
            Finding::new(&file.path, LONGEST + 1, advice)
        })
        .collect()
}

/// The Rust files that are getting long, longest first.
pub fn long_files(tree: &Tree) -> Vec<(&str, usize)> {
    let lengths = tree.with_extension("rs").map(|(file, text)| (file.path.as_str(), text.lines().count()));
    let mut long: Vec<_> = lengths.filter(|(_, lines)| (LONG + 1..=LONGEST).contains(lines)).collect();
    long.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    long
}

/// Nothing is left open, left in from debugging, or switched off.
pub fn left_open(tree: &Tree) -> Vec<Finding> {
    let open_in_code = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let open_anywhere = [concat!("FIX", "ME")];
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        let code = code_only(text);
        for (number, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            let in_code = open_in_code.iter().filter(|mark| code.contains(**mark));
            for mark in in_code.chain(open_anywhere.iter().filter(|mark| line.contains(**mark))) {
                findings.push(Finding::new(
                    &file.path,
                    number + 1,
                    format!("finish it and take out `{mark}`"),
                ));
            }
        }
    }
    findings
}

/// `unsafe` stands only in the allowed files, each with a comment that says why it holds.
pub fn unsafe_code(tree: &Tree, allowed: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs") {
        let lines: Vec<&str> = text.lines().collect();
        for (number, _) in code_only(text).lines().enumerate().filter(|(_, code)| has_word(code, "unsafe")) {
            if !allowed.contains(&file.path.as_str()) {
                let advice = "find a safe way, or add the file to UNSAFE_ALLOWED in xtask/src/tidy.rs";
                findings.push(Finding::new(&file.path, number + 1, advice));
            } else if !explained(&lines, number) {
                findings.push(Finding::new(
                    &file.path,
                    number + 1,
                    "say why it holds in a `// SAFETY:` comment",
                ));
            }
        }
    }
    findings
}

/// Marks of code that works on Linux only.
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

/// The product's code knows the system through one module; tests and tools may look around themselves.
pub fn linux_only(tree: &Tree, module: &str) -> Vec<Finding> {
    let product =
        |path: &str| path.starts_with("crates/") && path.contains("/src/") && !path.starts_with(module);
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("rs").filter(|(file, _)| product(&file.path)) {
        for (number, line) in text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]") {
            let comment = line.trim_start().starts_with("//");
            if !comment && LINUX_MARKS.iter().any(|mark| line.contains(mark)) {
                findings.push(Finding::new(&file.path, number + 1, format!("ask {module} instead")));
            }
        }
    }
    findings
}

/// Whether the line, or the comments and attributes right above it, speak of safety.
fn explained(lines: &[&str], number: usize) -> bool {
    let speaks = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    let above = lines[..number].iter().rev().map(|line| line.trim_start());
    speaks(lines[number])
        || above.take_while(|line| line.starts_with("//") || line.starts_with("#[")).any(speaks)
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
    fn long_files_are_noticed_then_refused() {
        let (fine, long, longest) = ("x\n".repeat(350), "x\n".repeat(500), "x\n".repeat(501));
        let tree =
            Tree::of(&[("fine.rs", &fine), ("long.rs", &long), ("longest.rs", &longest), ("a.md", &longest)]);
        assert_eq!(lines_of(&file_length(&tree)), [("longest.rs", 501)]);
        assert_eq!(long_files(&tree), [("long.rs", 500)]);
    }

    #[test]
    fn open_ends_are_found_in_code_only() {
        let fixme = concat!("// FIX", "ME later\n");
        let source = format!("// todo! in words\nlet a = \"dbg!(x)\";\ntodo!()\n#[ignore = \"x\"]\n{fixme}");
        let tree = Tree::of(&[("a.rs", &source)]);
        assert_eq!(lines_of(&left_open(&tree)), [("a.rs", 3), ("a.rs", 4), ("a.rs", 5)]);
    }

    #[test]
    fn linux_has_one_module() {
        let bare = "fn f() {\n    read(\"/proc/self/status\");\n}\n#[cfg(test)]\nread(\"/proc/1\")\n";
        let paths = ["crates/comm/src/linux/a.rs", "crates/comm/src/b.rs", "crates/comm/tests/c.rs"];
        let tree = Tree::of(&paths.map(|path| (path, bare)));
        assert_eq!(lines_of(&linux_only(&tree, "crates/comm/src/linux/")), [("crates/comm/src/b.rs", 2)]);
    }

    #[test]
    fn unsafe_needs_a_place_and_a_reason() {
        let explained = "// SAFETY: it holds\n#[inline]\nunsafe { f() }\n// unsafe in words\n";
        let bare = "let x = 1;\nunsafe { f() }\n";
        let tree = Tree::of(&[("a.rs", explained), ("b.rs", bare), ("c.rs", bare)]);
        assert_eq!(lines_of(&unsafe_code(&tree, &["a.rs", "b.rs"])), [("b.rs", 2), ("c.rs", 2)]);
    }
}
