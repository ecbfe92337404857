//! Retired names: types and modules whose names were replaced by the field's own terms.
//!
//! Only definitions count (`struct`, `enum`, `trait`, `type`, `union`, `mod`, files and folders): as a local variable or
//! in a sentence the word may be right.

use super::Finding;
use super::rust::code_only;
use super::tree::Tree;

/// A retired type name and its replacement. As a module or file name it is spelled in lower case.
const RETIRED: &[(&str, &str)] = &[
    ("Apprenticeship", "state transfer"),
    ("Aside", "early frames, or a task context"),
    ("Beacon", "rank status"),
    ("Bell", "eventfd"),
    ("Brackets", "reduction tree"),
    ("Briefing", "job progress"),
    ("Chair", "simulated coordinator"),
    ("Circle", "group"),
    ("Commons", "shared arena"),
    ("Company", "match mode"),
    ("Correspondence", "point-to-point"),
    ("Course", "progress state"),
    ("Delegate", "membership client"),
    ("Departures", "buckets in flight"),
    ("Doorway", "local socket"),
    ("Envoy", "simulated member"),
    ("Errand", "background task"),
    ("Formed", "membership view"),
    ("Goal", "collective"),
    ("Guest", "connected member"),
    ("Inquest", "failure diagnosis"),
    ("Judgement", "membership policy"),
    ("Keepsake", "checkpointing"),
    ("Ledger", "consumed rows"),
    ("Lesson", "chunk of a state transfer"),
    ("Letter", "message"),
    ("Means", "collective context"),
    ("Meeting", "shared-memory barrier"),
    ("Mischief", "fault kind"),
    ("Mishap", "fault"),
    ("Mishaps", "faults"),
    ("Neighbour", "local peer"),
    ("Neighbourhood", "shared-memory setup"),
    ("Office", "simulated control"),
    ("Pulse", "heartbeat"),
    ("Reception", "handshake acceptor"),
    ("Rider", "step summary"),
    ("Ruling", "membership command"),
    ("Scribe", "checkpoint writer"),
    ("Seat", "rank view, or simulated endpoint"),
    ("Shelf", "checkpoint store"),
    ("Sounding", "exposed-time probe"),
    ("Standing", "member position, or peer state"),
    ("Succession", "generation change"),
    ("Surroundings", "rank hooks"),
    ("Terms", "rank config"),
    ("Underway", "nonblocking operations"),
    ("Uplink", "launcher connection"),
    ("Vigil", "wait state"),
    ("Voice", "coordinator callbacks"),
    ("Way", "algorithm entry"),
    ("Wires", "link set"),
    ("Wish", "launcher command"),
];

/// Folders that may still use retired names, with the reason.
const EXEMPT: &[(&str, &str)] = &[("crates/train/", "its step loop is rewritten as a whole, names included")];

const DEFINITIONS: &[&str] = &["struct", "enum", "trait", "type", "union", "mod"];

/// No type, module or file has a retired name.
pub fn retired(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = tree.with_extension("rs");
    for (file, text) in
        sources.filter(|(file, _)| !EXEMPT.iter().any(|(folder, _)| file.path.starts_with(folder)))
    {
        let parts = file.path.trim_end_matches(".rs").split('/');
        for (old, new) in parts.filter_map(replacement) {
            let advice = format!("rename the file or folder: not `{}` but {new}", old.to_lowercase());
            findings.push(Finding::new(&file.path, 1, advice));
        }
        for (number, line) in code_only(text).lines().enumerate() {
            for (old, new) in defined(line).filter_map(replacement) {
                let advice = format!("rename the type or module: not `{old}` but {new}");
                findings.push(Finding::new(&file.path, number + 1, advice));
            }
        }
    }
    findings
}

/// The entry of a name, in the spelling of a type or of a module.
fn replacement(name: &str) -> Option<(&'static str, &'static str)> {
    let is_entry = |(old, _): &&(&str, &str)| name == *old || name == old.to_lowercase();
    RETIRED.iter().find(is_entry).copied()
}

/// The names that a line of code defines.
fn defined(line: &str) -> impl Iterator<Item = &str> {
    let words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let names: Vec<&str> =
        words.windows(2).filter(|pair| DEFINITIONS.contains(&pair[0])).map(|pair| pair[1]).collect();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        retired(&Tree::of(files)).into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn retired_types_and_modules_are_found() {
        let source = "use a::Vigil;\npub(crate) struct Vigil<'a> {\n    way: usize,\n}\npub mod beacon;\ntype Goal = u8;\n";
        let lines = [2, 5, 6].map(|line| ("crates/comm/src/a.rs".to_string(), line));
        assert_eq!(found(&[("crates/comm/src/a.rs", source)]), lines);
    }

    #[test]
    fn retired_files_and_folders_are_found() {
        let files = [("crates/comm/src/way.rs", ""), ("crates/comm/tests/mishaps/main.rs", "")];
        assert_eq!(found(&files), files.map(|(path, _)| (path.to_string(), 1)));
    }

    #[test]
    fn longer_names_comments_and_exempt_folders_are_free() {
        let source = "// struct Vigil\nstruct Wayside;\nlet s = \"enum Goal\";\nlet goal = way;\n";
        assert!(found(&[("crates/comm/src/pathway.rs", source)]).is_empty());
        assert!(found(&[("crates/train/src/scribe.rs", "struct Scribe;\n")]).is_empty());
    }

    #[test]
    fn the_list_is_sorted_and_every_exemption_has_a_reason() {
        assert!(RETIRED.is_sorted() && RETIRED.iter().all(|(_, new)| !new.is_empty()));
        assert!(EXEMPT.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
