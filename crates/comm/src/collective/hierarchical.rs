//! Hierarchical: within each host and between hosts, each part by itself.
//!
//! The first rank of a host is its leader; where there is a root, it leads its own host. Between hosts only leaders talk:
//!
//! - all-reduce: sums climb a tree to the leader, the leaders add up on a ring, and the result descends the same trees;
//! - broadcast: from the root down a tree of leaders, then down a tree within each host; a reduce is that backwards;
//! - all-gather: the leader gets the chunks of its host, the leaders gather them on a ring, and all descends a tree;
//! - reduce-scatter: sums climb a tree to the leader, the leaders share them out on a ring, each to its members.
//!
//! What crosses the network between hosts is what one rank per host would send, however many ranks they have: for links
//! between hosts that are slower than within.

use super::cost::{Cost, ceil_log2};
use super::partition::chunk_range;
use super::schedule::{Action, Chunks, Schedule};
use super::{binomial, direct, ring};
use std::collections::BTreeSet;

/// Every rank ends with the sum of all buffers; `hosts[r]` says on which host rank r is, by any number.
pub fn all_reduce(rank: usize, hosts: &[usize]) -> Schedule {
    let place = Place::new(rank, hosts, 0);
    let chunks = place.leaders.len();
    let climb = place.within(binomial::reduce, chunks);
    let between = place.between(ring::all_reduce);
    climb.then(between).then(place.within(binomial::broadcast, chunks))
}

/// Every rank ends with the root's buffer.
pub fn broadcast(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    let place = Place::new(rank, hosts, root);
    let between = place.between(|host, count| binomial::broadcast(host, count, place.of_root));
    between.then(place.within(binomial::broadcast, 1))
}

/// The root ends with the sum of all buffers.
pub fn reduce(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    broadcast(rank, hosts, root).reversed(Action::Reduce)
}

/// Rank r begins with chunk r and ends with all chunks.
pub fn all_gather(rank: usize, hosts: &[usize]) -> Schedule {
    let (place, world) = (Place::new(rank, hosts, 0), hosts.len());
    let of_host = |host: usize| runs(&members_of(hosts, place.leaders[host]));
    let between = place.between(|host, count| ring::all_gather(host, count).over(world, of_host));
    place.own_chunks(direct::gather, world).then(between).then(place.within(binomial::broadcast, world))
}

/// Rank r ends with chunk r of the sum; its other chunks hold partial sums.
pub fn reduce_scatter(rank: usize, hosts: &[usize]) -> Schedule {
    let (place, world) = (Place::new(rank, hosts, 0), hosts.len());
    let of_host = |host: usize| runs(&members_of(hosts, place.leaders[host]));
    let between = place.between(|host, count| ring::reduce_scatter(host, count).over(world, of_host));
    place.within(binomial::reduce, world).then(between).then(place.own_chunks(direct::scatter, world))
}

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let place = Place::new(rank, hosts, 0);
    let within = binomial::all_reduce_cost(place.position, place.members.len(), length, width);
    let between = place.if_leader(|host, count| ring::all_reduce_cost(host, count, length, width));
    let steps = 2 * place.depth(hosts) + 2 * (place.leaders.len() - 1);
    Cost { steps: steps as u64, ..within + between }
}

/// What [`broadcast`] costs.
pub fn broadcast_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    let place = Place::new(rank, hosts, root);
    let within = binomial::broadcast_cost(place.position, place.members.len(), 0, length, width);
    let between =
        place.if_leader(|host, count| binomial::broadcast_cost(host, count, place.of_root, length, width));
    // A host begins when its leader has served the other leaders.
    let through = |(host, leader): (usize, &usize)| {
        let served = binomial::broadcast_end(host, place.leaders.len(), place.of_root);
        served + ceil_log2(members_of(hosts, *leader).len())
    };
    let steps = place.leaders.iter().enumerate().map(through).max().unwrap_or(0);
    Cost { steps: steps as u64, ..within + between }
}

/// What [`reduce`] costs.
pub fn reduce_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    broadcast_cost(rank, hosts, root, length, width).reversed(width)
}

