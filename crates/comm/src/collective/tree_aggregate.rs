//! A tree of depth 2, as Spark's `treeAggregate` has it by default: ranks in groups of ceil(sqrt n), whose first ranks
//! aggregate, and rank 0 above them.
//!
//! The whole buffer is reduced from each rank to its aggregator and from the aggregators to the root, and the result returns
//! along the same tree. Two rounds each way for any n; a flat reduction would bring n - 1 buffers to the root, this one
//! brings about 2 sqrt n.

use super::cost::Cost;
use super::schedule::{Action, Chunks, Schedule, SendChunks, Step};

/// Every rank ends with the sum of all buffers, computed at rank 0.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    let broadcast = broadcast(rank, world);
    broadcast.clone().reversed(Action::Reduce).then(broadcast)
}

/// Every rank ends with the buffer of rank 0.
fn broadcast(rank: usize, world: usize) -> Schedule {
    let received = parent(rank, world).map(|parent| Step::receiving(parent, Chunks::one(0), Action::Copy));
    let sends = children(rank, world).map(|to| SendChunks { to, chunks: Chunks::one(0) }).collect();
    let sent = Step { sends, receives: Vec::new() };
    Schedule {
        chunks: 1,
        steps: received.into_iter().chain((!sent.sends.is_empty()).then_some(sent)).collect(),
    }
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let depth = match (world, group(world)) {
        (..=1, _) => 0,
        // No aggregator but the root has ranks below it.
        (_, group) if world <= group + 1 => 1,
        _ => 2,
    };
    let (below, above) = (children(rank, world).count(), usize::from(rank != 0));
    let broadcast = Cost::of(depth, below * length, above * length, 0, width);
    broadcast.reversed(width) + broadcast
}

/// Ranks of a group.
fn group(world: usize) -> usize {
    (1..).find(|group| group * group >= world).unwrap_or(1)
}

fn parent(rank: usize, world: usize) -> Option<usize> {
    match rank % group(world) {
        0 => (rank != 0).then_some(0),
        position => Some(rank - position),
    }
}

/// Those of its group, and above the root's the other aggregators.
fn children(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (0..world).filter(move |child| parent(*child, world) == Some(rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_receives_about_two_roots_of_n_buffers() {
        for (world, buffers) in [(1, 0), (2, 1), (3, 2), (4, 2), (16, 6), (64, 14), (60, 14)] {
            let cost = all_reduce_cost(0, world, 10, 4);
            assert_eq!((cost.bytes_received, cost.additions), (40 * buffers, 10 * buffers), "{world} ranks");
            assert!(cost.steps <= 4);
        }
    }
}
