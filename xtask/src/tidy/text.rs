//! Rules about all text files: white space, machine-specific paths, size.

use super::Finding;
use super::tree::{File, Tree};
use crate::command::Outcome;
use std::fs;
use std::path::Path;

const LARGEST: u64 = 1 << 20;

/// Folders that exist on one machine only; written in parts, since this file is checked too.
const MACHINE_FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Data files keep their white space: an empty last column is a value.
const DATA: &[&str] = &["csv", "tsv", "libsvm", "txt", "jsonl", "snap", "svg", "cast"];

/// No text names a folder of one machine.
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        for (number, line) in text.lines().enumerate() {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| has_path_in(line, folder)) {
                let advice = format!("`{folder}` exists on one machine only; use a relative path");
                findings.push(Finding::new(&file.path, number + 1, advice));
            }
        }
    }
    findings
}

/// Whether the line has an absolute path in that folder.
fn has_path_in(line: &str, folder: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-~})/".contains(c);
    line.match_indices(folder).any(|(at, _)| !line[..at].chars().next_back().is_some_and(continues))
}

/// No line ends in white space, and every text ends in one newline.
pub fn white_space(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in sources(tree) {
        for (number, _) in text.lines().enumerate().filter(|(_, line)| line.trim_end() != *line) {
            findings.push(Finding::new(
                &file.path,
                number + 1,
                "remove the trailing white space (xtask fix)",
            ));
        }
        if text != trimmed(text) && text.lines().all(|line| line.trim_end() == line) {
            let last = text.lines().count().max(1);
            findings.push(Finding::new(&file.path, last, "end the file with one newline (xtask fix)"));
        }
    }
    findings
}

fn sources(tree: &Tree) -> impl Iterator<Item = (&File, &str)> {
    tree.texts().filter(|(file, _)| !DATA.contains(&file.extension()))
}

/// The text without trailing white space and with one newline at its end.
fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let joined = lines.join("\n");
    let joined = joined.trim_end_matches('\n');
    if joined.is_empty() { String::new() } else { format!("{joined}\n") }
}

/// Fixes white space in place and returns the paths of changed files.
pub fn fix(root: &Path, tree: &Tree) -> Outcome<Vec<String>> {
    let mut changed = Vec::new();
    for (file, text) in sources(tree) {
        let trimmed = trimmed(text);
        if trimmed != text {
            let written = fs::write(root.join(&file.path), trimmed);
            written.map_err(|error| format!("cannot write {}: {error}", file.path))?;
            changed.push(file.path.clone());
        }
    }
    Ok(changed)
}

/// No file is above 1 MiB.
pub fn file_size(tree: &Tree) -> Vec<Finding> {
    let large = tree.files.iter().filter(|file| file.bytes > LARGEST);
    large
        .map(|file| {
            Finding::new(&file.path, 1, format!("{} bytes; keep it out of the repository", file.bytes))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_are_found() {
        let home = concat!("/ho", "me/");
        let text = format!("fine: ../shared{home}x and https://a.b{home}\nbad: \"{home}me\"\n");
        let found = machine_paths(&Tree::of(&[("a.toml", &text)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn white_space_is_found_and_fixed() {
        let tree = Tree::of(&[
            ("a.md", "x \ny\t\n"),
            ("b.md", "x"),
            ("c.md", "x\n\n"),
            ("d.csv", "1, \n"),
            ("e.rs", ""),
        ]);
        let found: Vec<_> = white_space(&tree).iter().map(|found| (found.path.clone(), found.line)).collect();
        let expected = [("a.md", 1), ("a.md", 2), ("b.md", 1), ("c.md", 2)];
        assert_eq!(found, expected.map(|(path, line)| (path.to_string(), line)));
        assert_eq!(trimmed("x \ny\t\n\n"), "x\ny\n");
        assert_eq!(trimmed(&trimmed("a\r\nb")), "a\nb\n");
    }

    #[test]
    fn large_files_are_found() {
        let mut tree = Tree::of(&[("a.bin", ""), ("b.bin", "")]);
        tree.files[1].bytes = LARGEST + 1;
        assert_eq!(file_size(&tree)[0].path, "b.bin");
    }
}
