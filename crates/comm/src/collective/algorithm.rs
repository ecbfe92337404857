//! The table of algorithms: name, schedule and cost of each algorithm of each collective.
//!
//! A new algorithm is a file with a schedule function and a cost function, and an entry here. The tests go through the
//! tables: every entry is proven for up to 64 ranks by the [checker](super::checker), run on every transport, and mutated
//! to test the checker.

use super::cost::Cost;
use super::cost_model::{AllReduceLoad, has_shared_hosts};
use super::schedule::Schedule;
use super::{binomial, direct, doubling, halving, hierarchical, pairwise, ring, tree_aggregate};

/// What a schedule depends on: the rank, the hosts of all ranks, and the root.
#[derive(Clone, Copy, Debug)]
pub struct RankView<'a> {
    pub rank: usize,
    /// `hosts[r]` is an arbitrary number that identifies the host of rank r; its length is the world size.
    pub hosts: &'a [usize],
    /// 0 for collectives without a root.
    pub root: usize,
}

impl<'a> RankView<'a> {
    pub fn rank(self) -> usize {
        self.rank
    }

    pub fn world(self) -> usize {
        self.hosts.len()
    }

    pub fn hosts(self) -> &'a [usize] {
        self.hosts
    }

    pub fn root(self) -> usize {
        self.root
    }
}

