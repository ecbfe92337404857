//! A change of the group of workers that have models of their own, which may be steps apart (`alignment.rs`).
//!
//! ```text
//! every rank:   what it knows of the generation that ended: its steps, the rows it has computed
//! the source:   of those that know most, the first: decides which rows count and where the job goes on
//!               all go on from there, each with its own model; a new member gets the source's
//! ```
//!
//! A generation may end while its members still enter it. Then some have decided what counts of the one before, and
//! some have not: these had no rows of their own since, so those who have decided know everything.

use super::{Driver, Holds};
use crate::alignment::{Alignment, End, align};
use crate::audit::ConsumedRows;
use crate::split::Split;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::{Error, Result};

/// The generation of which a rank knows rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Begun {
    generation: u32,
    /// Steps committed when it began.
    first: u64,
    /// Member ids by rank.
    members: Vec<usize>,
}

/// What a rank knows of the generation that ended.
#[derive(Serialize, Deserialize)]
struct Report {
    generation: u32,
    /// Epochs closed.
    closed: u64,
    /// Steps committed.
    next: u64,
    /// Rows of the epoch that count for all, and those that it alone knows of.
    consumed: Vec<u8>,
    own: Vec<u8>,
}

/// Where the job goes on.
pub(super) struct Aligned {
    pub(super) next: u64,
    pub(super) consumed: Vec<u8>,
    pub(super) at_risk: u64,
    pub(super) unspread: BTreeMap<usize, u64>,
}

impl Driver<'_> {
    /// This rank knows where the job goes on in this generation.
    pub(super) fn note_begun(&mut self) {
        let rank = &self.cx.rank;
        self.membership.begun =
            Begun { generation: rank.generation(), first: self.cx.work.next(), members: rank.member_ids() };
    }

    /// Decides where the job goes on. Returns the source and, on it, the decision. All ranks call it.
    pub(super) fn align(&mut self, change: &MembershipChange) -> Result<(usize, Option<Aligned>)> {
        let mut mine = Vec::new();
        if self.membership.holds != Holds::Nothing {
            let work = &self.cx.work;
            let report = Report {
                generation: self.membership.begun.generation,
                closed: self.progress.closed,
                next: work.next(),
                consumed: work.consumed().to_bytes(),
                own: work.own().to_bytes(),
            };
            mine = postcard::to_stdvec(&report).map_err(|error| Error::internal(error.to_string()))?;
        }
        let all = self.cx.rank.world().all_gather("steps of all models", &mine)?;
        let read = |bytes: &Vec<u8>| match bytes.is_empty() {
            true => Ok(None),
            false => postcard::from_bytes(bytes).map(Some),
        };
        let reports: std::result::Result<Vec<Option<Report>>, _> = all.iter().map(read).collect();
        let reports = reports.map_err(|error| Error::internal(error.to_string()))?;
        let knows = |report: &Report| (report.generation, report.closed);
        let most = reports.iter().flatten().map(knows).max();
        let source = reports.iter().position(|report| report.as_ref().map(knows) == most);
        let source = source.ok_or_else(|| Error::internal("no rank has the job's state"))?;
        let decided = (source == self.cx.rank.index()).then(|| self.decide(change, &reports)).transpose()?;
        Ok((source, decided))
    }

    /// What counts of the generation that ended, by the reports of its members.
    fn decide(&mut self, change: &MembershipChange, reports: &[Option<Report>]) -> Result<Aligned> {
        let (job, members) = (self.cx.job, self.cx.rank.member_ids());
        let Begun { generation, first, members: before } = self.membership.begun.clone();
        let work = &mut self.cx.work;
        // Nothing counts for the current epoch that was before its start.
        let first = first.max(self.progress.closed * work.steps_per_epoch());
        let end = |id: &usize| match members.iter().position(|member| member == id) {
            Some(rank) => End::Stays(match &reports[rank] {
                Some(report) if report.generation == generation => report.next,
                // It has no steps of this generation.
                _ => first,
            }),
            None if change.left.contains(id) => End::Left,
            None => End::Lost,
        };
        let ends: Vec<End> = before.iter().map(end).collect();
        let steps: Vec<Option<u64>> = ends.iter().map(|end| end.steps(first)).collect();
        let arrived: Vec<Vec<Option<u64>>> = match self.claims.own_models {
            Some(arrived) => (0..before.len()).map(|worker| arrived(job, &before, worker, &steps)).collect(),
            None => return Err(Error::internal("models of their own are not claimed")),
        };
        let Alignment { counted, unspread, is_unspread, next } =
            align(&ends, first, |worker, other| arrived[worker][other]);
        let mut consumed = ConsumedRows::like(work.consumed());
        let of_epoch =
            |report: &&Report| (report.generation, report.closed) == (generation, self.progress.closed);
        for report in reports.iter().flatten().filter(of_epoch) {
            consumed.unite(&report.consumed)?;
            consumed.unite(&report.own)?;
        }
        let mut split = Split::new(job, before.len(), &[]);
        let mut share = |step: u64, worker: usize| -> Vec<u64> {
            let rows = work.rows(step);
            rows[split.share(rows.len(), worker).rows].to_vec()
        };
        let (mut at_risk, mut carried) = (self.progress.at_risk, BTreeMap::new());
        for (worker, id) in before.iter().enumerate() {
            let earlier =
                self.progress.unspread.get(id).copied().filter(|_| is_unspread[worker]).unwrap_or(0);
            let rows =
                unspread[worker].clone().map(|step| share(step, worker).len() as u64).sum::<u64>() + earlier;
            // Reported by itself, or known from the models of others alone.
            let known = match ends[worker] {
                End::Stays(steps) => {
                    carried.insert(*id, rows);
                    steps.max(first)
                }
                End::Left | End::Lost => {
                    at_risk += rows;
                    first
                }
            };
            // A checkpoint in between has collected some of them already.
            let mut own = ConsumedRows::like(&consumed);
            (known..counted[worker]).for_each(|step| own.enter(&share(step, worker)));
            consumed.unite(&own.to_bytes())?;
        }
        Ok(Aligned { next, consumed: consumed.to_bytes(), at_risk, unspread: carried })
    }

    /// After the last unit, the model that the source has published and validated, for all: ranks that have completed the
    /// job have it, and the mean of those that are left is another.
    pub(super) fn share_final_model(&mut self, source: usize) -> Result<Option<Vec<f32>>> {
        let is_final = self.is_over() && self.progress.validated_at == Some(self.cx.work.next());
        if !is_final
            || !self.claims.makes_published(self.cx.job) && !self.strategy.state().has_own_parameters()
        {
            return Ok(None);
        }
        let rank = &mut self.cx.rank;
        let mine = match rank.index() == source {
            true => self.strategy.published().iter().flat_map(|value| value.to_le_bytes()).collect(),
            false => Vec::new(),
        };
        let bytes = rank.world().broadcast("the final model", source, mine)?;
        Ok(Some(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()))
    }
}
