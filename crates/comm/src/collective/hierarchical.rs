//! Hierarchical: one algorithm within each host, another between the hosts.
//!
//! The first rank of a host is its leader; a root leads its own host. Only leaders communicate between hosts:
//!
//! - all-reduce: a tree within each host reduces to the leader, a ring of the leaders, and the same trees broadcast;
//! - broadcast: a tree of the leaders, then a tree within each host; reduce is the dual;
//! - all-gather: the leader gathers the chunks of its host, a ring of the leaders, and a tree within each host broadcasts;
//! - reduce-scatter: a tree within each host reduces to the leader, a ring of the leaders, and the leader scatters.
//!
//! The traffic between hosts is that of one rank per host, for any number of ranks per host: for links between hosts that
//! are slower than within.

use super::cost::{Cost, ceil_log2};
use super::partition::chunk_range;
use super::schedule::{Action, Chunks, Schedule};
use super::{binomial, direct, ring};
use std::collections::BTreeSet;

/// Every rank ends with the sum of all buffers; `hosts[r]` identifies the host of rank r.
pub fn all_reduce(rank: usize, hosts: &[usize]) -> Schedule {
    let view = HostView::new(rank, hosts, 0);
    let chunks = view.leaders.len();
    let reduce = view.within(binomial::reduce, chunks);
    let between = view.between(ring::all_reduce);
    reduce.then(between).then(view.within(binomial::broadcast, chunks))
}

/// Every rank ends with the root's buffer.
pub fn broadcast(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    let view = HostView::new(rank, hosts, root);
    let between = view.between(|host, count| binomial::broadcast(host, count, view.root_host));
    between.then(view.within(binomial::broadcast, 1))
}

/// The root ends with the sum of all buffers.
pub fn reduce(rank: usize, hosts: &[usize], root: usize) -> Schedule {
    broadcast(rank, hosts, root).reversed(Action::Reduce)
}

/// Rank r begins with chunk r and ends with all chunks.
pub fn all_gather(rank: usize, hosts: &[usize]) -> Schedule {
    let (view, world) = (HostView::new(rank, hosts, 0), hosts.len());
    let of_host = |host: usize| runs(&members_of(hosts, view.leaders[host]));
    let between = view.between(|host, count| ring::all_gather(host, count).map_chunks(world, of_host));
    view.own_chunks(direct::gather, world).then(between).then(view.within(binomial::broadcast, world))
}

/// Rank r ends with chunk r of the sum; its other chunks contain partial sums.
pub fn reduce_scatter(rank: usize, hosts: &[usize]) -> Schedule {
    let (view, world) = (HostView::new(rank, hosts, 0), hosts.len());
    let of_host = |host: usize| runs(&members_of(hosts, view.leaders[host]));
    let between = view.between(|host, count| ring::reduce_scatter(host, count).map_chunks(world, of_host));
    view.within(binomial::reduce, world).then(between).then(view.own_chunks(direct::scatter, world))
}

/// The cost of [`all_reduce`] for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let view = HostView::new(rank, hosts, 0);
    let within = binomial::all_reduce_cost(view.position, view.members.len(), length, width);
    let between = view.if_leader(|host, count| ring::all_reduce_cost(host, count, length, width));
    let steps = 2 * view.depth(hosts) + 2 * (view.leaders.len() - 1);
    Cost { steps: steps as u64, ..within + between }
}

/// The cost of [`broadcast`].
pub fn broadcast_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    let view = HostView::new(rank, hosts, root);
    let within = binomial::broadcast_cost(view.position, view.members.len(), 0, length, width);
    let between =
        view.if_leader(|host, count| binomial::broadcast_cost(host, count, view.root_host, length, width));
    // A host starts when its leader has sent to the other leaders.
    let end = |(host, leader): (usize, &usize)| {
        let leader_end = binomial::broadcast_end(host, view.leaders.len(), view.root_host);
        leader_end + ceil_log2(members_of(hosts, *leader).len())
    };
    let steps = view.leaders.iter().enumerate().map(end).max().unwrap_or(0);
    Cost { steps: steps as u64, ..within + between }
}

