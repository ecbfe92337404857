//! `cargo xtask tidy`: the rules of this repository that no other tool knows.
//!
//! The tree is read once, as git sees it (tracked, or untracked and not ignored); each rule is a small function from
//! the tree to its findings, with its reason beside it in [`RULES`]. A finding says file, line, rule and what to do.

mod document;
mod manifest;
mod rust;
mod source;
mod text;
mod tree;

use crate::command::{Outcome, root};
use clap::Args;
use std::fmt;
use tree::Tree;

/// Files in which `unsafe` may stand, each with a `SAFETY:` comment.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/cluster/tests/decoding.rs",
    "crates/comm/src/arena/commons.rs",
    "crates/comm/src/arena/sum.rs",
    "crates/comm/src/linux/descriptor.rs",
    "crates/comm/src/linux/process.rs",
    "crates/comm/src/linux/segment.rs",
    "crates/comm/src/protocol.rs",
    "crates/comm/src/transport/mpi/flight.rs",
    "crates/comm/src/transport/mpi/library.rs",
    "crates/comm/src/transport/ring.rs",
    "crates/graph/src/kernel/dispatch.rs",
    "crates/graph/src/kernel/panel/mod.rs",
    "crates/graph/src/kernel/panel/turn.rs",
    "crates/graph/src/kernel/panel/vector.rs",
    "crates/graph/src/kernel/prefetch.rs",
    "crates/graph/src/kernel/scattered.rs",
    "crates/graph/src/team.rs",
    "crates/graph/tests/allocation.rs",
];

/// The module that may ask for what only Linux has.
const LINUX: &str = "crates/comm/src/linux/";

/// Files of the binary's command folder that are no sub-command of their own.
const NOT_SUBCOMMANDS: &[&str] = &["mod"];

/// How to tidy.
#[derive(Args, Default)]
pub struct Arguments {
    /// Mend what a machine can mend: trailing white space, final newline
    #[arg(long)]
    pub fix: bool,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    what_to_do: String,
}

impl Finding {
    fn new(path: &str, line: usize, what_to_do: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, what_to_do: what_to_do.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what_to_do)
    }
}

struct Rule {
    name: &'static str,
    reason: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

const RULES: &[Rule] = &[
    Rule { name: "file-names", reason: "a file is named for its one concept", check: source::file_names },
    Rule { name: "file-length", reason: "a long file has more than one subject", check: source::file_length },
    Rule { name: "left-open", reason: "what is merged is finished", check: source::left_open },
    Rule {
        name: "unsafe",
        reason: "unsafe is rare and explained",
        check: |tree| source::unsafe_code(tree, UNSAFE_ALLOWED),
    },
    Rule {
        name: "linux",
        reason: "what only Linux has sits behind one module",
        check: |tree| source::linux_only(tree, LINUX),
    },
    Rule { name: "layers", reason: "dependencies between crates point one way", check: manifest::layers },
    Rule { name: "manifest", reason: "every crate says what it is", check: manifest::described },
    Rule {
        name: "crate-docs",
        reason: "every crate starts with its picture in words",
        check: manifest::documented,
    },
    Rule { name: "machine-paths", reason: "the tree works on any machine", check: text::machine_paths },
    Rule { name: "white-space", reason: "differences show only what changed", check: text::white_space },
    Rule { name: "file-size", reason: "a clone stays small", check: text::file_size },
    Rule { name: "links", reason: "a link leads somewhere", check: document::links },
    Rule { name: "named-paths", reason: "the map names what is there", check: document::named_paths },
    Rule { name: "changelog", reason: "users learn what changed", check: document::changelog },
    Rule { name: "readme-length", reason: "README is read in one go", check: document::readme_length },
    Rule {
        name: "subcommands",
        reason: "every sub-command can be found",
        check: |tree| document::subcommands(tree, NOT_SUBCOMMANDS),
    },
];

/// Checks every rule, after mending what can be mended if asked to.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut tree = Tree::read(&root())?;
    if arguments.fix {
        for path in text::mend(&root(), &tree)? {
            println!("mended {path}");
        }
        tree = Tree::read(&root())?;
    }
    for (path, lines) in source::long_files(&tree) {
        println!("notice: {path} has {lines} lines; is it still one subject?");
    }
    let mut found = 0;
    for rule in RULES {
        for finding in (rule.check)(&tree) {
            println!("{finding}\n    [{}: {}]", rule.name, rule.reason);
            found += 1;
        }
    }
    if found > 0 {
        return Err(format!("tidy found {found} places to look at"));
    }
    println!("tidy: {} rules hold for {} files", RULES.len(), tree.files.len());
    Ok(())
}
