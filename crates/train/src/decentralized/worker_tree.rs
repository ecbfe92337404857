//! A tree whose nodes are all workers: parents, children and levels.
//!
//! ```text
//! level 0:   the root, worker 0
//! level l:   as many workers as the level above can have children, but so many that each level below has one
//! ```
//!
//! Workers are numbered from level to level. The tree of another number of workers is built anew, so a group that has lost
//! some is a tree again, whatever their level.

/// Parents and levels of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerTree {
    parents: Vec<Option<usize>>,
    levels: Vec<usize>,
}

impl WorkerTree {
    /// The tree of so many workers, each of which has at most so many children. A depth that does not suit them is the nearest
    /// that does; without one it is the least.
    pub fn of(workers: usize, children: usize, depth: Option<usize>) -> WorkerTree {
        let deepest = workers.saturating_sub(1);
        let least = least_depth(workers, children);
        let depth = depth.unwrap_or(least).min(deepest).max(least);
        let mut tree = WorkerTree::default();
        let (mut left, mut above, mut first) = (workers, 0, 0);
        for level in 0..=depth {
            let most = if level == 0 { 1 } else { above * children };
            let size = most.min(left.saturating_sub(depth - level));
            tree.parents.extend((0..size).map(|number| (level > 0).then(|| first + number * above / size)));
            tree.levels.extend(std::iter::repeat_n(level, size));
            first = tree.parents.len() - size;
            (left, above) = (left - size, size);
        }
        tree
    }

    pub fn parent(&self, worker: usize) -> Option<usize> {
        self.parents.get(worker).copied().flatten()
    }

    pub fn children(&self, worker: usize) -> impl Iterator<Item = usize> {
        (0..self.parents.len()).filter(move |child| self.parents[*child] == Some(worker))
    }

    /// Levels between a worker and the root.
    pub fn level(&self, worker: usize) -> usize {
        self.levels.get(worker).copied().unwrap_or(0)
    }

    /// Levels below the root.
    pub fn depth(&self) -> usize {
        self.levels.last().copied().unwrap_or(0)
    }
}

/// The fewest levels below the root for so many workers.
fn least_depth(workers: usize, children: usize) -> usize {
    let (mut depth, mut level, mut all) = (0, 1usize, 1usize);
    while all < workers {
        level = level.saturating_mul(children.max(1));
        all = all.saturating_add(level);
        depth += 1;
    }
    depth
}

/// Why no tree of that depth has so many workers.
pub fn check(workers: usize, children: usize, depth: usize) -> Result<(), String> {
    if depth >= workers.max(1) {
        return Err(format!(
            "a tree with {depth} levels below the root needs {} workers, but there are {workers}",
            depth + 1
        ));
    }
    let least = least_depth(workers, children);
    if depth < least {
        return Err(format!(
            "{workers} workers with at most {children} children each need {least} levels below the root"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn trees_have_the_depth_that_is_asked_for() {
        let binary = WorkerTree::of(7, 2, None);
        assert_eq!((binary.depth(), binary.children(0).collect::<Vec<_>>()), (2, vec![1, 2]));
        assert_eq!((binary.parent(0), binary.parent(4), binary.level(4)), (None, Some(1), 2));
        let chain = WorkerTree::of(4, 2, Some(3));
        assert_eq!(
            (1..4).map(|worker| chain.parent(worker)).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(WorkerTree::of(1, 2, None).depth(), 0);
        assert_eq!(check(4, 2, 3), Ok(()));
        assert!(check(4, 2, 4).unwrap_err().contains("needs 5 workers, but there are 4"));
        assert!(check(8, 2, 2).unwrap_err().contains("need 3 levels"));
    }

    proptest! {
        #[test]
        fn every_worker_but_the_root_has_a_parent_one_level_above(
            workers in 1usize..80, children in 1usize..5, depth in prop::option::of(0usize..90),
        ) {
            let tree = WorkerTree::of(workers, children, depth);
            prop_assert_eq!(tree.parents.len(), workers);
            prop_assert_eq!(tree.parent(0), None);
            for worker in 1..workers {
                let parent = tree.parent(worker).unwrap();
                prop_assert_eq!(tree.level(parent) + 1, tree.level(worker));
            }
            for worker in 0..workers {
                prop_assert!(tree.children(worker).count() <= children);
            }
            if let Some(depth) = depth.filter(|depth| check(workers, children, *depth).is_ok()) {
                prop_assert_eq!(tree.depth(), depth);
            }
        }
    }
}