/// The cost of [`reduce`].
pub fn reduce_cost(rank: usize, hosts: &[usize], root: usize, length: usize, width: usize) -> Cost {
    broadcast_cost(rank, hosts, root, length, width).reversed(width)
}

/// The cost of [`all_gather`]: the gather to the leader, the ring of the leaders, and the broadcast down the tree.
pub fn all_gather_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let view = HostView::new(rank, hosts, 0);
    let blocks = view.blocks(hosts, length);
    let (sent, gathered) = view.own_elements(hosts, rank, length);
    let ring = view.if_leader(|host, count| {
        let all_but = |host: usize| length - blocks[host % count];
        Cost::of(0, all_but(host + 1), all_but(host), 0, width)
    });
    let broadcast = binomial::broadcast_cost(view.position, view.members.len(), 0, length, width);
    let steps = view.depth(hosts).min(1) + view.leaders.len() - 1 + view.depth(hosts);
    Cost { steps: steps as u64, ..Cost::of(0, sent, gathered, 0, width) + ring + broadcast }
}

/// The cost of [`reduce_scatter`]: the reduction up the tree, the ring of the leaders, and the scatter to the members.
pub fn reduce_scatter_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let view = HostView::new(rank, hosts, 0);
    let blocks = view.blocks(hosts, length);
    let (received, scattered) = view.own_elements(hosts, rank, length);
    let ring = view.if_leader(|host, count| {
        let all_but = |host: usize| length - blocks[host % count];
        let passed = all_but(host + count - 1);
        Cost::of(0, all_but(host), passed, passed, width)
    });
    let reduce = binomial::reduce_cost(view.position, view.members.len(), 0, length, width);
    let steps = view.depth(hosts).min(1) + view.leaders.len() - 1 + view.depth(hosts);
    Cost { steps: steps as u64, ..Cost::of(0, scattered, received, 0, width) + ring + reduce }
}

/// All ranks ordered by host, beginning with rank `first` and its host.
pub(super) fn host_by_host(hosts: &[usize], first: usize) -> Vec<usize> {
    let mut leaders = leaders(hosts, first);
    let first_host = leaders.iter().position(|&leader| leader == first).unwrap_or(0);
    leaders.rotate_left(first_host);
    leaders.iter().flat_map(|leader| members_of(hosts, *leader)).collect()
}

/// The leader of every host: its first rank, or the root.
fn leaders(hosts: &[usize], root: usize) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let lead = |first: usize| if hosts[first] == hosts[root] { root } else { first };
    (0..hosts.len()).filter(|rank| seen.insert(hosts[*rank])).map(lead).collect()
}

/// The ranks of a leader's host, beginning with the leader, in cyclic order.
fn members_of(hosts: &[usize], leader: usize) -> Vec<usize> {
    let from_leader = (leader..hosts.len()).chain(0..leader);
    from_leader.filter(|&other| hosts[other] == hosts[leader]).collect()
}

/// Merges consecutive chunks.
fn runs(chunks: &[usize]) -> Vec<Chunks> {
    let mut runs: Vec<Chunks> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut().filter(|run| run.indices().end == chunk) {
            Some(run) => run.count += 1,
            None => runs.push(Chunks::one(chunk)),
        }
    }
    runs
}

/// A rank's position in the hierarchy.
struct HostView {
    /// The ranks of its host, the leader first.
    members: Vec<usize>,
    /// Index in `members`.
    position: usize,
    /// The leader of every host.
    leaders: Vec<usize>,
    /// Index of the rank's own leader, and of the root, in `leaders`.
    host: usize,
    root_host: usize,
}

impl HostView {
    fn new(rank: usize, hosts: &[usize], root: usize) -> HostView {
        let leaders = leaders(hosts, root);
        let find = |of: usize| leaders.iter().position(|&leader| hosts[leader] == hosts[of]).unwrap_or(0);
        let (host, root_host) = (find(rank), find(root));
        let members = members_of(hosts, leaders[host]);
        let position = members.iter().position(|&member| member == rank).unwrap_or(0);
        HostView { members, position, leaders, host, root_host }
    }