/// What [`all_gather`] costs: what the leader collects, what the leaders pass round, and all of it down the tree.
pub fn all_gather_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let place = Place::new(rank, hosts, 0);
    let blocks = place.blocks(hosts, length);
    let (given, collected) = place.own_elements(hosts, rank, length);
    let passed = place.if_leader(|host, count| {
        let all_but = |host: usize| length - blocks[host % count];
        Cost::of(0, all_but(host + 1), all_but(host), 0, width)
    });
    let descended = binomial::broadcast_cost(place.position, place.members.len(), 0, length, width);
    let steps = place.depth(hosts).min(1) + place.leaders.len() - 1 + place.depth(hosts);
    Cost { steps: steps as u64, ..Cost::of(0, given, collected, 0, width) + passed + descended }
}

/// What [`reduce_scatter`] costs: a buffer up the tree, what the leaders pass round, and every member's chunk.
pub fn reduce_scatter_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let place = Place::new(rank, hosts, 0);
    let blocks = place.blocks(hosts, length);
    let (taken, handed) = place.own_elements(hosts, rank, length);
    let passed = place.if_leader(|host, count| {
        let all_but = |host: usize| length - blocks[host % count];
        let received = all_but(host + count - 1);
        Cost::of(0, all_but(host), received, received, width)
    });
    let climbed = binomial::reduce_cost(place.position, place.members.len(), 0, length, width);
    let steps = place.depth(hosts).min(1) + place.leaders.len() - 1 + place.depth(hosts);
    Cost { steps: steps as u64, ..Cost::of(0, handed, taken, 0, width) + passed + climbed }
}

/// All ranks, host by host from the first one's on, which comes first itself.
pub fn host_by_host(hosts: &[usize], first: usize) -> Vec<usize> {
    let mut leaders = leaders(hosts, first);
    let of_first = leaders.iter().position(|&leader| leader == first).unwrap_or(0);
    leaders.rotate_left(of_first);
    leaders.iter().flat_map(|leader| members_of(hosts, *leader)).collect()
}

/// The first rank of every host; but the root, if it is on it.
fn leaders(hosts: &[usize], root: usize) -> Vec<usize> {
    let mut met = BTreeSet::new();
    let lead = |first: usize| if hosts[first] == hosts[root] { root } else { first };
    (0..hosts.len()).filter(|rank| met.insert(hosts[*rank])).map(lead).collect()
}

/// The ranks of a leader's host, the leader first, the others as they follow it.
fn members_of(hosts: &[usize], leader: usize) -> Vec<usize> {
    let from_leader = (leader..hosts.len()).chain(0..leader);
    from_leader.filter(|&other| hosts[other] == hosts[leader]).collect()
}

/// Chunks as neighbours that travel together.
fn runs(chunks: &[usize]) -> Vec<Chunks> {
    let mut runs: Vec<Chunks> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut().filter(|run| run.numbers().end == chunk) {
            Some(run) => run.count += 1,
            None => runs.push(Chunks::one(chunk)),
        }
    }
    runs
}

/// Where a rank stands.
struct Place {
    /// The ranks of its host, the leader first.
    members: Vec<usize>,
    /// Its place among them.
    position: usize,
    /// The leader of every host.
    leaders: Vec<usize>,
    /// The place of its own leader among them, and of the root.
    host: usize,
    of_root: usize,
}

impl Place {
    fn new(rank: usize, hosts: &[usize], root: usize) -> Place {
        let leaders = leaders(hosts, root);
        let find = |of: usize| leaders.iter().position(|&leader| hosts[leader] == hosts[of]).unwrap_or(0);
        let (host, of_root) = (find(rank), find(root));
        let members = members_of(hosts, leaders[host]);
        let position = members.iter().position(|&member| member == rank).unwrap_or(0);
        Place { members, position, leaders, host, of_root }
    }

    /// A collective of the members, whose root is the leader, over all of so many chunks.
    fn within(&self, schedule: fn(usize, usize, usize) -> Schedule, chunks: usize) -> Schedule {
        let all = |_| vec![Chunks::all(chunks)];
        schedule(self.position, self.members.len(), 0).among(&self.members).over(chunks, all)
    }

