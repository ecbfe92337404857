//! All-to-all in pairs: in each round everybody exchanges one chunk with one other.
//!
//! In round k ranks r and s with r + s = k (mod n) meet: every two ranks meet exactly once, and each rank sits out the
//! one round in which it would meet itself.
//!
//! In [`all_to_all`] the chunk that leaves and the one that arrives change places, so the buffer is its own result, and all
//! chunks must have the same length, which means a length that n divides. In [`all_to_all_apart`] what arrives goes behind
//! what leaves: then every rank can have as much for each as it likes.

use super::cost::Cost;
use super::partition::{Counts, chunk_range};
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

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
    Cost::of(rounds(world), others, others, 0, width)
}

/// What [`all_to_all_apart`] costs a rank, where so much is for each.
pub fn all_to_all_apart_cost(rank: usize, counts: Counts<'_>, width: usize) -> Cost {
    let (sent, received) = (counts.leaving(rank), counts.arriving(rank));
    Cost::of(rounds(counts.world), sent, received, 0, width)
}

/// The rounds of both: one for every rank, as in most of them somebody sits out; two ranks need one.
fn rounds(world: usize) -> usize {
    if world > 2 { world } else { world.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::super::checker::run;
    use super::super::partition::Partition;
    use super::*;

    #[test]
    fn pieces_apart_are_proven_to_arrive_where_they_belong_at_the_stated_cost() {
        for world in 1..=64 {
            let counts: Vec<usize> = (0..world * world).map(|pair| pair * pair % 7).collect();
            let counts = Counts { counts: &counts, world };
            let schedules: Vec<Schedule> = (0..world).map(|rank| all_to_all_apart(rank, world)).collect();
            let end = run(&schedules).expect("no flaw");
            for (rank, chunks) in end.chunks.iter().enumerate() {
                let counted = schedules[rank].cost(end.rounds, Partition::Pairs(counts, rank), 4);
                assert_eq!(counted, all_to_all_apart_cost(rank, counts, 4), "n = {world}, rank {rank}");
                for peer in (0..world).filter(|&peer| peer != rank) {
                    let (kept, arrived) = (&chunks[peer], &chunks[world + peer]);
                    let only = |of: usize| (0..world).map(|rank| u32::from(rank == of)).collect::<Vec<_>>();
                    assert_eq!((kept.chunk, &kept.times), (peer, &only(rank)), "what leaves stays as it is");
                    assert_eq!((arrived.chunk, &arrived.times), (rank, &only(peer)));
                }
            }
        }
    }
}