/// One algorithm of a collective.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmEntry {
    /// The names of all-reduce algorithms are values in jobs and reports.
    pub name: &'static str,
    pub schedule: fn(RankView<'_>) -> Schedule,
    /// The cost for one rank, given the number of elements and the bytes of each.
    pub cost: fn(RankView<'_>, usize, usize) -> Cost,
}

/// An entry: name, schedule, cost, and the parts of the [`RankView`] that both functions take.
macro_rules! entry {
    ($name:literal, $schedule:path, $cost:path, $($part:ident),*) => {
        AlgorithmEntry {
            name: $name,
            schedule: |view| $schedule($(view.$part()),*),
            cost: |view, length, width| $cost($(view.$part(),)* length, width),
        }
    };
}

/// Defines [`Algorithm`] and its entries from one list.
macro_rules! all_reduce_algorithms {
    ($($(#[$doc:meta])* $variant:ident: $entry:expr;)*) => {
        /// An algorithm for all-reduce.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $variant,)*
        }

        /// In the order of [`Algorithm::ALL`].
        pub(super) const ALL_REDUCE: &[AlgorithmEntry] = &[$($entry),*];

        impl Algorithm {
            pub const ALL: [Algorithm; ALL_REDUCE.len()] = [$(Algorithm::$variant),*];
        }
    };
}

// A new entry is also a value of `strategy.exchange.algorithm` (crates/core/src/spec/strategy.rs; a test compares the
// two lists) and a line in docs/data-parallel.md.
all_reduce_algorithms! {
    /// [`ring`]
    Ring: entry!("ring", ring::all_reduce, ring::all_reduce_cost, rank, world);
    /// [`binomial`]
    BinomialTree: entry!("binomial-tree", binomial::all_reduce, binomial::all_reduce_cost, rank, world);
    /// [`doubling`]
    RecursiveDoubling: entry!("recursive-doubling", doubling::all_reduce, doubling::all_reduce_cost, rank, world);
    /// [`halving`]
    HalvingDoubling: entry!("halving-doubling", halving::all_reduce, halving::all_reduce_cost, rank, world);
    /// [`direct`]
    Direct: entry!("direct", direct::all_reduce, direct::all_reduce_cost, rank, world);
    /// [`tree_aggregate`]
    TreeAggregate: entry!("tree-aggregate", tree_aggregate::all_reduce, tree_aggregate::all_reduce_cost, rank, world);
    /// [`hierarchical`]
    Hierarchical: entry!("hierarchical", hierarchical::all_reduce, hierarchical::all_reduce_cost, rank, hosts);
}

pub(super) const BROADCAST: [AlgorithmEntry; 4] = [
    entry!("direct", direct::broadcast, direct::broadcast_cost, rank, world, root),
    entry!("binomial-tree", binomial::broadcast, binomial::broadcast_cost, rank, world, root),
    entry!("ring", ring::broadcast, ring::broadcast_cost, rank, hosts, root),
    entry!("hierarchical", hierarchical::broadcast, hierarchical::broadcast_cost, rank, hosts, root),
];

pub(super) const REDUCE: [AlgorithmEntry; 4] = [
    entry!("direct", direct::reduce, direct::reduce_cost, rank, world, root),
    entry!("binomial-tree", binomial::reduce, binomial::reduce_cost, rank, world, root),
    entry!("ring", ring::reduce, ring::reduce_cost, rank, hosts, root),
    entry!("hierarchical", hierarchical::reduce, hierarchical::reduce_cost, rank, hosts, root),
];

pub(super) const ALL_GATHER: [AlgorithmEntry; 4] = [
    entry!("direct", direct::all_gather, direct::all_gather_cost, rank, world),
    entry!("recursive-doubling", doubling::all_gather, doubling::all_gather_cost, rank, world),
    entry!("ring", ring::all_gather, ring::all_gather_cost, rank, world),
    entry!("hierarchical", hierarchical::all_gather, hierarchical::all_gather_cost, rank, hosts),
];

pub(super) const REDUCE_SCATTER: [AlgorithmEntry; 4] = [
    entry!("direct", direct::reduce_scatter, direct::reduce_scatter_cost, rank, world),
    entry!("recursive-halving", halving::reduce_scatter, halving::reduce_scatter_cost, rank, world),
    entry!("ring", ring::reduce_scatter, ring::reduce_scatter_cost, rank, world),
    entry!("hierarchical", hierarchical::reduce_scatter, hierarchical::reduce_scatter_cost, rank, hosts),
];

pub(super) const ALL_TO_ALL: [AlgorithmEntry; 1] =
    [entry!("pairwise", pairwise::all_to_all, pairwise::all_to_all_cost, rank, world)];

pub(super) const BARRIER: [AlgorithmEntry; 1] =
    [entry!("dissemination", doubling::barrier, doubling::barrier_cost, rank, world)];

impl Algorithm {
    pub(super) fn entry(self) -> &'static AlgorithmEntry {
        &ALL_REDUCE[self as usize]
    }

    /// The name in jobs and reports.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// The schedule of `rank`; `hosts` as in [`RankView`].
    pub fn all_reduce(self, rank: usize, hosts: &[usize]) -> Schedule {
        (self.entry().schedule)(RankView { rank, hosts, root: 0 })
    }

    /// The cost of [`Algorithm::all_reduce`] for `length` elements of `width` bytes.
    pub fn all_reduce_cost(self, rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
        (self.entry().cost)(RankView { rank, hosts, root: 0 }, length, width)
    }

    /// The default for a buffer of `bytes`. It comes from a fixed table, so every run and every rank chooses the same.
    /// Where a host has several ranks, the hierarchical algorithm is chosen if the [cost model](super::cost_model)
    /// predicts that it is clearly faster than the table's choice.
    ///
    /// The cost model goes through the schedules of all ranks: cache the result if it is needed often.
    pub fn choose(bytes: usize, hosts: &[usize]) -> Algorithm {
        let flat = Algorithm::choose_flat(bytes, hosts.len());
        let seconds = |algorithm: Algorithm| AllReduceLoad::of(algorithm, hosts).seconds(bytes);
        match has_shared_hosts(hosts) && seconds(Algorithm::Hierarchical) < 0.8 * seconds(flat) {
            true => Algorithm::Hierarchical,
            false => flat,
        }
    }

    /// The choice if all links are alike.
    ///
    /// Short buffers are bound by the number of steps and messages, long ones by bytes. The ring sends to one peer only,
    /// and is taken as soon as its chunks are long enough to pay for its many steps. The limits were measured over TCP with
    /// more ranks than cores, where a message costs more than a step.
    fn choose_flat(bytes: usize, world: usize) -> Algorithm {
        const KIB: usize = 1 << 10;
        let limit = |kib: usize| bytes <= kib * KIB;
        match world {
            ..=2 if limit(256) => Algorithm::RecursiveDoubling,
            ..=4 if limit(16) => Algorithm::RecursiveDoubling,
            5.. if limit(64) => Algorithm::BinomialTree,
            _ if limit(256) || limit(64 * world) => Algorithm::HalvingDoubling,
            _ => Algorithm::Ring,
        }
    }
}

/// How an all-reduce is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduceMethod {
    /// By a schedule, on any transport.
    Schedule(Algorithm),
    /// By the transport's own all-reduce, if it has one: see [`native`](super::native).
    Native,
}

