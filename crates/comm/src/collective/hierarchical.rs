//! Hierarchical: first within each host, then between hosts, then within each host again.
//!
//! The first rank of a host is its leader. The others' sums climb a tree to it, the leaders add up among themselves on a
//! ring, and the result descends the same trees. What crosses the network between hosts is one buffer's ring over the
//! hosts, however many ranks they have: for many ranks per host, and links between hosts slower than within.

use super::schedule::{Cost, Schedule};
use super::{binomial, ring};

/// Every rank ends with the sum of all buffers; `hosts[r]` says on which host rank r is, by any number.
pub fn all_reduce(rank: usize, hosts: &[usize]) -> Schedule {
    let Place { members, leaders, position } = Place::new(rank, hosts);
    let chunks = leaders.len();
    let climb = binomial::reduce(position, members.len(), 0).among(&members, chunks);
    let descend = binomial::broadcast(position, members.len(), 0).among(&members, chunks);
    match leaders.iter().position(|&leader| leader == rank) {
        Some(host) => climb.then(ring::all_reduce(host, chunks).among(&leaders, chunks)).then(descend),
        None => climb.then(descend),
    }
}

/// What [`all_reduce`] costs a rank for `length` elements of `width` bytes.
pub fn all_reduce_cost(rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
    let Place { members, leaders, position } = Place::new(rank, hosts);
    let within = binomial::all_reduce_cost(position, members.len(), length, width);
    match leaders.iter().position(|&leader| leader == rank) {
        Some(host) => within + ring::all_reduce_cost(host, leaders.len(), length, width),
        None => within,
    }
}

/// Where a rank stands.
struct Place {
    /// The ranks of its host, the leader first.
    members: Vec<usize>,
    /// The first rank of every host.
    leaders: Vec<usize>,
    /// Its place among the members.
    position: usize,
}

impl Place {
    fn new(rank: usize, hosts: &[usize]) -> Place {
        let is_first = |of: &usize| hosts[..*of].iter().all(|host| *host != hosts[*of]);
        let members: Vec<usize> = (0..hosts.len()).filter(|&other| hosts[other] == hosts[rank]).collect();
        let position = members.iter().position(|&member| member == rank).unwrap_or(0);
        Place { members, leaders: (0..hosts.len()).filter(is_first).collect(), position }
    }
}

#[cfg(test)]
mod tests {
    use super::super::checker::prove;
    use super::super::goal::Goal;
    use super::*;

    /// Some ways to put ranks on hosts: all on one, each on its own, in blocks, dealt out, ragged.
    const PARTITIONS: [fn(usize) -> usize; 5] =
        [|_| 0, |rank| rank, |rank| rank / 4, |rank| rank % 3, |rank| rank.isqrt()];

    #[test]
    fn proven_and_costs_what_it_states() {
        for host in PARTITIONS {
            let hosts = |world: usize| (0..world).map(host).collect::<Vec<_>>();
            prove(
                Goal::AllReduce,
                |rank, world| all_reduce(rank, &hosts(world)),
                |rank, world, length, width| all_reduce_cost(rank, &hosts(world), length, width),
            );
        }
    }

    #[test]
    fn between_hosts_goes_one_buffers_ring_whatever_the_ranks_per_host() {
        let hosts: Vec<usize> = (0..16).map(|rank| rank / 4).collect();
        let abroad = |rank: usize| {
            let schedule = all_reduce(rank, &hosts);
            let steps = schedule.steps.iter().flat_map(|step| &step.sends);
            let chunks = steps.filter(|send| hosts[send.to] != hosts[rank]).map(|send| send.chunks.count);
            chunks.sum::<usize>()
        };
        // Chunks are quarters of the buffer: leaders send 2 (4-1) of them to other hosts, nobody else any.
        assert_eq!((0..16).map(abroad).collect::<Vec<_>>()[..5], [6, 0, 0, 0, 6]);
    }
}
