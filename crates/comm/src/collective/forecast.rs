//! What an all-reduce will take among ranks on several hosts, roughly: to choose between a flat algorithm and one that
//! first adds up within each host.
//!
//! What crosses between hosts is counted in the schedules themselves. What that takes is a model, not a measurement: links
//! of 1 Gbit/s between hosts, each shared by all ranks of its host, memory within. Where the links are much faster, up to
//! some 6 Gbit/s, adding up within hosts still pays; beyond, the trees through memory cost more than they save, and a job
//! names `ring` or lets itself be tuned.

use super::algorithm::Algorithm;
use std::collections::{BTreeMap, BTreeSet};

/// Seconds of a step, and of a byte, between hosts and within one.
const NETWORK: (f64, f64) = (50e-6, 1.0 / 0.125e9);
const MEMORY: (f64, f64) = (5e-6, 1.0 / 4e9);

/// Whether there are several hosts, and several ranks on one of them.
pub fn is_mixed(hosts: &[usize]) -> bool {
    let different = BTreeSet::from_iter(hosts).len();
    different > 1 && different < hosts.len()
}

/// What an all-reduce asks of links and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The longest chain of steps.
    steps: u64,
    /// Most steps of a rank in which it talks to another host.
    crossing: usize,
    /// Buffers that leave the busiest host.
    leaving: f64,
    /// Buffers that the busiest rank moves within its host.
    within: f64,
}

impl Load {
    /// Counted in the schedules of all ranks; `hosts[r]` says on which host rank r is, by any number.
    pub fn of(algorithm: Algorithm, hosts: &[usize]) -> Load {
        let mut load = Load { steps: algorithm.all_reduce_cost(0, hosts, 0, 1).steps, ..Load::default() };
        let mut leaving: BTreeMap<usize, f64> = BTreeMap::new();
        for (rank, host) in hosts.iter().enumerate() {
            let schedule = algorithm.all_reduce(rank, hosts);
            let abroad = |peer: usize| hosts[peer] != *host;
            let (mut crossing, mut within) = (0, 0);
            for step in &schedule.steps {
                let sends = step.sends.iter().map(|send| (send.to, send.chunks.count));
                let receives = step.receives.iter().map(|receive| (receive.from, receive.chunks.count));
                let outward = sends.clone().filter(|(to, _)| abroad(*to)).map(|(_, chunks)| chunks);
                *leaving.entry(*host).or_default() += outward.sum::<usize>() as f64 / schedule.chunks as f64;
                let all = || sends.clone().chain(receives.clone());
                crossing += usize::from(all().any(|(peer, _)| abroad(peer)));
                within += all().filter(|(peer, _)| !abroad(*peer)).map(|(_, chunks)| chunks).sum::<usize>();
            }
            load.crossing = load.crossing.max(crossing);
            load.within = load.within.max(within as f64 / schedule.chunks as f64);
        }
        load.leaving = leaving.into_values().fold(0.0, f64::max);
        load
    }

    /// Seconds for so many bytes.
    pub fn seconds(&self, bytes: usize) -> f64 {
        let bytes = bytes as f64;
        self.steps as f64 * MEMORY.0
            + self.crossing as f64 * NETWORK.0
            + (self.leaving * NETWORK.1 + self.within * MEMORY.1) * bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: [usize; 8] = [0, 0, 0, 0, 1, 1, 1, 1];
    const DEALT: [usize; 8] = [0, 1, 0, 1, 0, 1, 0, 1];

    #[test]
    fn hosts_are_mixed_if_there_are_several_and_one_has_several_ranks() {
        assert!(is_mixed(&BLOCKS) && is_mixed(&DEALT) && is_mixed(&[0, 1, 1]));
        assert!(!is_mixed(&[0; 4]) && !is_mixed(&[0, 1, 2]) && !is_mixed(&[]));
    }

    #[test]
    fn what_leaves_a_host_depends_on_who_is_there() {
        let leaving = |algorithm, hosts: &[usize]| Load::of(algorithm, hosts).leaving;
        // One buffer climbs and one descends; dealt out, every leaf of the tree is on the other host.
        assert_eq!(leaving(Algorithm::BinomialTree, &BLOCKS), 1.0);
        assert_eq!(leaving(Algorithm::BinomialTree, &DEALT), 4.0);
        assert_eq!((leaving(Algorithm::Ring, &BLOCKS), leaving(Algorithm::Ring, &DEALT)), (1.75, 7.0));
        assert_eq!((leaving(Algorithm::Direct, &BLOCKS), leaving(Algorithm::Direct, &DEALT)), (4.0, 4.0));
        assert_eq!([&BLOCKS, &DEALT].map(|hosts| leaving(Algorithm::Hierarchical, hosts)), [1.0, 1.0]);
    }

    #[test]
    fn adding_up_within_hosts_saves_what_crosses_between_them() {
        let faster = |bytes: usize, flat: Algorithm| {
            let seconds = |algorithm| Load::of(algorithm, &BLOCKS).seconds(bytes);
            seconds(Algorithm::Hierarchical) < seconds(flat)
        };
        assert!(faster(100 << 20, Algorithm::Ring) && faster(1 << 20, Algorithm::HalvingDoubling));
    }
}
