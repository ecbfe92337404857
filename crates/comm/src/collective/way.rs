//! The ways to reach each goal, in tables: what they are called, what each rank does, and what that costs.
//!
//! A new algorithm is a file with a function for its schedule and one for its cost, and a row here, or for an all-reduce in
//! [`algorithm`](super::algorithm). Every row is proven for worlds up to 64 by the [checker](super::checker), run on every
//! transport and broken on purpose by the tests, because these go through the tables.

use super::cost::Cost;
use super::schedule::Schedule;
use super::{binomial, direct, doubling, halving, hierarchical, pairwise, ring};

/// Where a rank stands in a collective.
#[derive(Clone, Copy, Debug)]
pub struct Seat<'a> {
    /// Which rank.
    pub rank: usize,
    /// `hosts[r]` says on which host rank r is, by any number; as many as there are ranks.
    pub hosts: &'a [usize],
    /// The root, where there is one: a rank.
    pub root: usize,
}

impl<'a> Seat<'a> {
    /// Which rank.
    pub fn rank(self) -> usize {
        self.rank
    }

    /// Of how many.
    pub fn world(self) -> usize {
        self.hosts.len()
    }

    /// On which hosts they are.
    pub fn hosts(self) -> &'a [usize] {
        self.hosts
    }

    /// The root, where there is one.
    pub fn root(self) -> usize {
        self.root
    }
}

/// A way to reach a goal.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its name; that of an all-reduce stands in jobs and reports.
    pub name: &'static str,
    /// What a rank does.
    pub schedule: fn(Seat<'_>) -> Schedule,
    /// What that costs it, for so many elements of so many bytes.
    pub cost: fn(Seat<'_>, usize, usize) -> Cost,
}

/// A row: name, schedule and cost, and what of its seat a rank has to know for both.
macro_rules! way {
    ($name:literal, $schedule:path, $cost:path, $($part:ident),*) => {
        $crate::collective::way::Way {
            name: $name,
            schedule: |seat| $schedule($(seat.$part()),*),
            cost: |seat, length, width| $cost($(seat.$part(),)* length, width),
        }
    };
}
pub(super) use way;

pub(super) const BROADCAST: [Way; 4] = [
    way!("direct", direct::broadcast, direct::broadcast_cost, rank, world, root),
    way!("binomial-tree", binomial::broadcast, binomial::broadcast_cost, rank, world, root),
    way!("ring", ring::broadcast, ring::broadcast_cost, rank, hosts, root),
    way!("hierarchical", hierarchical::broadcast, hierarchical::broadcast_cost, rank, hosts, root),
];

pub(super) const REDUCE: [Way; 4] = [
    way!("direct", direct::reduce, direct::reduce_cost, rank, world, root),
    way!("binomial-tree", binomial::reduce, binomial::reduce_cost, rank, world, root),
    way!("ring", ring::reduce, ring::reduce_cost, rank, hosts, root),
    way!("hierarchical", hierarchical::reduce, hierarchical::reduce_cost, rank, hosts, root),
];

pub(super) const ALL_GATHER: [Way; 4] = [
    way!("direct", direct::all_gather, direct::all_gather_cost, rank, world),
    way!("recursive-doubling", doubling::all_gather, doubling::all_gather_cost, rank, world),
    way!("ring", ring::all_gather, ring::all_gather_cost, rank, world),
    way!("hierarchical", hierarchical::all_gather, hierarchical::all_gather_cost, rank, hosts),
];

pub(super) const REDUCE_SCATTER: [Way; 4] = [
    way!("direct", direct::reduce_scatter, direct::reduce_scatter_cost, rank, world),
    way!("recursive-halving", halving::reduce_scatter, halving::reduce_scatter_cost, rank, world),
    way!("ring", ring::reduce_scatter, ring::reduce_scatter_cost, rank, world),
    way!("hierarchical", hierarchical::reduce_scatter, hierarchical::reduce_scatter_cost, rank, hosts),
];

pub(super) const ALL_TO_ALL: [Way; 1] =
    [way!("pairwise", pairwise::all_to_all, pairwise::all_to_all_cost, rank, world)];

pub(super) const BARRIER: [Way; 1] =
    [way!("dissemination", doubling::barrier, doubling::barrier_cost, rank, world)];

#[cfg(test)]
mod tests {
    use super::super::checker::check;
    use super::super::goal::Goal;
    use super::super::partition::Partition;
    use super::*;

    /// Some ways to put ranks on hosts: each on its own, all on one, in blocks, dealt out, ragged.
    const PLACEMENTS: [fn(usize) -> usize; 5] =
        [|rank| rank, |_| 0, |rank| rank / 4, |rank| rank % 3, |rank| rank.isqrt()];

    /// Every way to a goal, for every world up to 64, reaches it at the stated cost.
    fn prove(goal: Goal) {
        for way in goal.ways() {
            for world in 1..=64 {
                let mut proven: Vec<Vec<Schedule>> = Vec::new();
                for host in PLACEMENTS {
                    let hosts: Vec<usize> = (0..world).map(host).collect();
                    let seat = |rank| goal.seat(rank, &hosts);
                    let schedules: Vec<Schedule> =
                        (0..world).map(|rank| (way.schedule)(seat(rank))).collect();
                    // Most ways are the same whatever the hosts.
                    if proven.contains(&schedules) {
                        continue;
                    }
                    let about = format!("{goal:?} by {}, n = {world}, hosts {hosts:?}", way.name);
                    let rounds = check(goal, &schedules).unwrap_or_else(|flaw| panic!("{about}: {flaw}"));
                    for (rank, schedule) in schedules.iter().enumerate() {
                        for length in [0, 1, 63, 64, 1000, 4096] {
                            let counted = schedule.cost(rounds, Partition::Even(length), 4);
                            let stated = (way.cost)(seat(rank), length, 4);
                            assert_eq!(counted, stated, "{about}, rank {rank}, {length} elements");
                        }
                    }
                    proven.push(schedules);
                }
            }
        }
    }

    #[test]
    fn all_reduces_are_proven() {
        prove(Goal::AllReduce);
    }

    #[test]
    fn broadcasts_are_proven() {
        [0, 1, 6, 41].into_iter().for_each(|root| prove(Goal::Broadcast { root }));
    }

    #[test]
    fn reduces_are_proven() {
        [0, 1, 6, 41].into_iter().for_each(|root| prove(Goal::Reduce { root }));
    }

    #[test]
    fn all_gathers_are_proven() {
        prove(Goal::AllGather);
    }

    #[test]
    fn reduce_scatters_are_proven() {
        prove(Goal::ReduceScatter);
    }

    #[test]
    fn all_to_alls_and_barriers_are_proven() {
        [Goal::AllToAll, Goal::Barrier].into_iter().for_each(prove);
    }
}
