//! Local rows: the work of workers at their own speed.
//!
//! Each worker walks its share of the training rows pass by pass (`walk.rs`), `global_batch / workers` rows at a time. An
//! epoch ends when all workers together have computed as many rows as the set holds, so a fast one computes more of them.
//! Steps of the job follow the rows: a step per global batch, the last of an epoch may be short.
//!
//! What all workers know of each other is as of the last agreement: a meeting, or a change of the group.

use super::walk::{RowCounts, Segment, Walk, Walks};
use super::{PlannedShare, Step};
use crate::audit::ConsumedRows;
use crate::split::Share;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thalweg_core::report::Audit;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_data::{Rows, Sampler, even_range};

/// The rows of one worker.
pub struct LocalRows {
    sampler: Sampler,
    agreed: Agreement,
    own: Walk,
    index: usize,
    /// The pass that walks begin with.
    first_pass: u64,
    batch: usize,
    total: u64,
    /// A segment of the pass of the rows planned last, and the rows of that pass in order.
    pass: Option<Segment>,
    order: Vec<u64>,
    /// Rows of that pass that have arrived at the model.
    seen: ConsumedRows,
    planned: Vec<u64>,
    /// Of this worker's parameters: updates since their slots were zero.
    updates: u64,
    /// By member: how many of its rows, from its first on, are in this worker's model.
    received: BTreeMap<usize, u64>,
}

/// How many rows a worker has computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowsComputed {
    pub count: u64,
    /// The agreement by which it became a worker.
    pub since: u64,
}

/// What all workers know.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Agreement {
    /// Counted from 1; 0 is none. A rank that was interrupted while they agreed has the one before.
    number: u64,
    walks: Walks,
    /// What all came to when the last epoch was closed.
    closed: RowCounts,
}

/// What a member knows before a change of the group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Standing {
    agreement: u64,
    /// None on new members.
    walk: Option<Walk>,
    updates: u64,
    received: BTreeMap<usize, u64>,
}

/// The step that a job is at after so many rows, with `batch` rows in each step of an epoch of `total` rows.
pub(super) fn step_at(rows: u64, (total, batch): (u64, u64)) -> u64 {
    let steps = total.div_ceil(batch);
    rows / total * steps + (rows % total / batch).min(steps - 1)
}

/// The rows after which a job is at that step.
pub(super) fn rows_at(step: u64, (total, batch): (u64, u64)) -> u64 {
    let steps = total.div_ceil(batch);
    (step / steps * total).saturating_add((step % steps * batch).min(total))
}

impl LocalRows {
    /// After `next` steps of the job, and `updates` of the parameters.
    pub(crate) fn new(job: &JobSpec, training: &Rows, next: u64, updates: u64) -> LocalRows {
        let (batch, total) = (job.train.global_batch.max(1), training.len().max(1));
        let rows = rows_at(next, (total, batch as u64));
        let gone = RowCounts { rows, ..RowCounts::default() };
        LocalRows {
            sampler: Sampler::new(training, job.train.seed, batch),
            agreed: Agreement { number: 0, walks: Walks { gone, ..Walks::default() }, closed: gone },
            own: Walk::new(0, 0, 0),
            index: 0,
            first_pass: rows / total,
            batch,
            total,
            pass: None,
            order: Vec::new(),
            seen: ConsumedRows::new(training.source_len()),
            planned: Vec::new(),
            updates,
            received: BTreeMap::new(),
        }
    }

    fn sizes(&self) -> (u64, u64) {
        (self.total, self.batch as u64)
    }

    /// Rows of all workers at the last agreement.
    pub(crate) fn agreed_rows(&self) -> u64 {
        self.agreed.walks.counts().rows
    }

    /// Rows of this worker since.
    pub(crate) fn rows_since(&self) -> u64 {
        let agreed = self.agreed.walks.workers.get(self.index).map_or(0, |walk| walk.counts.rows);
        self.own.counts.rows.saturating_sub(agreed)
    }

    /// Whether the job is at that step by the rows of this worker alone, whatever the others have done.
    pub(crate) fn reaches(&self, step: u64) -> bool {
        self.agreed_rows() + self.rows_since() >= self.rows_at(step)
    }

    /// Rows of this worker since it became a member.
    pub fn own_rows(&self) -> RowsComputed {
        RowsComputed { count: self.own.counts.rows, since: self.own.since }
    }

