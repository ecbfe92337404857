//! Rules about documents: links, named paths, README, changelog, sub-commands.

use super::Finding;
use super::tree::Tree;

const README_LINES: usize = 120;
const SUBCOMMANDS: &str = "crates/thalweg/src/command";

/// Relative links in Markdown name files of the repository.
pub fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in tree.with_extension("md") {
        for (line, target) in targets(text) {
            let path = target.split(['#', '?']).next().unwrap_or_default();
            let outside = target.contains(':') || target.starts_with('#');
            if !outside && !resolved(file.folder(), path).is_some_and(|path| tree.holds(&path)) {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("`{target}` is not a file of the repository"),
                ));
            }
        }
    }
    findings
}

/// The targets of `[text](target)` and `src="target"` outside code, with their lines.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (opening, closing) in [("](", ')'), ("src=\"", '"')] {
            let starts = line.match_indices(opening).map(|(at, _)| &line[at + opening.len()..]);
            let ends = starts.filter_map(|rest| rest.split_once(closing));
            found.extend(ends.map(|(target, _)| (number + 1, link_path(target))));
        }
    }
    found
}

/// Strips the title and angle brackets.
fn link_path(target: &str) -> &str {
    target.split(" \"").next().unwrap_or(target).trim().trim_matches(['<', '>'])
}

/// Resolves a relative path in a folder against the root; None if it leaves the repository.
fn resolved(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = if path.starts_with('/') { Vec::new() } else { folder.split('/').collect() };
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.retain(|part| !part.is_empty());
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    parts.retain(|part| !part.is_empty());
    Some(parts.join("/"))
}

/// Folders whose paths belong to the repository and not to a user.
const FOLDERS: [&str; 5] = ["crates/", "docs/", "examples/", "testkit/", "xtask/"];

/// Files and folders of the repository that ARCHITECTURE.md and docs/ name in back-ticks exist. A Rust file may be named by
/// the end of its path, as `worker.rs` or `op/matrix.rs`.
pub fn named_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let read = |path: &str| path == "ARCHITECTURE.md" || path.starts_with("docs/");
    for (file, text) in tree.with_extension("md").filter(|(file, _)| read(&file.path)) {
        for (line, name) in quoted(text) {
            let ending = format!("/{name}");
            let exists = match FOLDERS.iter().any(|folder| name.starts_with(folder)) {
                true => tree.holds(name.trim_end_matches('/')),
                false if name.ends_with(".rs") => {
                    tree.files.iter().any(|file| file.path == name || file.path.ends_with(&ending))
                }
                false => true,
            };
            if !exists {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("`{name}` does not exist; name the file that does"),
                ));
            }
        }
    }
    findings
}

/// Text in back-ticks outside code blocks that could be a path, with its line.
fn quoted(text: &str) -> Vec<(usize, &str)> {
    let is_path = |name: &&str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
    };
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            let names = line.split('`').skip(1).step_by(2).filter(is_path);
            found.extend(names.map(|name| (number + 1, name)));
        }
    }
    found
}

/// The changelog has a section for unreleased changes.
pub fn changelog(tree: &Tree) -> Vec<Finding> {
    let text = tree.text("CHANGELOG.md").unwrap_or_default();
    let headed = text.lines().any(|line| line.starts_with("## ") && line.contains("Unreleased"));
    if headed { Vec::new() } else { vec![Finding::new("CHANGELOG.md", 1, "add a section `## Unreleased`")] }
}

/// README exists and is short.
pub fn readme_length(tree: &Tree) -> Vec<Finding> {
    match tree.text("README.md").map(|text| text.lines().count()) {
        None => {
            vec![Finding::new("README.md", 1, "write it: purpose, audience, first commands")]
        }
        Some(lines) if lines > README_LINES => {
            let advice = format!("{lines} lines; move details to docs/, {README_LINES} at most");
            vec![Finding::new("README.md", README_LINES + 1, advice)]
        }
        Some(_) => Vec::new(),
    }
}

/// README or docs/ mention every sub-command.
pub fn subcommands(tree: &Tree, excepted: &[&str]) -> Vec<Finding> {
    let read = |path: &str| path == "README.md" || path.starts_with("docs/");
    let documents: Vec<&str> =
        tree.with_extension("md").filter(|(file, _)| read(&file.path)).map(|(_, text)| text).collect();
    let files = tree.with_extension("rs").map(|(file, _)| file).filter(|file| file.folder() == SUBCOMMANDS);
    let mut findings = Vec::new();
    for file in files.filter(|file| !excepted.contains(&file.stem())) {
        let name = file.stem().replace('_', "-");
        let spellings = [format!("thalweg {name}"), format!("`{name}`")];
        if !documents.iter().any(|text| spellings.iter().any(|spelling| text.contains(spelling.as_str()))) {
            findings.push(Finding::new(
                &file.path,
                1,
                format!("mention `thalweg {name}` in README.md or docs/"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found() {
        let page = "[a](../README.md#x) [b](b.md) ![c](<pictures/c.svg> \"title\")\n[d](https://x.y/z) [e](#here)\n\
                    [gone](gone.md)\n```\n[code](nowhere.md)\n```\n<img src=\"pictures/none.svg\">\n[out](../../x)\n";
        let tree = Tree::of(&[
            ("README.md", ""),
            ("docs/a.md", page),
            ("docs/b.md", ""),
            ("docs/pictures/c.svg", ""),
        ]);
        let lines: Vec<_> = links(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [3, 7, 8]);
    }

    #[test]
    fn folders_can_be_linked() {
        let tree = Tree::of(&[("README.md", "[docs](docs/) [here](.)"), ("docs/a.md", "[up](..)")]);
        assert!(links(&tree).is_empty());
    }

    #[test]
    fn named_paths_exist() {
        let page = "`crates/a/src/b.rs` `src/b.rs` `b.rs` `crates/a/` `crates/a` `train.rows` `mnist/` `a b.rs`\n\
                    `gone.rs`\n```\n`crates/none`\n```\nin `crates/a/src/c/` and `xtask/x.py`\n";
        let tree = Tree::of(&[("docs/a.md", page), ("crates/a/src/b.rs", ""), ("README.md", "`gone.rs`")]);
        let lines: Vec<_> = named_paths(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 6, 6]);
    }

    #[test]
    fn the_changelog_has_an_unreleased_section() {
        assert_eq!(changelog(&Tree::of(&[])).len(), 1);
        assert!(changelog(&Tree::of(&[("CHANGELOG.md", "# Changes\n\n## Unreleased\n")])).is_empty());
    }

    #[test]
    fn readme_exists_and_is_short() {
        assert_eq!(readme_length(&Tree::of(&[])).len(), 1);
        assert_eq!(readme_length(&Tree::of(&[("README.md", &"x\n".repeat(121))])).len(), 1);
        assert!(readme_length(&Tree::of(&[("README.md", &"x\n".repeat(120))])).is_empty());
    }

    #[test]
    fn subcommands_are_mentioned() {
        let command = |name: &str| format!("{SUBCOMMANDS}/{name}.rs");
        let (train, init, worker) = (command("train"), command("init"), command("worker"));
        let files = [("docs/a.md", "run `thalweg train`"), (&train, ""), (&init, ""), (&worker, "")];
        let found = subcommands(&Tree::of(&files), &["worker"]);
        assert_eq!(found.iter().map(|finding| finding.path.clone()).collect::<Vec<_>>(), [init]);
    }
}