    /// A collective of the members over all `chunks`; its root is the leader.
    fn within(&self, schedule: fn(usize, usize, usize) -> Schedule, chunks: usize) -> Schedule {
        let all = |_| vec![Chunks::all(chunks)];
        schedule(self.position, self.members.len(), 0).map_ranks(&self.members).map_chunks(chunks, all)
    }

    /// A collective of the members over the chunk of each; its root is the leader.
    fn own_chunks(&self, schedule: fn(usize, usize, usize) -> Schedule, chunks: usize) -> Schedule {
        let own = |member: usize| vec![Chunks::one(self.members[member])];
        schedule(self.position, self.members.len(), 0).map_ranks(&self.members).map_chunks(chunks, own)
    }

    /// The elements that [`HostView::own_chunks`] moves: at a member, and at its leader.
    fn own_elements(&self, hosts: &[usize], rank: usize, length: usize) -> (usize, usize) {
        let own = chunk_range(length, hosts.len(), rank).len();
        if self.position > 0 { (own, 0) } else { (0, self.blocks(hosts, length)[self.host] - own) }
    }

    /// By host: the elements of its members' chunks.
    fn blocks(&self, hosts: &[usize], length: usize) -> Vec<usize> {
        let chunk = |rank: usize| chunk_range(length, hosts.len(), rank).len();
        let block = |leader: &usize| members_of(hosts, *leader).into_iter().map(chunk).sum();
        self.leaders.iter().map(block).collect()
    }

    /// A collective of the leaders; empty for other ranks.
    fn between(&self, schedule: impl FnOnce(usize, usize) -> Schedule) -> Schedule {
        self.if_leader(|host, count| schedule(host, count).map_ranks(&self.leaders))
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
    use super::super::algorithm::RankView;
    use super::super::kind::Collective;
    use super::*;

    /// The chunks that a rank sends to other hosts, as a fraction of the buffer.
    fn sent_to_other_hosts(schedule: &Schedule, rank: usize, hosts: &[usize]) -> f64 {
        let sends = schedule.steps.iter().flat_map(|step| &step.sends);
        let chunks = sends.filter(|send| hosts[send.to] != hosts[rank]).map(|send| send.chunks.count);
        chunks.sum::<usize>() as f64 / schedule.chunks as f64
    }

    #[test]
    fn traffic_between_hosts_does_not_depend_on_ranks_per_host() {
        let hosts: Vec<usize> = (0..16).map(|rank| rank / 4).collect();
        let sent: Vec<f64> =
            (0..16).map(|rank| sent_to_other_hosts(&all_reduce(rank, &hosts), rank, &hosts)).collect();
        assert_eq!(sent[..5], [1.5, 0.0, 0.0, 0.0, 1.5]);
    }

    #[test]
    fn default_algorithms_enter_every_host_once() {
        // Round-robin, so that consecutive ranks are on different hosts; the root is not the first rank of its host.
        let hosts: Vec<usize> = (0..12).map(|rank| rank % 3).collect();
        for bytes in [100, 100 << 20] {
            for (collective, buffers) in [
                (Collective::Broadcast { root: 4 }, 2.0),
                (Collective::Reduce { root: 4 }, 2.0),
                (Collective::AllGather, 2.0),
                (Collective::ReduceScatter, 2.0),
            ] {
                let schedule = |rank| collective.schedule(rank, &hosts, bytes);
                let all: f64 = (0..12).map(|rank| sent_to_other_hosts(&schedule(rank), rank, &hosts)).sum();
                assert!((all - buffers).abs() < 1e-9, "{collective:?} of {bytes} bytes: {all} buffers");
            }
        }
    }

    #[test]
    fn a_chain_is_ordered_by_host_from_its_root() {
        assert_eq!(host_by_host(&[0, 1, 0, 2, 1], 4), [4, 1, 3, 0, 2]);
        assert_eq!(host_by_host(&[0, 1, 2, 3], 2), [2, 3, 0, 1]);
        assert_eq!(host_by_host(&[7; 4], 2), [2, 3, 0, 1]);
        let view = RankView { rank: 1, hosts: &[0, 1, 0, 2, 1], root: 4 };
        assert_eq!(
            super::ring::broadcast(view.rank(), view.hosts(), view.root()).steps[0].receives[0].from,
            4
        );
    }
}
