//! The binomial tree: the fewest messages of all algorithms, in log2 n steps.
//!
//! The parent of rank r is r without its lowest one bit; the whole buffer is reduced up to the root, and the result is
//! broadcast down the same tree. An all-reduce takes 2 (n-1) messages in total, where other algorithms take at least
//! n log2 n, but each carries the whole buffer: for short buffers, and for ranks that share few cores.
//!
//! Delay (Langer et al., section 3.4.1): `2 ceil(log2 (n+1)) T + ceil(log2 n) R` for n workers and a separate server; here
//! the root is one of the n ranks: `2 ceil(log2 n) T + ceil(log2 n) R`.

use super::cost::{Cost, ceil_log2};
use super::schedule::{Action, Chunks, Schedule, Step};

/// Every rank ends with the sum of all buffers, computed at rank 0.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    reduce(rank, world, 0).then(broadcast(rank, world, 0))
}

/// The root ends with the sum of all buffers, the other ranks with partial sums.
pub fn reduce(rank: usize, world: usize, root: usize) -> Schedule {
    broadcast(rank, world, root).reversed(Action::Reduce)
}

/// Every rank ends with the root's buffer.
pub fn broadcast(rank: usize, world: usize, root: usize) -> Schedule {
    let node = TreeNode::new(rank, world, root);
    let received =
        node.parent().map(|parent| Step::receiving(node.rank(parent), Chunks::one(0), Action::Copy));
    let mut steps: Vec<Step> = received.into_iter().collect();
    steps.extend(node.children().rev().map(|child| Step::sending(node.rank(child), Chunks::one(0))));
    Schedule { chunks: 1, steps }
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    reduce_cost(rank, world, 0, length, width) + broadcast_cost(rank, world, 0, length, width)
}

/// The cost of [`reduce`]: a buffer from each child, one to the parent.
pub fn reduce_cost(rank: usize, world: usize, root: usize, length: usize, width: usize) -> Cost {
    broadcast_cost(rank, world, root, length, width).reversed(width)
}

/// The cost of [`broadcast`]: a buffer from the parent, one to each child.
pub fn broadcast_cost(rank: usize, world: usize, root: usize, length: usize, width: usize) -> Cost {
    let node = TreeNode::new(rank, world, root);
    let (children, parents) = (node.child_count(), usize::from(node.position != 0));
    Cost::of(ceil_log2(world), children * length, parents * length, 0, width)
}

/// The round in which a rank completes the broadcast, possibly before the last one.
pub(super) fn broadcast_end(rank: usize, world: usize, root: usize) -> usize {
    let node = TreeNode::new(rank, world, root);
    let mut end = node.child_count();
    let mut at = node;
    // A parent sends to its farthest child first.
    while let Some(parent) = at.parent() {
        let bit = (at.position - parent).ilog2() as usize;
        at = TreeNode { position: parent, ..at };
        end += at.child_count() - bit;
    }
    end
}

/// A rank's node in the tree; positions are ranks relative to the root.
#[derive(Clone, Copy)]
struct TreeNode {
    position: usize,
    world: usize,
    root: usize,
}

impl TreeNode {
    fn new(rank: usize, world: usize, root: usize) -> TreeNode {
        let world = world.max(1);
        TreeNode { position: (rank + world - root) % world, world, root }
    }

    fn rank(self, position: usize) -> usize {
        (position + self.root) % self.world
    }

    fn parent(self) -> Option<usize> {
        (self.position != 0).then(|| self.position & (self.position - 1))
    }

    /// Nearest first.
    fn children(self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.child_count()).map(move |bit| self.position + (1 << bit))
    }

    /// One child for every power of two below the lowest one bit, as long as it is a rank of the world.
    fn child_count(self) -> usize {
        let reach = match self.position {
            0 => self.world,
            position => (position & position.wrapping_neg()).min(self.world - position),
        };
        ceil_log2(reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_what_the_literature_says() {
        for log in 0..=6 {
            let (length, cost) = (120, all_reduce_cost(0, 1 << log, 120, 4));
            assert_eq!(cost.bytes_sent + cost.bytes_received, 2 * log * 4 * length, "the root's links");
            assert_eq!((cost.additions, cost.steps), (log * length, 2 * log));
        }
    }
}
