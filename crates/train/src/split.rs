//! Who computes which rows of a step.
//!
//! A function of the step's rows, the workers, and the times that all of them have seen: every worker knows everybody's
//! share without asking. Shares are of rows, or of whole leaves where the result must not depend on them. A group with
//! other members starts from a new split.

use crate::leaves::Leaves;
use crate::speed::Speed;
use std::ops::Range;
use thalweg_cluster::{PartialSums, ReductionTree};
use thalweg_core::JobSpec;
use thalweg_core::spec::strategy;
use thalweg_data::even_range;

/// How steps are divided among workers.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    workers: usize,
    /// The places of those who get nothing.
    idle: Vec<usize>,
    leaves: Option<Leaves>,
    speed: Option<Speed>,
    /// Of the last step: its rows, everybody's pieces, and how they become one sum.
    rows: usize,
    shares: Vec<Range<usize>>,
    brackets: Option<ReductionTree>,
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
    /// What the job asks for, among so many workers of which some are idle.
    pub(crate) fn new(job: &JobSpec, workers: usize, idle: &[usize]) -> Split {
        let active = workers - idle.len();
        let by_speed = job.strategy.split == strategy::Split::Speed && active > 1;
        Split {
            workers,
            idle: idle.to_vec(),
            leaves: job.train.reproducible.then(|| Leaves::of(job.train.global_batch)),
            speed: by_speed.then(|| Speed::unknown(active)),
            rows: 0,
            shares: Vec::new(),
            brackets: None,
        }
    }

    /// The part of a worker in a step of so many rows.
    pub(crate) fn share(&mut self, rows: usize, place: usize) -> Share {
        self.prepare(rows);
        let pieces = self.shares.get(place).cloned().unwrap_or_default();
        match self.leaves {
            Some(leaves) => Share { rows: leaves.rows(&pieces, rows), leaves: pieces },
            None => Share { rows: pieces, leaves: 0..0 },
        }
    }

    /// How steps are cut into leaves, if they are.
    pub(crate) fn leaves(&self) -> Option<Leaves> {
        self.leaves
    }

    /// How the leaves of the last step become one sum, if it has any.
    pub(crate) fn brackets(&self) -> Option<&ReductionTree> {
        self.brackets.as_ref()
    }

    /// How many gradients a rank has in its slots after computing its part of the last step.
    pub(crate) fn held(&self, rank: usize) -> usize {
        let terms =
            |brackets: &ReductionTree| brackets.terms().iter().filter(|term| term.rank == rank).count();
        self.brackets().map_or(1, terms)
    }

    /// The memory for gradients of so many parameters, each with the loss and what else rides along behind it.
    pub(crate) fn slots(&self, parameters: usize, riders: usize) -> PartialSums {
        let length = parameters + riders;
        match self.leaves {
            None => PartialSums::one(length),
            Some(leaves) => PartialSums {
                count: leaves.most_slots(self.active(), self.speed.is_none()),
                length,
                // The loss is summed like the gradient; times and wishes are each rank's own.
                head: parameters + 1,
            },
        }
    }

    /// The last step took every worker so long.
    pub(crate) fn observe(&mut self, milliseconds: &[f32]) {
        let Some(speed) = &mut self.speed else { return };
        let busy = (0..self.shares.len()).filter(|place| !self.idle.contains(place));
        let (pieces, times): (Vec<usize>, Vec<f32>) =
            busy.map(|place| (self.shares[place].len(), milliseconds[place])).unzip();
        if speed.observe(&pieces, &times) {
            self.rows = 0;
        }
    }

    /// How many have something to do.
    fn active(&self) -> usize {
        self.workers - self.idle.len()
    }

    /// Divides a step of so many rows, unless the last one was divided the same way.
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
        let follow = |place: usize| {
            let count = if self.idle.contains(&place) { 0 } else { counts.next().unwrap_or(0) };
            end += count;
            end - count..end
        };
        self.shares = (0..self.workers).map(follow).collect();
        self.brackets = self.leaves.map(|leaves| leaves.brackets(pieces, &self.shares));
        self.rows = rows;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::Job;
    use thalweg_core::spec::JobLayers;

    fn split(workers: usize, settings: &[&str]) -> Split {
        split_beside(workers, &[], settings)
    }

    fn split_beside(workers: usize, idle: &[usize], settings: &[&str]) -> Split {
        let mut layers = JobLayers::default();
        settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
        Split::new(&Job::resolve(layers).unwrap().spec, workers, idle)
    }

    fn rows(split: &mut Split, rows: usize) -> Vec<usize> {
        let shares: Vec<_> = (0..split.workers).map(|place| split.share(rows, place).rows).collect();
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
