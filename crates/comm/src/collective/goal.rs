//! What a collective is to achieve, and which schedule reaches it when nobody chooses.

use super::algorithm::Algorithm;
use super::forecast::is_mixed;
use super::schedule::Schedule;
use super::way::{self, Seat, Way};

/// What a collective is to achieve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// The root's rank, where there is one.
    fn root(self, world: usize) -> usize {
        match self {
            Goal::Reduce { root } | Goal::Broadcast { root } => root % world.max(1),
            _ => 0,
        }
    }

    /// Where a rank stands in it; `hosts[r]` says on which host rank r is, by any number.
    pub fn seat(self, rank: usize, hosts: &[usize]) -> Seat<'_> {
        Seat { rank, hosts, root: self.root(hosts.len()) }
    }

    /// All ways to reach it.
    pub fn ways(self) -> &'static [Way] {
        match self {
            Goal::AllReduce => Algorithm::WAYS,
            Goal::Reduce { .. } => &way::REDUCE,
            Goal::Broadcast { .. } => &way::BROADCAST,
            Goal::ReduceScatter => &way::REDUCE_SCATTER,
            Goal::AllGather => &way::ALL_GATHER,
            Goal::AllToAll => &way::ALL_TO_ALL,
            Goal::Barrier => &way::BARRIER,
        }
    }

    /// What `rank` does for a buffer of so many bytes; `hosts[r]` says on which host rank r is, by any number. From a fixed
    /// table: every rank that asks for the same gets its part of the same.
    pub fn schedule(self, rank: usize, hosts: &[usize], bytes: usize) -> Schedule {
        (self.choose(bytes, hosts).schedule)(self.seat(rank, hosts))
    }

    /// The way that is taken when nobody chooses. Short buffers pay for steps and messages, long ones for bytes; where hosts
    /// have several ranks, what crosses between them does so once. The limits were measured over loopback and shared memory
    /// with up to 8 ranks on two cores, but for the chain's: on links of their own it saves what a root sends twice.
    pub fn choose(self, bytes: usize, hosts: &[usize]) -> &'static Way {
        let limit = |kib: usize| bytes <= kib << 10;
        match self {
            Goal::AllReduce => Algorithm::choose(bytes, hosts).way(),
            Goal::Reduce { .. } | Goal::Broadcast { .. } => {
                let reduces = matches!(self, Goal::Reduce { .. });
                let [direct, tree, ring, hierarchical] = if reduces { &way::REDUCE } else { &way::BROADCAST };
                match hosts.len() {
                    // The chain goes host by host by itself.
                    _ if !limit(1024) => ring,
                    _ if is_mixed(hosts) => hierarchical,
                    ..=4 if limit(16) => direct,
                    _ => tree,
                }
            }
            Goal::ReduceScatter | Goal::AllGather => {
                let reduces = self == Goal::ReduceScatter;
                let [direct, doubling, ring, hierarchical] =
                    if reduces { &way::REDUCE_SCATTER } else { &way::ALL_GATHER };
                match hosts.len() {
                    _ if is_mixed(hosts) => hierarchical,
                    5.. if limit(256) => doubling,
                    _ if limit(1024) => direct,
                    _ => ring,
                }
            }
            Goal::AllToAll => &way::ALL_TO_ALL[0],
            Goal::Barrier => &way::BARRIER[0],
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
                assert!(check(goal, &schedules).is_ok(), "{goal:?} of {world}, {bytes} bytes");
            }
        }
    }
}
