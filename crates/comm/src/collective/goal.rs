//! What a collective is to achieve, and which schedule reaches it when nobody chooses.

use super::algorithm::Algorithm;
use super::schedule::Schedule;
use super::{binomial, direct, doubling, pairwise, ring};

/// What a collective is to achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Every chunk of every rank is the sum over all ranks.
    AllReduce,
    /// Every chunk of the root is.
    Reduce {
        /// The root, modulo the world.
        root: usize,
    },
    /// Every chunk of every rank is the root's.
    Broadcast {
        /// The root, modulo the world.
        root: usize,
    },
    /// Chunk r of rank r is the sum over all ranks.
    ReduceScatter,
    /// Chunk c of every rank is rank c's.
    AllGather,
    /// Chunk s of rank r is what was chunk r of rank s.
    AllToAll,
    /// Every rank has heard of every other, how often does not matter. It takes a buffer of at least one element: where
    /// there is none, nothing waits for anything.
    Barrier,
}

/// Up to so many bytes, messages of all ranks at once are faster than those of a ring one after the other.
const SHORT: usize = 1 << 20;

impl Goal {
    /// Its name in errors and pulses.
    pub fn name(self) -> &'static str {
        match self {
            Goal::AllReduce => "all-reduce",
            Goal::Reduce { .. } => "reduce",
            Goal::Broadcast { .. } => "broadcast",
            Goal::ReduceScatter => "reduce-scatter",
            Goal::AllGather => "all-gather",
            Goal::AllToAll => "all-to-all",
            Goal::Barrier => "barrier",
        }
    }

    /// What `rank` does for a buffer of so many bytes; `hosts[r]` says on which host rank r is, by any number. From a fixed
    /// table: every rank that asks for the same gets its part of the same.
    pub fn schedule(self, rank: usize, hosts: &[usize], bytes: usize) -> Schedule {
        let world = hosts.len();
        let within = |root: usize| root % world.max(1);
        match self {
            Goal::AllReduce => Algorithm::choose(bytes, hosts).all_reduce(rank, hosts),
            Goal::Reduce { root } => binomial::reduce(rank, world, within(root)),
            Goal::Broadcast { root } => binomial::broadcast(rank, world, within(root)),
            Goal::ReduceScatter if bytes <= SHORT => direct::reduce_scatter(rank, world),
            Goal::ReduceScatter => ring::reduce_scatter(rank, world),
            Goal::AllGather if bytes <= SHORT => direct::all_gather(rank, world),
            Goal::AllGather => ring::all_gather(rank, world),
            Goal::AllToAll => pairwise::all_to_all(rank, world),
            Goal::Barrier => doubling::barrier(rank, world),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checker::check;
    use super::*;

    #[test]
    fn what_is_chosen_reaches_its_goal() {
        let goals = [
            Goal::AllReduce,
            Goal::Reduce { root: 2 },
            Goal::Broadcast { root: 1 },
            Goal::ReduceScatter,
            Goal::AllGather,
            Goal::AllToAll,
            Goal::Barrier,
        ];
        for (world, goal) in (1..=17).flat_map(|world| goals.map(|goal| (world, goal))) {
            for (bytes, per_host) in [(100, 1), (300_000, 4), (100 << 20, 3)] {
                let hosts: Vec<usize> = (0..world).map(|rank| rank / per_host).collect();
                let schedules: Vec<Schedule> =
                    (0..world).map(|rank| goal.schedule(rank, &hosts, bytes)).collect();
                assert_eq!(check(goal, &schedules), Ok(()), "{goal:?} of {world}, {bytes} bytes");
            }
        }
    }
}