impl AllReduceMethod {
    /// The name in jobs and reports.
    pub fn name(self) -> &'static str {
        match self {
            AllReduceMethod::Schedule(algorithm) => algorithm.name(),
            AllReduceMethod::Native => "native",
        }
    }

    pub fn all() -> impl Iterator<Item = AllReduceMethod> + Clone {
        Algorithm::ALL.into_iter().map(AllReduceMethod::Schedule).chain([AllReduceMethod::Native])
    }

    pub fn named(name: &str) -> Option<AllReduceMethod> {
        AllReduceMethod::all().find(|method| method.name() == name)
    }

    /// The default: the transport's own all-reduce if it is available, otherwise [`Algorithm::choose`].
    pub fn choose(native: bool, bytes: usize, hosts: &[usize]) -> AllReduceMethod {
        if native {
            AllReduceMethod::Native
        } else {
            AllReduceMethod::Schedule(Algorithm::choose(bytes, hosts))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checker::check;
    use super::super::kind::Collective;
    use super::super::partition::Partition;
    use super::*;

    /// Host of each rank: one rank per host, a single host, blocks, round-robin, hosts of different sizes.
    const HOST_OF_RANK: [fn(usize) -> usize; 5] =
        [|rank| rank, |_| 0, |rank| rank / 4, |rank| rank % 3, |rank| rank.isqrt()];

    /// Proves every algorithm of a collective for up to 64 ranks: the result, and the stated cost.
    fn prove(collective: Collective) {
        for algorithm in collective.algorithms() {
            for world in 1..=64 {
                let mut proven: Vec<Vec<Schedule>> = Vec::new();
                for host in HOST_OF_RANK {
                    let hosts: Vec<usize> = (0..world).map(host).collect();
                    let view = |rank| collective.rank_view(rank, &hosts);
                    let schedules: Vec<Schedule> =
                        (0..world).map(|rank| (algorithm.schedule)(view(rank))).collect();
                    // Most schedules do not depend on the hosts.
                    if proven.contains(&schedules) {
                        continue;
                    }
                    let case = format!("{collective:?} by {}, n = {world}, hosts {hosts:?}", algorithm.name);
                    let rounds =
                        check(collective, &schedules).unwrap_or_else(|error| panic!("{case}: {error}"));
                    for (rank, schedule) in schedules.iter().enumerate() {
                        for length in [0, 1, 63, 64, 1000, 4096] {
                            let counted = schedule.cost(rounds, Partition::Even(length), 4);
                            let stated = (algorithm.cost)(view(rank), length, 4);
                            assert_eq!(counted, stated, "{case}, rank {rank}, {length} elements");
                        }
                    }
                    proven.push(schedules);
                }
            }
        }
    }

    #[test]
    fn all_reduces_are_proven() {
        prove(Collective::AllReduce);
    }

    #[test]
    fn broadcasts_are_proven() {
        [0, 1, 6, 41].into_iter().for_each(|root| prove(Collective::Broadcast { root }));
    }

    #[test]
    fn reduces_are_proven() {
        [0, 1, 6, 41].into_iter().for_each(|root| prove(Collective::Reduce { root }));
    }

    #[test]
    fn all_gathers_are_proven() {
        prove(Collective::AllGather);
    }

    #[test]
    fn reduce_scatters_are_proven() {
        prove(Collective::ReduceScatter);
    }

    #[test]
    fn all_to_alls_and_barriers_are_proven() {
        [Collective::AllToAll, Collective::Barrier].into_iter().for_each(prove);
    }

    #[test]
    fn short_buffers_take_few_steps_and_long_ones_few_bytes() {
        for world in 2..=64 {
            let hosts: Vec<usize> = (0..world).collect();
            let cost =
                |bytes: usize| Algorithm::choose(bytes, &hosts).all_reduce_cost(0, &hosts, bytes / 4, 4);
            assert!(cost(1024).steps <= 2 * world.ilog2() as u64 + 2);
            assert!(cost(64 << 20).bytes_sent <= 2 * (64 << 20));
        }
    }

    #[test]
    fn hosts_with_several_ranks_choose_hierarchical() {
        let hosts =
            |world: usize, per_host: usize| (0..world).map(|rank| rank / per_host).collect::<Vec<_>>();
        assert_eq!(Algorithm::choose(100 << 20, &hosts(8, 4)), Algorithm::Hierarchical);
        assert_eq!(Algorithm::choose(100 << 20, &hosts(8, 8)), Algorithm::Ring);
        assert_eq!(Algorithm::choose(100 << 20, &hosts(8, 1)), Algorithm::Ring);
    }

    #[test]
    fn names_lead_back_to_their_methods() {
        for method in AllReduceMethod::all() {
            assert_eq!(AllReduceMethod::named(method.name()), Some(method));
        }
        assert_eq!(AllReduceMethod::named("rings"), None);
    }
}