    pub fn workers(&self) -> usize {
        self.agreed.walks.workers.len()
    }

    /// Training rows: those of an epoch.
    pub(crate) fn rows_per_epoch(&self) -> u64 {
        self.total
    }

    /// Updates of this worker's parameters since their slots were zero.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The step that the job is at, if all workers have computed `known` rows at least.
    pub(crate) fn step(&self, known: u64) -> u64 {
        step_at(known.max(self.agreed_rows() + self.rows_since()), self.sizes())
    }

    /// The rows after which the job is at that step.
    pub(crate) fn rows_at(&self, step: u64) -> u64 {
        rows_at(step, self.sizes())
    }

    /// This worker's model has the effect of these rows of that member.
    pub fn note_received(&mut self, member: usize, rows: RowsComputed) {
        let is_meant = |walk: &Walk| walk.worker == member && walk.since == rows.since;
        // Another worker may have joined with the id of a lost one.
        if self.agreed.walks.workers.iter().any(is_meant) {
            let known = self.received.entry(member).or_default();
            *known = rows.count.max(*known);
        }
    }

    /// The next rows of this worker, in that step of the job.
    pub(crate) fn plan(&mut self, step: u64) -> PlannedShare<'_> {
        let batch = even_range(self.batch, self.index, self.workers()).len().max(1) as u64;
        let segment = self.own.current();
        let (epoch, first) = (segment.pass, segment.rest.start);
        let range = first as usize..segment.rest.end.min(first + batch) as usize;
        if !self.pass.as_ref().is_some_and(|pass| pass.is_of_pass(segment)) {
            self.order = self.sampler.pass(segment.share.clone(), segment.worker as u64, segment.pass);
            self.seen.clear();
            self.pass = Some(segment.clone());
        }
        self.planned.clear();
        self.planned.extend_from_slice(&self.order[range]);
        let rows = 0..self.planned.len();
        PlannedShare {
            step: Step { number: step, epoch, index: 0 },
            divisor: rows.len().max(1) as f32,
            of_step: rows.len(),
            rows: &self.planned,
            share: Share { rows, leaves: 0..0 },
            leaves: None,
            slots: 1,
            held: 1,
        }
    }

    /// The rows planned last have had their effect; `consumed` is what arrived at the model. Returns their number.
    pub(crate) fn commit(&mut self, consumed: &[u64]) -> u64 {
        let planned = std::mem::take(&mut self.planned);
        let counts = &mut self.own.counts;
        let mut due: BTreeSet<u64> = planned.iter().copied().collect();
        for row in consumed {
            let is_repeated = !due.remove(row) || self.seen.contains(*row);
            counts.repeated += u64::from(is_repeated);
        }
        counts.missed += due.len() as u64;
        self.seen.enter(consumed);
        self.own.advance(planned.len() as u64);
        self.updates += 1;
        self.planned = planned;
        self.planned.len() as u64
    }

    /// What the others must know of this worker at a meeting.
    pub(crate) fn walk(&self) -> &Walk {
        &self.own
    }

    /// All workers have met, with these walks in the order of ranks.
    pub(crate) fn agree(&mut self, walks: Vec<Walk>) {
        self.agreed.number += 1;
        self.agreed.walks.workers = walks;
    }

    /// What the others must know of this worker before a change of the group. A new member has no walk.
    pub(crate) fn standing(&self) -> Standing {
        let walk = (self.agreed.number > 0).then(|| self.own.clone());
        let agreement = self.agreed.number;
        Standing { agreement, walk, updates: self.updates, received: self.received.clone() }
    }

    /// The rank whose agreement all go on from: `source`, unless others have agreed since.
    pub(crate) fn newest(standings: &[Standing], source: usize) -> usize {
        let newest = standings.iter().map(|standing| standing.agreement).max();
        let mut ranks = std::iter::once(source).chain(0..standings.len());
        ranks.find(|rank| standings.get(*rank).map(|of| of.agreement) == newest).unwrap_or(0)
    }

    pub(crate) fn agreement(&self) -> &Agreement {
        &self.agreed
    }

    /// The group has these members now, with their standings, and goes on from that agreement. This worker has that
    /// index; a new one has taken its state over from the member with the index `giver`, if there is one.
    pub(crate) fn regroup(
        &mut self,
        agreement: Agreement,
        standings: &[Standing],
        members: &[usize],
        (index, giver): (usize, Option<usize>),
    ) -> Result<()> {
        let mut agreed = agreement;
        let is_first = agreed.number == 0;
        // Who has the agreement may have gone on from it. Who was interrupted while they agreed has not.
        for (member, standing) in members.iter().zip(standings) {
            let known = agreed.walks.workers.iter_mut().find(|walk| walk.worker == *member);
            if let (Some(known), Some(walk)) = (known, &standing.walk)
                && standing.agreement == agreed.number
            {
                known.clone_from(walk);
            }
        }
        let has_walk = |member: usize| {
            let index = members.iter().position(|other| *other == member);
            index.is_some_and(|index| standings[index].walk.is_some())
        };
        let received = |member: usize| {
            let of = |standing: &Standing| standing.received.get(&member).copied().unwrap_or(0);
            standings.iter().map(of).max().unwrap_or(0)
        };
        let epoch = agreed.walks.counts().rows / self.total;
        let first_pass = if is_first { self.first_pass } else { epoch };
        agreed.number += 1;
        agreed.walks.regroup(self.total, members, has_walk, received, (agreed.number, first_pass));
        if let Some(standing) = giver.and_then(|giver| standings.get(giver)) {
            self.updates = standing.updates;
        }
        self.received.retain(|member, _| has_walk(*member));
        let own = agreed.walks.workers.get(index).cloned();
        self.own = own.ok_or_else(|| Error::internal("a worker without a share of the rows"))?;
        (self.agreed, self.index) = (agreed, index);
        // What was planned may be of another pass.
        self.planned.clear();
        Ok(())
    }

    /// The audit of the passes in the epoch that ends here: every row that came up in one must have been computed once.
    pub(crate) fn audit(&self, epoch: u64) -> Audit {
        let RowCounts { rows, missed, repeated, at_risk } = self.since_closed();
        let (once, at_risk) = (rows - missed, Some(at_risk));
        Audit { epoch, expected: rows, once, missed, repeated, at_risk, ..Audit::default() }
    }

    fn since_closed(&self) -> RowCounts {
        self.agreed.walks.counts().since(self.agreed.closed)
    }

    /// The epoch is closed.
    pub(crate) fn close_epoch(&mut self) {
        self.agreed.closed = self.agreed.walks.counts();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::batch::Targets;
    use thalweg_data::Data;

    fn compute(worker: &mut LocalRows, batches: usize) {
        for _ in 0..batches {
            let rows = worker.plan(0).rows.to_vec();
            assert_eq!(worker.commit(&rows), 2);
        }
    }

    /// One of two workers has seen that all have met and has gone on; the other was interrupted before.
    #[test]
    fn rows_after_a_meeting_that_a_worker_did_not_complete_are_not_computed_again() {
        let mut job = JobSpec::default();
        job.train.global_batch = 4;
        let data = Data::in_memory(1, vec![0.0; 20], Targets::Classes(vec![0; 20]), 0.0, 1).unwrap();
        let mut workers = [0, 1].map(|_| LocalRows::new(&job, &data.training, 0, 0));
        let change_group = |workers: &mut [LocalRows; 2]| {
            let standings: Vec<Standing> = workers.iter().map(LocalRows::standing).collect();
            let agreement = workers[LocalRows::newest(&standings, 1)].agreement().clone();
            for (index, worker) in workers.iter_mut().enumerate() {
                worker.regroup(agreement.clone(), &standings, &[0, 1], (index, None)).unwrap();
            }
        };
        change_group(&mut workers);
        workers.iter_mut().for_each(|worker| compute(worker, 1));
        let walks: Vec<Walk> = workers.iter().map(|worker| worker.walk().clone()).collect();
        workers[0].agree(walks);
        compute(&mut workers[0], 2);
        change_group(&mut workers);
        assert_eq!([workers[0].agreed_rows(), workers[1].agreed_rows()], [8, 8]);
        compute(&mut workers[0], 2);
        compute(&mut workers[1], 4);
        let walks: Vec<Walk> = workers.iter().map(|worker| worker.walk().clone()).collect();
        workers[0].agree(walks);
        let audit = workers[0].audit(0);
        assert_eq!((audit.expected, audit.once, audit.missed, audit.repeated), (20, 20, 0, 0));
        assert!(workers[0].reaches(5) && !workers[0].reaches(6));
    }
}
