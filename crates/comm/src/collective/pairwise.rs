//! All-to-all in pairs: in each round everybody exchanges one chunk with one other.
//!
//! In round k ranks r and s with r + s = k (mod n) meet: every two ranks meet exactly once, and each rank sits out the
//! one round in which it would meet itself.
//!
//! In [`all_to_all`] the chunk that leaves and the one that arrives change places, so the buffer is its own result, and all
//! chunks must have the same length, which means a length that n divides. In [`all_to_all_apart`] what arrives goes behind
//! what leaves: then every rank can have as much for each as it likes.

use super::schedule::{Action, Chunks, Cost, ReceiveChunks, Schedule, SendChunks, Step, chunk_range};

/// Chunk s of rank r becomes what was chunk r of rank s.
pub fn all_to_all(rank: usize, world: usize) -> Schedule {
    let meet = |peer: usize| Step {
        sends: vec![SendChunks { to: peer, chunks: Chunks::one(peer) }],
        receives: vec![ReceiveChunks {
            from: peer,
            sent: rank,
            chunks: Chunks::one(peer),
            action: Action::Exchange,
        }],
    };
    Schedule { chunks: world.max(1), steps: partners(rank, world).map(meet).collect() }
}

/// Whom a rank meets, in order.
fn partners(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (0..world).map(move |round| (round + world - rank) % world).filter(move |&peer| peer != rank)
}

/// Chunk n + s of rank r becomes what is chunk r of rank s, for every other s. Its own piece a rank copies itself.
pub fn all_to_all_apart(rank: usize, world: usize) -> Schedule {
    let meet = |peer: usize| Step {
        sends: vec![SendChunks { to: peer, chunks: Chunks::one(peer) }],
        receives: vec![ReceiveChunks {
            from: peer,
            sent: rank,
            chunks: Chunks::one(world + peer),
            action: Action::Copy,
        }],
    };
    Schedule { chunks: 2 * world, steps: partners(rank, world).map(meet).collect() }
}

/// What [`all_to_all`] costs a rank for `length` elements of `width` bytes: every chunk but its own, both ways.
pub fn all_to_all_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let others = length - chunk_range(length, world, rank).len();
    Cost::of(world.saturating_sub(1), others, others, 0, width)
}

#[cfg(test)]
mod tests {
    use super::super::checker::{prove, run};
    use super::super::goal::Goal;
    use super::*;

    #[test]
    fn pieces_apart_are_proven_to_arrive_where_they_belong() {
        for world in 1..=17 {
            let schedules: Vec<Schedule> = (0..world).map(|rank| all_to_all_apart(rank, world)).collect();
            for (rank, chunks) in run(&schedules).expect("no flaw").iter().enumerate() {
                for peer in (0..world).filter(|&peer| peer != rank) {
                    let (kept, arrived) = (&chunks[peer], &chunks[world + peer]);
                    let only = |of: usize| (0..world).map(|rank| u32::from(rank == of)).collect::<Vec<_>>();
                    assert_eq!((kept.chunk, &kept.times), (peer, &only(rank)), "what leaves stays as it is");
                    assert_eq!((arrived.chunk, &arrived.times), (rank, &only(peer)));
                }
            }
        }
    }

    #[test]
    fn proven_and_costs_what_it_states() {
        prove(Goal::AllToAll, all_to_all, all_to_all_cost);
    }
}
