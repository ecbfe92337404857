//! The kinds of collectives, and the default algorithm of each.

use super::algorithm::{self, Algorithm, AlgorithmEntry, RankView};
use super::cost_model::has_shared_hosts;
use super::schedule::Schedule;

/// A collective, defined by its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank ends with the sum of all buffers.
    AllReduce,
    /// The root (modulo the world size) ends with the sum of all buffers.
    Reduce { root: usize },
    /// Every rank ends with the buffer of the root (modulo the world size).
    Broadcast { root: usize },
    /// Chunk r of rank r is the sum over all ranks.
    ReduceScatter,
    /// Chunk c of every rank is rank c's.
    AllGather,
    /// Chunk s of rank r is what was chunk r of rank s.
    AllToAll,
    /// No rank returns before all have entered. It needs a buffer of at least one element: without one, no message
    /// is sent and no rank waits.
    Barrier,
}

impl Collective {
    /// The name in errors and rank status.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::Reduce { .. } => "reduce",
            Collective::Broadcast { .. } => "broadcast",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
            Collective::AllToAll => "all-to-all",
            Collective::Barrier => "barrier",
        }
    }

    fn root(self, world: usize) -> usize {
        match self {
            Collective::Reduce { root } | Collective::Broadcast { root } => root % world.max(1),
            _ => 0,
        }
    }

    /// The view of `rank`; `hosts[r]` identifies the host of rank r.
    pub fn rank_view(self, rank: usize, hosts: &[usize]) -> RankView<'_> {
        RankView { rank, hosts, root: self.root(hosts.len()) }
    }

    pub fn algorithms(self) -> &'static [AlgorithmEntry] {
        match self {
            Collective::AllReduce => algorithm::ALL_REDUCE,
            Collective::Reduce { .. } => &algorithm::REDUCE,
            Collective::Broadcast { .. } => &algorithm::BROADCAST,
            Collective::ReduceScatter => &algorithm::REDUCE_SCATTER,
            Collective::AllGather => &algorithm::ALL_GATHER,
            Collective::AllToAll => &algorithm::ALL_TO_ALL,
            Collective::Barrier => &algorithm::BARRIER,
        }
    }

    /// The schedule of `rank` under the [default algorithm](Collective::choose) for a buffer of `bytes`. All ranks that
    /// ask for the same collective and size get matching schedules.
    pub fn schedule(self, rank: usize, hosts: &[usize], bytes: usize) -> Schedule {
        (self.choose(bytes, hosts).schedule)(self.rank_view(rank, hosts))
    }

    /// The default algorithm, from a fixed table. Short buffers are bound by steps and messages, long ones by bytes; where
    /// hosts have several ranks, the data crosses between hosts once. The limits were measured over loopback and shared
    /// memory with up to 8 ranks on two cores, except for that of the ring: with a link per rank it saves what a root
    /// would send twice.
    pub fn choose(self, bytes: usize, hosts: &[usize]) -> &'static AlgorithmEntry {
        let limit = |kib: usize| bytes <= kib << 10;
        match self {
            Collective::AllReduce => Algorithm::choose(bytes, hosts).entry(),
            Collective::Reduce { .. } | Collective::Broadcast { .. } => {
                let reduces = matches!(self, Collective::Reduce { .. });
                let [direct, tree, ring, hierarchical] =
                    if reduces { &algorithm::REDUCE } else { &algorithm::BROADCAST };
                match hosts.len() {
                    // The ring is ordered by host already.
                    _ if !limit(1024) => ring,
                    _ if has_shared_hosts(hosts) => hierarchical,
                    ..=4 if limit(16) => direct,
                    _ => tree,
                }
            }
            Collective::ReduceScatter | Collective::AllGather => {
                let reduces = self == Collective::ReduceScatter;
                let [direct, doubling, ring, hierarchical] =
                    if reduces { &algorithm::REDUCE_SCATTER } else { &algorithm::ALL_GATHER };
                match hosts.len() {
                    _ if has_shared_hosts(hosts) => hierarchical,
                    5.. if limit(256) => doubling,
                    // A message to every other rank costs more than the same bytes in a few steps.
                    65.. if limit(1024) => doubling,
                    _ if limit(1024) => direct,
                    _ => ring,
                }
            }
            Collective::AllToAll => &algorithm::ALL_TO_ALL[0],
            Collective::Barrier => &algorithm::BARRIER[0],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checker::check;
    use super::*;

    #[test]
    fn default_algorithms_give_the_right_result() {
        let collectives = [
            Collective::AllReduce,
            Collective::Reduce { root: 2 },
            Collective::Broadcast { root: 1 },
            Collective::ReduceScatter,
            Collective::AllGather,
            Collective::AllToAll,
            Collective::Barrier,
        ];
        for (world, collective) in (1..=17).flat_map(|world| collectives.map(|kind| (world, kind))) {
            for (bytes, per_host) in [(100, 1), (300_000, 4), (100 << 20, 3)] {
                let hosts: Vec<usize> = (0..world).map(|rank| rank / per_host).collect();
                let schedules: Vec<Schedule> =
                    (0..world).map(|rank| collective.schedule(rank, &hosts, bytes)).collect();
                assert!(check(collective, &schedules).is_ok(), "{collective:?} of {world}, {bytes} bytes");
            }
        }
    }
}
