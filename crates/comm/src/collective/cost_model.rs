//! A rough time model of all-reduce over several hosts, to choose between a flat and the hierarchical algorithm.
//!
//! The traffic between hosts is counted from the schedules. Its duration is modelled, not measured: 1 Gbit/s between
//! hosts, shared by all ranks of a host, and memory bandwidth within a host. Up to about 6 Gbit/s the hierarchical algorithm
//! still pays; beyond that its trees through memory cost more than they save, and a job should set `ring` or be tuned.

use super::algorithm::Algorithm;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds per step and per byte, between hosts and within one.
const NETWORK: (f64, f64) = (50e-6, 1.0 / 0.125e9);
const MEMORY: (f64, f64) = (5e-6, 1.0 / 4e9);

/// Whether there are several hosts and at least one has several ranks.
pub fn has_shared_hosts(hosts: &[usize]) -> bool {
    let distinct = BTreeSet::from_iter(hosts).len();
    distinct > 1 && distinct < hosts.len()
}

/// The load of an all-reduce on the links and the memory of the hosts; bytes are in units of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AllReduceLoad {
    steps: u64,
    /// Steps with a peer on another host, of the rank that has most of them.
    remote_steps: usize,
    /// Sent to other hosts by the busiest host.
    remote_bytes: f64,
    /// Sent and received within a host by the busiest rank.
    local_bytes: f64,
}

impl AllReduceLoad {
    /// Counts the schedules of all ranks; `hosts[r]` identifies the host of rank r.
    pub(super) fn of(algorithm: Algorithm, hosts: &[usize]) -> AllReduceLoad {
        let steps = algorithm.all_reduce_cost(0, hosts, 0, 1).steps;
        let mut load = AllReduceLoad { steps, ..AllReduceLoad::default() };
        let mut sent_by_host: BTreeMap<usize, f64> = BTreeMap::new();
        for (rank, host) in hosts.iter().enumerate() {
            let schedule = algorithm.all_reduce(rank, hosts);
            let is_remote = |peer: usize| hosts[peer] != *host;
            let (mut remote_steps, mut local_chunks) = (0, 0);
            for step in &schedule.steps {
                let sends = step.sends.iter().map(|send| (send.to, send.chunks.count));
                let receives = step.receives.iter().map(|receive| (receive.from, receive.chunks.count));
                let remote = sends.clone().filter(|(to, _)| is_remote(*to)).map(|(_, chunks)| chunks);
                *sent_by_host.entry(*host).or_default() +=
                    remote.sum::<usize>() as f64 / schedule.chunks as f64;
                let all = || sends.clone().chain(receives.clone());
                remote_steps += usize::from(all().any(|(peer, _)| is_remote(peer)));
                local_chunks +=
                    all().filter(|(peer, _)| !is_remote(*peer)).map(|(_, chunks)| chunks).sum::<usize>();
            }
            load.remote_steps = load.remote_steps.max(remote_steps);
            load.local_bytes = load.local_bytes.max(local_chunks as f64 / schedule.chunks as f64);
        }
        load.remote_bytes = sent_by_host.into_values().fold(0.0, f64::max);
        load
    }

    /// The predicted duration for a buffer of `bytes`.
    pub(super) fn seconds(&self, bytes: usize) -> f64 {
        let bytes = bytes as f64;
        self.steps as f64 * MEMORY.0
            + self.remote_steps as f64 * NETWORK.0
            + (self.remote_bytes * NETWORK.1 + self.local_bytes * MEMORY.1) * bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: [usize; 8] = [0, 0, 0, 0, 1, 1, 1, 1];
    const ROUND_ROBIN: [usize; 8] = [0, 1, 0, 1, 0, 1, 0, 1];

    #[test]
    fn shared_hosts_need_several_hosts_and_several_ranks_on_one() {
        assert!(has_shared_hosts(&BLOCKS) && has_shared_hosts(&ROUND_ROBIN) && has_shared_hosts(&[0, 1, 1]));
        assert!(!has_shared_hosts(&[0; 4]) && !has_shared_hosts(&[0, 1, 2]) && !has_shared_hosts(&[]));
    }

    #[test]
    fn remote_traffic_depends_on_the_placement_of_ranks() {
        let remote = |algorithm, hosts: &[usize]| AllReduceLoad::of(algorithm, hosts).remote_bytes;
        // One buffer up and one down the tree; round-robin puts every leaf on the other host.
        assert_eq!(remote(Algorithm::BinomialTree, &BLOCKS), 1.0);
        assert_eq!(remote(Algorithm::BinomialTree, &ROUND_ROBIN), 4.0);
        assert_eq!((remote(Algorithm::Ring, &BLOCKS), remote(Algorithm::Ring, &ROUND_ROBIN)), (1.75, 7.0));
        assert_eq!((remote(Algorithm::Direct, &BLOCKS), remote(Algorithm::Direct, &ROUND_ROBIN)), (4.0, 4.0));
        assert_eq!([&BLOCKS, &ROUND_ROBIN].map(|hosts| remote(Algorithm::Hierarchical, hosts)), [1.0, 1.0]);
    }

    #[test]
    fn hierarchical_is_faster_across_hosts() {
        let faster = |bytes: usize, flat: Algorithm| {
            let seconds = |algorithm| AllReduceLoad::of(algorithm, &BLOCKS).seconds(bytes);
            seconds(Algorithm::Hierarchical) < seconds(flat)
        };
        assert!(faster(100 << 20, Algorithm::Ring) && faster(1 << 20, Algorithm::HalvingDoubling));
    }
}