    /// A collective of the members, whose root is the leader, over the chunk of each.
    fn own_chunks(&self, schedule: fn(usize, usize, usize) -> Schedule, chunks: usize) -> Schedule {
        let own = |member: usize| vec![Chunks::one(self.members[member])];
        schedule(self.position, self.members.len(), 0).among(&self.members).over(chunks, own)
    }

    /// The elements of that which a member moves, and those that its leader does.
    fn own_elements(&self, hosts: &[usize], rank: usize, length: usize) -> (usize, usize) {
        let own = chunk_range(length, hosts.len(), rank).len();
        if self.position > 0 { (own, 0) } else { (0, self.blocks(hosts, length)[self.host] - own) }
    }

    /// How many elements the chunks of each host have.
    fn blocks(&self, hosts: &[usize], length: usize) -> Vec<usize> {
        let chunk = |rank: usize| chunk_range(length, hosts.len(), rank).len();
        let block = |leader: &usize| members_of(hosts, *leader).into_iter().map(chunk).sum();
        self.leaders.iter().map(block).collect()
    }

    /// A collective of the leaders, by their places: nothing for others.
    fn between(&self, schedule: impl FnOnce(usize, usize) -> Schedule) -> Schedule {
        self.if_leader(|host, count| schedule(host, count).among(&self.leaders))
    }

    fn if_leader<T: Default>(&self, act: impl FnOnce(usize, usize) -> T) -> T {
        if self.position == 0 { act(self.host, self.leaders.len()) } else { T::default() }
    }

    /// The depth of the deepest tree of a host.
    fn depth(&self, hosts: &[usize]) -> usize {
        let sizes = self.leaders.iter().map(|leader| members_of(hosts, *leader).len());
        ceil_log2(sizes.max().unwrap_or(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::goal::Goal;
    use super::super::way::Seat;
    use super::*;

    /// Chunks that a rank sends to other hosts, as a share of all.
    fn abroad(schedule: &Schedule, rank: usize, hosts: &[usize]) -> f64 {
        let sends = schedule.steps.iter().flat_map(|step| &step.sends);
        let chunks = sends.filter(|send| hosts[send.to] != hosts[rank]).map(|send| send.chunks.count);
        chunks.sum::<usize>() as f64 / schedule.chunks as f64
    }

    #[test]
    fn between_hosts_goes_one_buffers_ring_whatever_the_ranks_per_host() {
        let hosts: Vec<usize> = (0..16).map(|rank| rank / 4).collect();
        let sent: Vec<f64> = (0..16).map(|rank| abroad(&all_reduce(rank, &hosts), rank, &hosts)).collect();
        assert_eq!(sent[..5], [1.5, 0.0, 0.0, 0.0, 1.5]);
    }

    #[test]
    fn what_is_chosen_enters_every_host_once() {
        // Dealt out, so that neighbours are on different hosts; the root is not the first of its host.
        let hosts: Vec<usize> = (0..12).map(|rank| rank % 3).collect();
        for bytes in [100, 100 << 20] {
            for (goal, buffers) in [
                (Goal::Broadcast { root: 4 }, 2.0),
                (Goal::Reduce { root: 4 }, 2.0),
                (Goal::AllGather, 2.0),
                (Goal::ReduceScatter, 2.0),
            ] {
                let schedule = |rank| goal.schedule(rank, &hosts, bytes);
                let all: f64 = (0..12).map(|rank| abroad(&schedule(rank), rank, &hosts)).sum();
                assert!((all - buffers).abs() < 1e-9, "{goal:?} of {bytes} bytes: {all} buffers");
            }
        }
    }

    #[test]
    fn a_chain_goes_host_by_host_from_its_root_on() {
        assert_eq!(host_by_host(&[0, 1, 0, 2, 1], 4), [4, 1, 3, 0, 2]);
        assert_eq!(host_by_host(&[0, 1, 2, 3], 2), [2, 3, 0, 1]);
        assert_eq!(host_by_host(&[7; 4], 2), [2, 3, 0, 1]);
        let seat = Seat { rank: 1, hosts: &[0, 1, 0, 2, 1], root: 4 };
        assert_eq!(
            super::ring::broadcast(seat.rank(), seat.hosts(), seat.root()).steps[0].receives[0].from,
            4
        );
    }
}
