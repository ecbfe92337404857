//! Walks: which rows workers at their own speed compute, in which order, and what becomes of those of a lost worker.
//!
//! ```text
//! share     a range of one order of all rows, the same for the whole job; the members divide it evenly
//! pass      the rows of a share in an order that depends on (seed, worker, pass); a worker makes pass after pass
//! segment   a part of a pass: all of it or, of a lost worker, what is left of it, cut among the others
//! walk      the segments that a worker computes next; then a pass over its share as it is by then
//! ```
//!
//! Pure: the same changes make the same walks on every rank, so that none has to be sent with its rows.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;
use thalweg_data::even_range;

/// Consecutive rows of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    /// Whose pass it is: the member id, and the agreement by which it became a worker. Another worker may have had the id.
    pub(crate) worker: usize,
    pub(crate) since: u64,
    pub(crate) pass: u64,
    pub(crate) share: Range<u64>,
    /// Indices in the order of the pass.
    pub(crate) rest: Range<u64>,
}

/// What the rows of a walk, or of several, came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowCounts {
    /// Rows computed.
    pub(crate) rows: u64,
    /// Of these, rows that did not arrive at the model.
    pub(crate) missed: u64,
    /// Rows of a pass that arrived again, or that are not in it.
    pub(crate) repeated: u64,
    /// Rows that were computed by workers that are lost, and that may have had an effect on their models alone.
    pub(crate) at_risk: u64,
}

/// The way of one worker through the rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Walk {
    /// Its member id.
    pub(crate) worker: usize,
    /// The agreement by which it became a worker.
    pub(crate) since: u64,
    pub(crate) counts: RowCounts,
    segments: VecDeque<Segment>,
    /// Of its next pass.
    pass: u64,
    share: Range<u64>,
}

/// The walks of all workers, and what those that are gone have computed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Walks {
    /// In the order of ranks.
    pub(crate) workers: Vec<Walk>,
    pub(crate) gone: RowCounts,
}

impl Segment {
    /// Whether both are parts of the same pass.
    pub(crate) fn is_of_pass(&self, other: &Segment) -> bool {
        let of = |segment: &Segment| (segment.worker, segment.since, segment.pass, segment.share.clone());
        of(self) == of(other)
    }
}

impl RowCounts {
    pub(crate) fn add(&mut self, other: RowCounts) {
        self.rows += other.rows;
        self.missed += other.missed;
        self.repeated += other.repeated;
        self.at_risk += other.at_risk;
    }

    /// What was added since.
    pub(crate) fn since(self, before: RowCounts) -> RowCounts {
        RowCounts {
            rows: self.rows - before.rows,
            missed: self.missed - before.missed,
            repeated: self.repeated - before.repeated,
            at_risk: self.at_risk - before.at_risk,
        }
    }
}

/// The share of a worker among so many, of `total` rows: of one row at least.
fn share(total: u64, index: usize, workers: usize) -> Range<u64> {
    let share = even_range(total as usize, index, workers);
    match share.is_empty() && total > 0 {
        true => index as u64 % total..index as u64 % total + 1,
        false => share.start as u64..share.end as u64,
    }
}

impl Walk {
    pub(crate) fn new(worker: usize, since: u64, first_pass: u64) -> Walk {
        Walk {
            worker,
            since,
            counts: RowCounts::default(),
            segments: VecDeque::new(),
            pass: first_pass,
            share: 0..0,
        }
    }

    /// The rows that come next.
    pub(crate) fn current(&mut self) -> &Segment {
        if self.segments.is_empty() {
            let Walk { worker, since, pass, share, .. } = self.clone();
            let rest = 0..share.end - share.start;
            self.segments.push_back(Segment { worker, since, pass, share, rest });
            self.pass += 1;
        }
        &self.segments[0]
    }

    /// The next rows are computed: so many of the current segment at most. Whether that ends it.
    pub(crate) fn advance(&mut self, rows: u64) -> bool {
        self.counts.rows += rows;
        let Some(segment) = self.segments.front_mut() else { return false };
        segment.rest.start = (segment.rest.start + rows).min(segment.rest.end);
        let ended = segment.rest.is_empty();
        if ended {
            self.segments.pop_front();
        }
        ended
    }

