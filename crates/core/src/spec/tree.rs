//! `[strategy.tree]`: workers in a tree that send their parameters up and down.

use super::section::section;
use super::setting::Auto;
use super::{JobSpec, Refuse};

section! {
    /// A tree of workers.
    "strategy.tree" TreeSpec {
        /// Children of a worker, at most.
        children: usize = 2;
        /// Levels below the root. auto: as many as the workers need.
        depth: Auto<usize> = Auto::Auto;
        /// Local steps after which a worker of the lowest level sends its parameters to its parent.
        up: usize = 10;
        /// Local steps after which a worker just above the lowest level sends its parameters to its children.
        down: usize = 10;
        /// By what up and down are multiplied with each level above.
        scale: usize = 1;
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let TreeSpec { children, up, down, scale, .. } = spec.tree;
    for (key, value) in [("children", children), ("up", up), ("down", down), ("scale", scale)] {
        if value == 0 {
            refuse(&format!("strategy.tree.{key}"), "must be at least 1".into());
        }
    }
}
