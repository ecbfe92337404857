//! `cargo xtask tidy`: the rules of this repository that no other tool checks.
//!
//! The tree is read once, as git sees it (tracked, or untracked and not ignored); each rule is a function from the tree to
//! its findings, listed with its reason in [`RULES`]. A finding has file, line, rule and advice.

mod document;
mod exit;
mod manifest;
mod names;
mod rust;
mod source;
mod text;
mod tree;

use crate::command::{Outcome, root};
use clap::Args;
use std::fmt;
use tree::Tree;

/// Files that may use `unsafe`; the reason is the `SAFETY:` comment at each use.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/cluster/tests/decoding.rs",
    "crates/comm/src/arena/shared_arena.rs",
    "crates/comm/src/arena/sum.rs",
    "crates/comm/src/arena/window/racing_copy.rs",
    "crates/comm/src/arena/window/region.rs",
    "crates/comm/src/linux/descriptor.rs",
    "crates/comm/src/linux/process.rs",
    "crates/comm/src/linux/segment.rs",
    "crates/comm/src/protocol.rs",
    "crates/comm/src/transport/mpi/library.rs",
    "crates/comm/src/transport/mpi/request.rs",
    "crates/comm/src/transport/shm_ring.rs",
    "crates/graph/src/kernel/dispatch.rs",
    "crates/graph/src/kernel/gemm/mod.rs",
    "crates/graph/src/kernel/gemm/simd.rs",
    "crates/graph/src/kernel/gemm/transpose.rs",
    "crates/graph/src/kernel/prefetch.rs",
    "crates/graph/src/kernel/sparse_axpy.rs",
    "crates/graph/src/team.rs",
    "crates/graph/tests/allocation.rs",
];

/// The module of Linux-only code.
const LINUX: &str = "crates/comm/src/linux/";

/// Files of the command folder that are not sub-commands.
const NOT_SUBCOMMANDS: &[&str] = &["mod"];

#[derive(Args, Default)]
pub struct Arguments {
    /// Fix what can be fixed automatically: trailing white space, final newline
    #[arg(long)]
    pub fix: bool,
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    advice: String,
}

impl Finding {
    fn new(path: &str, line: usize, advice: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.advice)
    }
}

struct Rule {
    name: &'static str,
    reason: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

const RULES: &[Rule] = &[
    Rule { name: "file-names", reason: "a file is named for its one subject", check: source::file_names },
    Rule { name: "file-length", reason: "a long file has more than one subject", check: source::file_length },
    Rule {
        name: "retired-names",
        reason: "types and modules have the field's own names",
        check: names::retired,
    },
    Rule { name: "process-exit", reason: "errors are returned, not exited with", check: exit::process_exit },
    Rule { name: "left-open", reason: "merged code is finished", check: source::left_open },
    Rule {
        name: "unsafe",
        reason: "unsafe is rare and explained",
        check: |tree| source::unsafe_code(tree, UNSAFE_ALLOWED),
    },
    Rule {
        name: "linux",
        reason: "Linux-only code is in one module",
        check: |tree| source::linux_only(tree, LINUX),
    },
    Rule { name: "layers", reason: "dependencies between crates point one way", check: manifest::layers },
    Rule {
        name: "manifest",
        reason: "every crate has a description and a licence",
        check: manifest::described,
    },
    Rule { name: "crate-docs", reason: "every crate starts with an overview", check: manifest::documented },
    Rule { name: "machine-paths", reason: "the tree works on any machine", check: text::machine_paths },
    Rule { name: "white-space", reason: "differences show only what changed", check: text::white_space },
    Rule { name: "file-size", reason: "a clone stays small", check: text::file_size },
    Rule { name: "links", reason: "links have a target", check: document::links },
    Rule { name: "named-paths", reason: "documents name existing files", check: document::named_paths },
    Rule { name: "changelog", reason: "users can read what changed", check: document::changelog },
    Rule { name: "readme-length", reason: "README is read in one go", check: document::readme_length },
    Rule {
        name: "subcommands",
        reason: "every sub-command is documented",
        check: |tree| document::subcommands(tree, NOT_SUBCOMMANDS),
    },
];

/// Checks every rule, with `--fix` after the automatic fixes.
pub fn run(arguments: &Arguments) -> Outcome {
    let mut tree = Tree::read(&root())?;
    if arguments.fix {
        for path in text::fix(&root(), &tree)? {
            println!("fixed {path}");
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
        return Err(format!("tidy found {found} violations"));
    }
    println!("tidy: {} rules hold for {} files", RULES.len(), tree.files.len());
    Ok(())
}
