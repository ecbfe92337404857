//! Pairwise all-to-all: in each round a rank exchanges one chunk with at most one peer.
//!
//! Of n ranks, in round k ranks r and s with r + s = k (mod n) exchange: every pair does so exactly once, and each rank is idle in the
//! one round in which it would be its own peer.
//!
//! [`all_to_all`] works in place: the sent and the received chunk are exchanged, so all chunks must have the same length
//! and n must divide the length of the buffer. [`all_to_all_v`] (MPI's `alltoallv`) receives into n further chunks after
//! the n sent ones, which may have any lengths.

use super::cost::Cost;
use super::partition::{Counts, chunk_range};
use super::schedule::{Action, Chunks, ReceiveChunks, Schedule, SendChunks, Step};

/// Chunk s of rank r becomes what was chunk r of rank s.
pub fn all_to_all(rank: usize, world: usize) -> Schedule {
    let exchange = |peer: usize| Step {
        sends: vec![SendChunks { to: peer, chunks: Chunks::one(peer) }],
        receives: vec![ReceiveChunks {
            from: peer,
            sent: rank,
            chunks: Chunks::one(peer),
            action: Action::Exchange,
        }],
    };
    Schedule { chunks: world.max(1), steps: peers(rank, world).map(exchange).collect() }
}

/// The peers of a rank, in the order of rounds.
fn peers(rank: usize, world: usize) -> impl Iterator<Item = usize> {
    (0..world).map(move |round| (round + world - rank) % world).filter(move |&peer| peer != rank)
}

/// Chunk n + s of rank r becomes what is chunk r of rank s, for every other s. The caller copies the rank's own chunk.
pub fn all_to_all_v(rank: usize, world: usize) -> Schedule {
    let exchange = |peer: usize| Step {
        sends: vec![SendChunks { to: peer, chunks: Chunks::one(peer) }],
        receives: vec![ReceiveChunks {
            from: peer,
            sent: rank,
            chunks: Chunks::one(world + peer),
            action: Action::Copy,
        }],
    };
    Schedule { chunks: 2 * world, steps: peers(rank, world).map(exchange).collect() }
}

/// The cost of [`all_to_all`] for `length` elements of `width` bytes: every chunk but the rank's own, both ways.
pub fn all_to_all_cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    let others = length - chunk_range(length, world, rank).len();
    Cost::of(rounds(world), others, others, 0, width)
}

/// The cost of [`all_to_all_v`].
pub fn all_to_all_v_cost(rank: usize, counts: Counts<'_>, width: usize) -> Cost {
    let (sent, received) = (counts.sent_by(rank), counts.received_by(rank));
    Cost::of(rounds(counts.world), sent, received, 0, width)
}

/// One round per rank, because in some rounds a rank is idle; two ranks need one.
fn rounds(world: usize) -> usize {
    if world > 2 { world } else { world.saturating_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::super::checker::run;
    use super::super::partition::Partition;
    use super::*;

    #[test]
    fn all_to_all_v_is_proven_with_its_cost() {
        for world in 1..=64 {
            let counts: Vec<usize> = (0..world * world).map(|pair| pair * pair % 7).collect();
            let counts = Counts { counts: &counts, world };
            let schedules: Vec<Schedule> = (0..world).map(|rank| all_to_all_v(rank, world)).collect();
            let result = run(&schedules).expect("valid schedules");
            for (rank, chunks) in result.chunks.iter().enumerate() {
                let counted = schedules[rank].cost(result.rounds, Partition::Pairs(counts, rank), 4);
                assert_eq!(counted, all_to_all_v_cost(rank, counts, 4), "n = {world}, rank {rank}");
                for peer in (0..world).filter(|&peer| peer != rank) {
                    let (kept, arrived) = (&chunks[peer], &chunks[world + peer]);
                    let only = |of: usize| (0..world).map(|rank| u32::from(rank == of)).collect::<Vec<_>>();
                    assert_eq!((kept.chunk, &kept.times), (peer, &only(rank)), "sent chunks are unchanged");
                    assert_eq!((arrived.chunk, &arrived.times), (rank, &only(peer)));
                }
            }
        }
    }
}
