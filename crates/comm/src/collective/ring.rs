//! The ring: every rank talks to its two neighbours only, and every link carries the same amount.
//!
//! The buffer is cut into n chunks. In the first n - 1 steps partial sums travel round the ring, each rank adding
//! its own part, until each rank holds one finished chunk; in the next n - 1 steps the finished chunks travel round
//! once more. Bandwidth-optimal: 2 (n-1)/n of the buffer per rank. Its 2 (n-1) latencies hurt short buffers.
//!
//! Delay (Langer et al., section 3.4.1): `2 (n-1)/n T + (n-1)/n R`, with T and R the times to transmit and to reduce
//! the whole buffer.

use super::{Action, Cost, ReceiveChunk, Schedule, SendChunk, Step, chunk_range};

/// All-reduce on a ring of `world` ranks: every rank ends with the sum of all buffers, the same bits on each.
pub fn all_reduce(rank: usize, world: usize) -> Schedule {
    let (next, previous) = ((rank + 1) % world.max(1), (rank + world.saturating_sub(1)) % world.max(1));
    let step = |lead: usize, action: Action| Step {
        sends: vec![SendChunk { to: next, chunk: (rank + lead) % world }],
        receives: vec![ReceiveChunk { from: previous, chunk: (rank + lead + world - 1) % world, action }],
    };
    // In step s of each half the chunks have moved on by s: rank r sends what it received in step s - 1.
    let reduce = (1..world).map(|s| step(world - s + 1, Action::Reduce));
    let gather = (1..world).map(|s| step(world - s + 2, Action::Copy));
    Schedule { chunks: world.max(1), steps: reduce.chain(gather).collect() }
}

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
///
/// Each half sends every chunk but one, so for lengths that divide by n it is exactly 2 (n-1)/n of the buffer.
pub fn cost(rank: usize, world: usize, length: usize, width: usize) -> Cost {
    if world < 2 {
        return Cost::default();
    }
    let all_but = |chunk: usize| (length - chunk_range(length, world, chunk % world).len()) as u64;
    let width = width as u64;
    Cost {
        steps: 2 * (world as u64 - 1),
        bytes_sent: (all_but(rank + 1) + all_but(rank + 2)) * width,
        bytes_received: (all_but(rank) + all_but(rank + 1)) * width,
        additions: all_but(rank),
    }
}

#[cfg(test)]
mod tests {
    use super::super::checker;
    use super::*;

    fn schedules(world: usize) -> Vec<Schedule> {
        (0..world).map(|rank| all_reduce(rank, world)).collect()
    }

    #[test]
    fn proven_for_every_world_up_to_64() {
        for world in 1..=64 {
            checker::check_all_reduce(&schedules(world)).unwrap_or_else(|flaw| panic!("n = {world}: {flaw}"));
        }
    }

    #[test]
    fn costs_what_it_states() {
        for world in 1..=64 {
            for length in [0, 1, world - 1, world, 1000, 64 * world] {
                for (rank, schedule) in schedules(world).iter().enumerate() {
                    assert_eq!(
                        schedule.cost(length, 4),
                        cost(rank, world, length, 4),
                        "n = {world}, {length}"
                    );
                }
            }
        }
    }

    #[test]
    fn costs_what_the_literature_says() {
        for world in 1..=64usize {
            let (length, n) = (120 * world, world as u64);
            let cost = cost(0, world, length, 4);
            assert_eq!(cost.bytes_sent, 2 * (n - 1) * 4 * length as u64 / n);
            assert_eq!(cost.additions, (n - 1) * length as u64 / n);
            assert_eq!(cost.steps, 2 * (n - 1));
        }
    }
}
