//! The algorithms of an all-reduce by name, and which one is chosen when nobody chooses.

use super::cost::Cost;
use super::forecast::{Load, is_mixed};
use super::schedule::Schedule;
use super::way::{Seat, Way, way};
use super::{binomial, direct, doubling, halving, hierarchical, ring};

/// One row for each algorithm: from them come the type, the list of all, and what each has.
macro_rules! algorithms {
    ($($(#[$doc:meta])* $variant:ident: $way:expr;)*) => {
        /// An algorithm for an all-reduce.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Algorithm {
            $($(#[$doc])* $variant,)*
        }

        const WAYS: &[Way] = &[$($way),*];

        impl Algorithm {
            /// All of them.
            pub const ALL: [Algorithm; WAYS.len()] = [$(Algorithm::$variant),*];
        }
    };
}

// A new one is a row here, a value of `strategy.exchange.algorithm` (crates/core/src/spec/strategy.rs; a test compares the
// two lists), and a line in docs/data-parallel.md.
algorithms! {
    /// [`ring`]
    Ring: way!("ring", ring::all_reduce, ring::all_reduce_cost, rank, world);
    /// [`binomial`]
    BinomialTree: way!("binomial-tree", binomial::all_reduce, binomial::all_reduce_cost, rank, world);
    /// [`doubling`]
    RecursiveDoubling: way!("recursive-doubling", doubling::all_reduce, doubling::all_reduce_cost, rank, world);
    /// [`halving`]
    HalvingDoubling: way!("halving-doubling", halving::all_reduce, halving::all_reduce_cost, rank, world);
    /// [`direct`]
    Direct: way!("direct", direct::all_reduce, direct::all_reduce_cost, rank, world);
    /// [`hierarchical`]
    Hierarchical: way!("hierarchical", hierarchical::all_reduce, hierarchical::all_reduce_cost, rank, hosts);
}

impl Algorithm {
    /// The ways of all of them, in their order.
    pub(super) const WAYS: &'static [Way] = WAYS;

    /// Its row.
    pub(super) fn way(self) -> &'static Way {
        &WAYS[self as usize]
    }

    /// Its name in jobs and reports.
    pub fn name(self) -> &'static str {
        self.way().name
    }

    /// The schedule of `rank`; `hosts[r]` says on which host rank r is, by any number, and as many as there are ranks.
    pub fn all_reduce(self, rank: usize, hosts: &[usize]) -> Schedule {
        (self.way().schedule)(Seat { rank, hosts, root: 0 })
    }

    /// What [`Algorithm::all_reduce`] costs `rank` for `length` elements of `width` bytes.
    pub fn all_reduce_cost(self, rank: usize, hosts: &[usize], length: usize, width: usize) -> Cost {
        (self.way().cost)(Seat { rank, hosts, root: 0 }, length, width)
    }

    /// The choice for so many bytes and ranks, from a fixed table, so that every run and every rank makes the same;
    /// `hosts[r]` says on which host rank r is, by any number. Among hosts with several ranks, adding up within hosts
    /// first is taken where a [model](super::forecast) says that it is clearly faster than the table's choice. That model
    /// goes through the schedules of all ranks: who asks often keeps the answer.
    pub fn choose(bytes: usize, hosts: &[usize]) -> Algorithm {
        let flat = Algorithm::choose_flat(bytes, hosts.len());
        let seconds = |algorithm: Algorithm| Load::of(algorithm, hosts).seconds(bytes);
        match is_mixed(hosts) && seconds(Algorithm::Hierarchical) < 0.8 * seconds(flat) {
            true => Algorithm::Hierarchical,
            false => flat,
        }
    }

    /// The choice among ranks that are all equally far from each other.
    ///
    /// Short buffers pay for steps and messages, long ones for bytes: a ring, whose messages go to one neighbour only, from
    /// chunks on that are worth its many steps. The limits were measured over TCP with more ranks than cores, where a
    /// message costs more than a step.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn ranks_of_one_host_first_where_hosts_have_several() {
        let hosts =
            |world: usize, per_host: usize| (0..world).map(|rank| rank / per_host).collect::<Vec<_>>();
        assert_eq!(Algorithm::choose(100 << 20, &hosts(8, 4)), Algorithm::Hierarchical);
        assert_eq!(Algorithm::choose(100 << 20, &hosts(8, 8)), Algorithm::Ring);
        assert_eq!(Algorithm::choose(100 << 20, &hosts(8, 1)), Algorithm::Ring);
    }
}
