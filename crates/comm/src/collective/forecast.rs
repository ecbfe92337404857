//! What an all-reduce will take among ranks on several hosts, roughly: to choose between a flat algorithm and one that
//! first adds up within each host.
//!
//! A model, not a measurement: links of 1 Gbit/s between hosts, each shared by all ranks of its host, memory within.
//! Where the links are much faster, up to some 6 Gbit/s, adding up within hosts still pays; beyond, the trees through
//! memory cost more than they save, and a job names `ring` or lets itself be tuned.

use super::algorithm::Algorithm;
use super::schedule::ceil_log2;

/// Seconds of a step, and of a byte, between hosts and within one.
const NETWORK: (f64, f64) = (50e-6, 1.0 / 0.125e9);
const MEMORY: (f64, f64) = (5e-6, 1.0 / 4e9);

/// Who is where, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    ranks: usize,
    hosts: usize,
    /// Most ranks of a host, and fewest.
    most: usize,
    fewest: usize,
    /// How often a ring in the order of ranks leaves a host, at most.
    crossings: usize,
}

impl Spread {
    /// `hosts[r]` says on which host rank r is, by any number.
    pub fn of(hosts: &[usize]) -> Spread {
        let mut each: Vec<(usize, usize, usize)> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            let leaves = usize::from(hosts[(rank + 1) % hosts.len()] != *host);
            match each.iter_mut().find(|(known, ..)| known == host) {
                Some((_, ranks, crossings)) => (*ranks, *crossings) = (*ranks + 1, *crossings + leaves),
                None => each.push((*host, 1, leaves)),
            }
        }
        let ranks_of = || each.iter().map(|(_, ranks, _)| *ranks);
        Spread {
            ranks: hosts.len(),
            hosts: each.len(),
            most: ranks_of().max().unwrap_or(0),
            fewest: ranks_of().min().unwrap_or(0),
            crossings: each.iter().map(|(.., crossings)| *crossings).max().unwrap_or(0),
        }
    }

    /// Whether there are several hosts with several ranks each: else there is nothing to choose.
    pub fn is_mixed(&self) -> bool {
        self.hosts > 1 && self.fewest > 1
    }

    /// Seconds of an all-reduce of so many bytes.
    pub fn seconds(&self, algorithm: Algorithm, bytes: usize) -> f64 {
        let (n, h, m) = (self.ranks as f64, self.hosts as f64, self.most as f64);
        let (rounds, inner) = (ceil_log2(self.ranks) as f64, ceil_log2(self.most) as f64);
        let outer = ceil_log2(self.hosts) as f64;
        // Steps over the network, and how many buffers leave the busiest host.
        let (steps, leaving) = match algorithm {
            Algorithm::Ring => (2.0 * (n - 1.0), self.crossings as f64 * 2.0 * (n - 1.0) / n),
            Algorithm::BinomialTree => (2.0 * outer, 2.0 * outer),
            Algorithm::RecursiveDoubling => (rounds, m * outer),
            Algorithm::HalvingDoubling => (2.0 * rounds, 2.0 * m * (n - m) / n),
            Algorithm::Direct => (2.0, 2.0 * m * (n - m) / n),
            Algorithm::Hierarchical => (2.0 * (h - 1.0), 2.0 * (h - 1.0) / h),
        };
        let trees = if algorithm == Algorithm::Hierarchical { 2.0 * inner } else { 0.0 };
        let time =
            |(step, byte): (f64, f64), steps: f64, buffers: f64| steps * step + buffers * byte * bytes as f64;
        time(NETWORK, steps, leaving) + time(MEMORY, trees, trees)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_counts_hosts_and_crossings() {
        let blocks = Spread::of(&[0, 0, 0, 1, 1, 1]);
        assert_eq!(blocks, Spread { ranks: 6, hosts: 2, most: 3, fewest: 3, crossings: 1 });
        let dealt = Spread::of(&[0, 1, 0, 1, 0, 1]);
        assert_eq!((dealt.crossings, dealt.is_mixed()), (3, true));
        assert!(!Spread::of(&[0; 4]).is_mixed() && !Spread::of(&[0, 1, 2]).is_mixed());
        assert!(!Spread::of(&[0, 0, 1]).is_mixed());
    }

    #[test]
    fn adding_up_within_hosts_saves_what_crosses_between_them() {
        let blocks = Spread::of(&[0, 0, 0, 0, 1, 1, 1, 1]);
        let faster = |bytes: usize, flat: Algorithm| {
            blocks.seconds(Algorithm::Hierarchical, bytes) < blocks.seconds(flat, bytes)
        };
        assert!(faster(100 << 20, Algorithm::Ring) && faster(1 << 20, Algorithm::HalvingDoubling));
    }
}
