//! Rules about Cargo.toml: dependencies between crates, descriptions and crate documentation.

use super::Finding;
use super::tree::Tree;

/// The crates bottom-up; each may depend only on crates of earlier rows.
const LAYERS: &[&[&str]] = &[
    &["thalweg-core"],
    &["thalweg-graph", "thalweg-comm", "thalweg-data"],
    &["thalweg-cluster"],
    &["thalweg-train"],
    &["thalweg"],
];

/// Tools of the workspace, which no crate may depend on.
const TOOLS: &[&str] = &["thalweg-fuzz", "thalweg-testkit", "xtask"];

/// A `key = value` line of a manifest.
struct Entry<'a> {
    line: usize,
    section: &'a str,
    key: &'a str,
    value: &'a str,
}

/// The entries of a manifest; values that span lines are cut at the first.
fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut section = "";
    let mut entries = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim_matches(['[', ']']);
            if let Some((table, key)) = section.rsplit_once("dependencies.") {
                let section = &section[..table.len() + "dependencies".len()];
                entries.push(Entry { line: number + 1, section, key, value: "" });
            }
        } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            entries.push(Entry { line: number + 1, section, key: key.trim(), value: value.trim() });
        }
    }
    entries
}

/// The manifests of packages: path, text and package name.
fn packages(tree: &Tree) -> impl Iterator<Item = (&str, &str, &str)> {
    let manifests = tree.with_extension("toml").filter(|(file, _)| file.stem() == "Cargo");
    manifests.filter_map(|(file, text)| {
        let entries = entries(text);
        let name = entries.iter().find(|entry| entry.section == "package" && entry.key == "name")?;
        Some((file.path.as_str(), text, name.value.trim_matches('"')))
    })
}

/// Dependencies between workspace crates point one way.
pub fn layers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text, package) in packages(tree) {
        let own = layer(package);
        if own.is_none() && !TOOLS.contains(&package) {
            let advice = format!("add {package} to LAYERS in xtask/src/tidy/manifest.rs");
            findings.push(Finding::new(path, 1, advice));
        }
        for (line, dependency) in dependencies(text) {
            let below = layer(dependency);
            let upward = own.is_some_and(|own| below.is_some_and(|below| below >= own));
            if upward || TOOLS.contains(&dependency) {
                let advice = format!("{package} must not depend on {dependency}; move the shared code down");
                findings.push(Finding::new(path, line, advice));
            }
        }
    }
    findings
}

/// Dependencies and build dependencies with their lines; dev-dependencies are free.
fn dependencies(text: &str) -> Vec<(usize, &str)> {
    let counts = |section: &str| {
        let own = section.rsplit('.').next().unwrap_or(section);
        own == "dependencies" || own == "build-dependencies"
    };
    let entries = entries(text).into_iter().filter(|entry| counts(entry.section));
    entries.map(|entry| (entry.line, entry.key.split('.').next().unwrap_or(entry.key))).collect()
}

fn layer(package: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&package))
}

/// Every crate has a description and a licence, its own or the workspace's.
pub fn described(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text, package) in packages(tree) {
        for wanted in ["description", "license"] {
            let entries = entries(text);
            let package_entries = entries.iter().filter(|entry| entry.section == "package");
            let mut keys = package_entries.map(|entry| entry.key);
            if !keys.any(|key| key == wanted || key.strip_suffix(".workspace") == Some(wanted)) {
                findings.push(Finding::new(path, 1, format!("give {package} a {wanted}")));
            }
        }
    }
    findings
}

/// Every crate's first file starts with a `//!` comment.
pub fn documented(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _, package) in packages(tree) {
        let folder = path.trim_end_matches("Cargo.toml");
        let roots = ["src/lib.rs", "src/main.rs"].map(|name| format!("{folder}{name}"));
        let present: Vec<_> = roots.iter().filter_map(|root| Some((root, tree.text(root)?))).collect();
        if present.is_empty() {
            findings.push(Finding::new(path, 1, format!("{package} has neither src/lib.rs nor src/main.rs")));
        }
        for (root, _) in present.iter().filter(|(_, text)| !text.trim_start().starts_with("//!")) {
            findings.push(Finding::new(root, 1, "start with a `//!` comment: an overview of the crate"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: &str = "[package]\nname = \"thalweg-core\"\ndescription = \"x\"\nlicense.workspace = true\n";

    fn core_with(rest: &str) -> String {
        format!("{CORE}{rest}")
    }

    fn lines_of(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn core_depends_on_no_other_crate() {
        let bad = core_with("[dependencies]\nserde.workspace = true\nthalweg-graph.workspace = true\n");
        assert_eq!(lines_of(&layers(&Tree::of(&[("crates/core/Cargo.toml", &bad)]))), [7]);
        let table = core_with("[dependencies.thalweg-data]\npath = \"../data\"\n");
        assert_eq!(lines_of(&layers(&Tree::of(&[("crates/core/Cargo.toml", &table)]))), [5]);
    }

    #[test]
    fn crates_of_one_layer_are_independent() {
        let graph = "[package]\nname = \"thalweg-graph\"\n[dependencies]\nthalweg-core.workspace = true\n";
        let comm = "[target.'cfg(unix)'.dependencies]\nthalweg-comm.workspace = true\n";
        assert!(layers(&Tree::of(&[("g/Cargo.toml", graph)])).is_empty());
        assert_eq!(lines_of(&layers(&Tree::of(&[("g/Cargo.toml", &format!("{graph}{comm}"))]))), [6]);
    }

    #[test]
    fn the_testkit_is_a_dev_dependency() {
        let tests = core_with("[dev-dependencies]\nthalweg-testkit.workspace = true\n");
        assert!(layers(&Tree::of(&[("c/Cargo.toml", &tests)])).is_empty());
        let built = core_with("[dependencies]\nthalweg-testkit = { path = \"x\" }\n");
        assert_eq!(lines_of(&layers(&Tree::of(&[("c/Cargo.toml", &built)]))), [6]);
    }

    #[test]
    fn a_new_crate_needs_a_layer() {
        let tree = Tree::of(&[("n/Cargo.toml", "[package]\nname = \"thalweg-new\"\n")]);
        assert!(layers(&tree)[0].advice.contains("LAYERS"));
    }

    #[test]
    fn every_crate_is_described() {
        let bare = "[package]\nname = \"xtask\"\n";
        let tree = Tree::of(&[("x/Cargo.toml", bare), ("x/src/lib.rs", "fn f() {}")]);
        assert_eq!(described(&tree).len(), 2);
        assert_eq!(documented(&tree)[0].path, "x/src/lib.rs");
        let fine = Tree::of(&[("c/Cargo.toml", CORE), ("c/src/lib.rs", "//! Overview.\n")]);
        assert!(described(&fine).is_empty() && documented(&fine).is_empty());
    }
}
