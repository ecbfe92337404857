//! Rules about every text: white space, paths of one machine, size.

use super::Finding;
use super::tree::{File, Tree};
use crate::command::Outcome;
use std::fs;
use std::path::Path;

const LARGEST: u64 = 1 << 20;

/// Folders that exist on one machine only; spelled in parts, for this file is read too.
const MACHINE_FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Data keeps its white space: an empty last column is a value.
const DATA: &[&str] = &["csv", "tsv", "libsvm", "txt", "jsonl", "snap", "svg", "cast"];

/// No text names a folder of one machine.
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.texts() {
        for (number, line) in text.lines().enumerate() {
            if let Some(folder) = MACHINE_FOLDERS.iter().find(|folder| begins_path(line, folder)) {
                let advice = format!("`{folder}` exists on one machine only; use a relative path");
                findings.push(Finding::new(&file.path, number + 1, advice));
            }
        }
    }
    findings
}

/// Whether an absolute path in the line begins with that folder.
fn begins_path(line: &str, folder: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-~})/".contains(c);
    line.match_indices(folder).any(|(at, _)| !line[..at].chars().next_back().is_some_and(continues))
}

/// No line ends in white space, and every text ends in one newline.
pub fn white_space(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in written_by_hand(tree) {
        for (number, _) in text.lines().enumerate().filter(|(_, line)| line.trim_end() != *line) {
            findings.push(Finding::new(
                &file.path,
                number + 1,
                "take out the white space at the end (xtask fix)",
            ));
        }
        if text != mended(text) && text.lines().all(|line| line.trim_end() == line) {
            let last = text.lines().count().max(1);
            findings.push(Finding::new(&file.path, last, "end the file with one newline (xtask fix)"));
        }
    }
    findings
}

fn written_by_hand(tree: &Tree) -> impl Iterator<Item = (&File, &str)> {
    tree.texts().filter(|(file, _)| !DATA.contains(&file.extension()))
}

/// The text without white space at the ends of its lines and with one newline at its end.
fn mended(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let joined = lines.join("\n");
    let joined = joined.trim_end_matches('\n');
    if joined.is_empty() { String::new() } else { format!("{joined}\n") }
}

/// Mends white space in place and returns the paths of the files that changed.
pub fn mend(root: &Path, tree: &Tree) -> Outcome<Vec<String>> {
    let mut changed = Vec::new();
    for (file, text) in written_by_hand(tree) {
        let mended = mended(text);
        if mended != text {
            let written = fs::write(root.join(&file.path), mended);
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
    fn paths_of_one_machine_are_found() {
        let home = concat!("/ho", "me/");
        let text = format!("fine: ../shared{home}x and https://a.b{home}\nbad: \"{home}me\"\n");
        let found = machine_paths(&Tree::of(&[("a.toml", &text)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn white_space_is_found_and_mended() {
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
        assert_eq!(mended("x \ny\t\n\n"), "x\ny\n");
        assert_eq!(mended(&mended("a\r\nb")), "a\nb\n");
    }

    #[test]
    fn large_files_are_found() {
        let mut tree = Tree::of(&[("a.bin", ""), ("b.bin", "")]);
        tree.files[1].bytes = LARGEST + 1;
        assert_eq!(file_size(&tree)[0].path, "b.bin");
    }
}
