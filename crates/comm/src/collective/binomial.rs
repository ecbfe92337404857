//! The binomial tree: the fewest messages of all, log2 n of them one after the other.
//!
//! Rank r's parent is r without its lowest one bit; the whole buffer climbs to the root, sums growing on the way, and
//! the result descends the same tree. An all-reduce takes 2 (n-1) messages altogether, where others take at least
//! n log2 n, but every one carries the whole buffer: for short buffers, and for ranks that share few cores.
//!
//! Delay (Langer et al., section 3.4.1): `2 ceil(log2 (n+1)) T + ceil(log2 n) R` for n workers and a server of its own;
//! here the root is one of the n ranks, which makes it `2 ceil(log2 n) T + ceil(log2 n) R`.

use super::cost::{Cost, ceil_log2};
use super::schedule::{Action, Chunks, Schedule, Step};

/// Every rank ends with the sum of all buffers, computed at rank 0.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    reduce(rank, world, 0).then(broadcast(rank, world, 0))
}

/// The root ends with the sum of all buffers; the others' hold partial sums.
pub fn reduce(rank: usize, world: usize, root: usize) -> Schedule {
    broadcast(rank, world, root).reversed(Action::Reduce)
}

/// Every rank ends with the root's buffer.
pub fn broadcast(rank: usize, world: usize, root: usize) -> Schedule {
    let place = Place::new(rank, world, root);
    let received =
        place.parent().map(|parent| Step::receiving(place.rank(parent), Chunks::one(0), Action::Copy));
    let mut steps: Vec<Step> = received.into_iter().collect();
    steps.extend(place.children().rev().map(|child| Step::sending(place.rank(child), Chunks::one(0))));
    Schedule { chunks: 1, steps }
}

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    reduce_cost(rank, world, 0, length, width) + broadcast_cost(rank, world, 0, length, width)
}

/// What [`reduce`] costs: a buffer from each child, one to the parent.
pub fn reduce_cost(rank: usize, world: usize, root: usize, length: usize, width: usize) -> Cost {
    broadcast_cost(rank, world, root, length, width).reversed(width)
}

/// What [`broadcast`] costs: a buffer from the parent, one to each child.
pub fn broadcast_cost(rank: usize, world: usize, root: usize, length: usize, width: usize) -> Cost {
    let place = Place::new(rank, world, root);
    let (children, parents) = (place.child_count(), usize::from(place.position != 0));
    Cost::of(ceil_log2(world), children * length, parents * length, 0, width)
}

/// The round of a broadcast in which a rank is through with it, which may be earlier than the last.
pub fn broadcast_end(rank: usize, world: usize, root: usize) -> usize {
    let place = Place::new(rank, world, root);
    let mut end = place.child_count();
    let mut at = place;
    // Its parent serves the farthest child first.
    while let Some(parent) = at.parent() {
        let bit = (at.position - parent).ilog2() as usize;
        at = Place { position: parent, ..at };
        end += at.child_count() - bit;
    }
    end
}

/// A rank's place in the tree, counted from the root.
#[derive(Clone, Copy)]
struct Place {
    position: usize,
    world: usize,
    root: usize,
}

impl Place {
    fn new(rank: usize, world: usize, root: usize) -> Place {
        let world = world.max(1);
        Place { position: (rank + world - root) % world, world, root }
    }

    /// Who stands at a position.
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

    /// One for every power of two below the lowest one bit that stays within the world.
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
