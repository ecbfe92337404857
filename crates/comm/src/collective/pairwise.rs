//! All-to-all in pairs: in each round everybody exchanges one chunk with one other.
//!
//! In round k ranks r and s with r + s = k (mod n) meet: every two ranks meet exactly once, and each rank sits out the
//! one round in which it would meet itself. The chunk that leaves and the one that arrives change places, so the buffer
//! is its own result. All chunks must have the same length, which means a length that n divides.

use super::schedule::{Action, Chunks, Cost, ReceiveChunks, Schedule, SendChunks, Step, chunk_range};

/// Chunk s of rank r becomes what was chunk r of rank s.
pub fn all_to_all(rank: usize, world: usize) -> Schedule {
    let partners = (0..world).map(|round| (round + world - rank) % world).filter(|&peer| peer != rank);
    let meet = |peer: usize| Step {
        sends: vec![SendChunks { to: peer, chunks: Chunks::one(peer) }],
        receives: vec![ReceiveChunks {
            from: peer,
            sent: rank,
            chunks: Chunks::one(peer),
            action: Action::Exchange,
        }],
    };
    Schedule { chunks: world.max(1), steps: partners.map(meet).collect() }
}

/// What [`all_to_all`] costs a rank for `length` elements of `width` bytes: every chunk but its own, both ways.
pub fn all_to_all_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let others = length - chunk_range(length, world, rank).len();
    Cost::of(world.saturating_sub(1), others, others, 0, width)
}

#[cfg(test)]
mod tests {
    use super::super::checker::prove;
    use super::super::goal::Goal;
    use super::*;

    #[test]
    fn proven_and_costs_what_it_states() {
        prove(Goal::AllToAll, all_to_all, all_to_all_cost);
    }
}