    /// The same for any number of rows.
    fn skip(&mut self, mut rows: u64) {
        while rows > 0 {
            let segment = self.current();
            let step = rows.min(segment.rest.end - segment.rest.start);
            if step == 0 {
                return;
            }
            self.advance(step);
            rows -= step;
        }
    }
}

impl Walks {
    /// Rows computed by all workers, those that are gone included.
    pub(crate) fn counts(&self) -> RowCounts {
        let mut sum = self.gone;
        self.workers.iter().for_each(|walk| sum.add(walk.counts));
        sum
    }

    /// The group has these members now, of which those `with` a walk keep theirs. Rows of a lost worker count as far as
    /// it is known to have come; what is left of its pass is cut among those that stay. `received` says how many rows of
    /// a worker, from its first on, are in a model that stays. New ones begin by that agreement, with that pass.
    pub(crate) fn regroup(
        &mut self,
        total: u64,
        members: &[usize],
        with: impl Fn(usize) -> bool,
        received: impl Fn(usize) -> u64,
        (agreement, first_pass): (u64, u64),
    ) {
        let stays = |walk: &Walk| members.contains(&walk.worker) && with(walk.worker);
        let (mut staying, lost): (Vec<Walk>, Vec<Walk>) =
            std::mem::take(&mut self.workers).into_iter().partition(stays);
        staying.sort_by_key(|walk| members.iter().position(|member| *member == walk.worker));
        for mut walk in lost {
            let (counted, received) = (walk.counts.rows, received(walk.worker));
            // The others go on behind the rows that are in a model of theirs.
            walk.skip(received.saturating_sub(counted));
            walk.counts.at_risk += counted.saturating_sub(received);
            self.gone.add(walk.counts);
            for segment in walk.segments {
                let (rest, parts) = (segment.rest.clone(), staying.len());
                for (number, heir) in staying.iter_mut().enumerate() {
                    let part = even_range((rest.end - rest.start) as usize, number, parts);
                    let rest = rest.start + part.start as u64..rest.start + part.end as u64;
                    if !rest.is_empty() {
                        heir.segments.push_back(Segment { rest, ..segment.clone() });
                    }
                }
            }
        }
        let (mut staying, count) = (staying.into_iter().peekable(), members.len());
        for (index, member) in members.iter().enumerate() {
            let own = staying.next_if(|walk| walk.worker == *member);
            let mut walk = own.unwrap_or_else(|| Walk::new(*member, agreement, first_pass));
            walk.share = share(total, index, count);
            self.workers.push(walk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const TOTAL: u64 = 100;

    fn walks(workers: usize) -> Walks {
        let mut walks = Walks::default();
        let members: Vec<usize> = (0..workers).collect();
        walks.regroup(TOTAL, &members, |_| false, |_| 0, (1, 0));
        walks
    }

    /// Computes rows of a worker and counts each in its pass.
    fn compute(walks: &mut Walks, index: usize, mut rows: u64, seen: &mut BTreeMap<(usize, u64, u64), u64>) {
        while rows > 0 {
            let walk = &mut walks.workers[index];
            let Segment { worker, pass, share, rest, .. } = walk.current().clone();
            let step = rows.min(rest.end - rest.start);
            for index in rest.start..rest.start + step {
                assert!(index < share.end - share.start);
                *seen.entry((worker, pass, index)).or_default() += 1;
            }
            walk.advance(step);
            rows -= step;
        }
    }

    #[test]
    fn a_lost_worker_leaves_the_rest_of_its_pass_to_the_others() {
        let (mut walks, mut seen) = (walks(4), BTreeMap::new());
        compute(&mut walks, 1, 10, &mut seen);
        compute(&mut walks, 2, 30, &mut seen);
        // Another worker has a model with 15 of its rows: five more than were counted.
        walks.regroup(TOTAL, &[0, 2, 3], |_| true, |_| 15, (2, 0));
        assert_eq!((walks.counts().rows, walks.gone.rows, walks.gone.at_risk), (45, 15, 0));
        let left: Vec<Vec<Range<u64>>> = walks
            .workers
            .iter()
            .map(|walk| {
                walk.segments
                    .iter()
                    .filter(|segment| segment.worker == 1)
                    .map(|segment| segment.rest.clone())
                    .collect()
            })
            .collect();
        let left: Vec<Range<u64>> = left.into_iter().flatten().collect();
        assert_eq!(left, [15..19, 19..22, 22..25]);
        assert_eq!(
            walks.workers.iter().map(|walk| walk.share.clone()).collect::<Vec<_>>(),
            [0..34, 34..67, 67..100]
        );
        // Nothing of the next one is in any other model.
        walks.regroup(TOTAL, &[0, 3, 1], |member| member != 1, |_| 0, (3, 7));
        assert_eq!((walks.gone.rows, walks.gone.at_risk), (45, 30));
        assert_eq!(
            walks.workers[2].current(),
            &Segment { worker: 1, since: 3, pass: 7, share: 67..100, rest: 0..33 }
        );
    }

    /// A new worker takes the id of a lost one, makes the same pass, and is lost, too.
    #[test]
    fn passes_of_workers_with_the_same_id_are_not_the_same() {
        let mut walks = walks(2);
        walks.workers[1].current();
        walks.regroup(TOTAL, &[0], |_| true, |_| 0, (2, 0));
        walks.regroup(TOTAL, &[0, 1], |member| member == 0, |_| 0, (3, 0));
        walks.workers[1].current();
        walks.regroup(TOTAL, &[0], |_| true, |_| 0, (4, 0));
        let left: Vec<&Segment> = walks.workers[0].segments.iter().collect();
        assert_eq!((left.len(), left[0].worker, left[0].pass, left[1].pass), (2, 1, 0, 0));
        assert!(left[0].is_of_pass(left[0]) && !left[0].is_of_pass(left[1]));
    }

    #[test]
    fn more_workers_than_rows_have_a_row_each() {
        assert_eq!((share(3, 0, 2), share(3, 2, 5), share(3, 4, 5)), (0..2, 2..3, 1..2));
    }

    proptest! {
        #[test]
        fn every_row_of_a_pass_is_computed_once_whoever_is_lost(
            steps in prop::collection::vec((0usize..5, 1u64..40), 1..40), losses in prop::collection::vec((0usize..40, 0usize..5), 0..3),
        ) {
            let (mut walks, mut seen) = (walks(5), BTreeMap::new());
            for (number, (index, rows)) in steps.into_iter().enumerate() {
                let index = index % walks.workers.len();
                compute(&mut walks, index, rows, &mut seen);
                for (_, lost) in losses.iter().filter(|(when, _)| *when == number) {
                    let mut members: Vec<usize> = walks.workers.iter().map(|walk| walk.worker).collect();
                    if members.len() > 1 {
                        members.remove(lost % members.len());
                        walks.regroup(TOTAL, &members, |_| true, |_| 0, (2, 0));
                    }
                }
            }
            // The passes that were begun are completed.
            for index in 0..walks.workers.len() {
                let rest = walks.workers[index].segments.iter().map(|segment| segment.rest.end - segment.rest.start);
                let rest = rest.sum();
                compute(&mut walks, index, rest, &mut seen);
            }
            prop_assert!(seen.values().all(|times| *times == 1), "{:?}", seen);
            let mut passes: BTreeMap<(usize, u64), u64> = BTreeMap::new();
            seen.keys().for_each(|(worker, pass, _)| *passes.entry((*worker, *pass)).or_default() += 1);
            // Shares have 20 rows of five workers, more of fewer.
            prop_assert!(passes.values().all(|rows| [20, 25, 33, 34, 50, 100].contains(rows)), "{:?}", passes);
            prop_assert_eq!(walks.counts().rows, seen.len() as u64);
        }
    }
}
