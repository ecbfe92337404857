//! The division of a step's rows among the workers.
//!
//! A function of the step's rows, the workers, and the times that all of them have seen: every worker knows the share of
//! every other. Shares are of rows, or of whole leaves where the result must not depend on them. A group with other
//! members starts from a new split.

use crate::leaves::Leaves;
use crate::speed::Speed;
use std::ops::Range;
use thalweg_cluster::ReductionTree;
use thalweg_core::JobSpec;
use thalweg_core::spec::strategy;
use thalweg_data::even_range;

/// How steps are divided among workers.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    workers: usize,
    /// Workers without rows: they take the state over first.
    idle: Vec<usize>,
    leaves: Option<Leaves>,
    /// Slots for the partial sums of any worker in any step.
    slots: usize,
    speed: Option<Speed>,
    /// Of the last step: its rows, the pieces of each worker, and the order of the sum over them.
    rows: usize,
    shares: Vec<Range<usize>>,
    tree: Option<ReductionTree>,
}

/// A worker's part of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Its rows among those of the step.
    pub(crate) rows: Range<usize>,
    /// Its leaves, if there are any.
    pub(crate) leaves: Range<usize>,
}

impl Split {
    pub(crate) fn new(job: &JobSpec, workers: usize, idle: &[usize]) -> Split {
        let active = workers - idle.len();
        let by_speed = job.strategy.split == strategy::Split::Speed && active > 1;
        let leaves = job.train.reproducible.then(|| Leaves::of(job.train.global_batch));
        Split {
            workers,
            idle: idle.to_vec(),
            leaves,
            slots: leaves.map_or(1, |leaves| leaves.most_slots(active, !by_speed)),
            speed: by_speed.then(|| Speed::unknown(active)),
            rows: 0,
            shares: Vec::new(),
            tree: None,
        }
    }

    /// The part of a worker in a step of `rows` rows.
    pub(crate) fn share(&mut self, rows: usize, worker: usize) -> Share {
        self.prepare(rows);
        let pieces = self.shares.get(worker).cloned().unwrap_or_default();
        match self.leaves {
            Some(leaves) => Share { rows: leaves.rows(&pieces, rows), leaves: pieces },
            None => Share { rows: pieces, leaves: 0..0 },
        }
    }

    /// How steps are cut into leaves, if they are.
    pub(crate) fn leaves(&self) -> Option<Leaves> {
        self.leaves
    }

    /// The order of the sum over the leaves of the last step, if it has any.
    pub(crate) fn tree(&self) -> Option<&ReductionTree> {
        self.tree.as_ref()
    }

    /// Partial sums that a worker holds after computing its part of the last step.
    pub(crate) fn held(&self, worker: usize) -> usize {
        let terms = |tree: &ReductionTree| tree.terms().iter().filter(|term| term.rank == worker).count();
        self.tree().map_or(1, terms)
    }

    /// Slots for the partial sums of any worker in any step.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    /// Takes the times of all workers in the last step.
    pub(crate) fn observe(&mut self, milliseconds: &[f32]) {
        let Some(speed) = &mut self.speed else { return };
        let busy = (0..self.shares.len()).filter(|worker| !self.idle.contains(worker));
        let (pieces, times): (Vec<usize>, Vec<f32>) =
            busy.map(|worker| (self.shares[worker].len(), milliseconds[worker])).unzip();
        if speed.observe(&pieces, &times) {
            self.rows = 0;
        }
    }

    /// Workers with rows.
    fn active(&self) -> usize {
        self.workers - self.idle.len()
    }

    /// Divides a step of `rows` rows, unless the last one was divided the same way.
    fn prepare(&mut self, rows: usize) {
        if rows == self.rows && !self.shares.is_empty() {
            return;
        }
        let pieces = self.leaves.map_or(rows, |leaves| leaves.filled(rows));
        let active = self.active();
        let counts: Vec<usize> = match &self.speed {
            None => (0..active).map(|number| even_range(pieces, number, active).len()).collect(),
            Some(speed) => speed.shares(pieces),
        };
        let (mut counts, mut end) = (counts.into_iter(), 0);
        let follow = |worker: usize| {
            let count = if self.idle.contains(&worker) { 0 } else { counts.next().unwrap_or(0) };
            end += count;
            end - count..end
        };
        self.shares = (0..self.workers).map(follow).collect();
        self.tree = self.leaves.map(|leaves| leaves.reduction_tree(pieces, &self.shares));
        self.rows = rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::JobLayers;

    fn split(workers: usize, settings: &[&str]) -> Split {
        split_beside(workers, &[], settings)
    }

    fn split_beside(workers: usize, idle: &[usize], settings: &[&str]) -> Split {
        let mut layers = JobLayers::default();
        settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
        Split::new(&crate::registry::resolve(layers).unwrap().spec, workers, idle)
    }

    fn rows(split: &mut Split, rows: usize) -> Vec<usize> {
        let shares: Vec<_> = (0..split.workers).map(|worker| split.share(rows, worker).rows).collect();
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((shares[0].start, shares[split.workers - 1].end), (0, rows));
        shares.iter().map(Range::len).collect()
    }

    #[test]
    fn rows_are_shared_evenly_or_by_whole_leaves() {
        assert_eq!(rows(&mut split(3, &[]), 64), [22, 21, 21]);
        let mut leaves = split(3, &["train.reproducible=true"]);
        assert_eq!(rows(&mut leaves, 64), [24, 24, 16]);
        assert_eq!(rows(&mut leaves, 5), [2, 2, 1], "a short step");
        assert_eq!(rows(&mut split(12, &["train.reproducible=true"]), 64)[7..], [8, 0, 0, 0, 0]);
    }

    #[test]
    fn the_idle_get_nothing_and_the_others_all() {
        for settings in [&[][..], &["strategy.split=speed"], &["train.reproducible=true"]] {
            let mut split = split_beside(4, &[1, 3], settings);
            for _ in 0..20 {
                assert_eq!(rows(&mut split, 64), [32, 0, 32, 0], "{settings:?}");
                split.observe(&[2.0, 0.1, 2.0, 0.1]);
            }
        }
    }

    #[test]
    fn a_slow_worker_gets_fewer_rows_from_some_step_on() {
        for (settings, expected) in [
            (&["strategy.split=speed"][..], [28, 8, 28]),
            (&["strategy.split=speed", "train.reproducible=true"], [32, 8, 24]),
        ] {
            let mut split = split(3, settings);
            for _ in 0..20 {
                let times: Vec<f32> = rows(&mut split, 64)
                    .iter()
                    .zip([1.0, 3.5, 1.0])
                    .map(|(rows, cost)| *rows as f32 * cost)
                    .collect();
                split.observe(&times);
            }
            assert_eq!(rows(&mut split, 64), expected, "{settings:?}");
        }
    }
}
