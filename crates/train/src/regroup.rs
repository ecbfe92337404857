//! From one generation of the group to the next: who has the job's state, who is told, and where it goes on.
//!
//! ```text
//! every rank:   report (steps done, epochs closed)          the coordinator answers with the next group
//!               T = the furthest of all reports
//!               who stands at T holds the state; whoever stands behind is told by all holders at once, each a share
//!               who has come without any is told, too, or taught while the others train (`apprenticeship`)
//!               the first holder tells the rest: losses, audit, metrics
//!               go on from T
//! ```
//!
//! No parameter changes before the exchange of a step is complete, so members stand at t or t + 1. If nobody got to t + 1,
//! step t is computed again, from the same rows.

use crate::audit::Ledger;
use crate::contributions::Contributions;
use crate::known_bugs;
use crate::progress::Progress;
use crate::worker::Worker;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_cluster::membership::{MemberPosition, Position};
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::event::{Event, Metrics, Outcome};
use thalweg_core::{Culprit, Error, Kind, Result};

/// What a rank must know of a job besides parameters and state.
#[derive(Serialize, Deserialize)]
struct Briefing {
    next: u64,
    closed: u64,
    epoch_loss: (f64, u64),
    audit: Vec<u8>,
    last: Metrics,
    validated_at: Option<u64>,
    ended: Option<Outcome>,
    last_step: Option<u64>,
    rows: u64,
    data_digest: String,
    model_digest: Vec<u8>,
    contributions: Contributions,
    /// Seconds of training so far, by its own count.
    trained: Duration,
}

impl Worker<'_> {
    fn standing(&self) -> MemberPosition {
        let position = Position { step: self.next, stage: self.closed };
        MemberPosition { position: self.is_told.then_some(position), begun: self.begun_step }
    }

    /// Leaves this generation of the group and goes on in the next, or leaves the job. `orderly`: at a boundary, where all
    /// ranks do the same.
    pub(crate) fn regroup(&mut self, orderly: bool) -> Result<()> {
        let start = self.rank.now();
        if orderly && self.leaves {
            (self.has_left, self.regroups) = (true, false);
            self.rank.depart();
            return Ok(());
        }
        self.regroups = false;
        self.rank.regroup(self.standing(), orderly)?;
        self.enter_group(start)
    }

    /// Takes up the job where the group stands.
    pub(crate) fn enter_group(&mut self, start: Duration) -> Result<()> {
        if !std::mem::replace(&mut self.expects_faults, true) {
            self.rank.schedule_faults(&self.job.fault.inject.0);
        }
        self.apprenticeship = None;
        self.contributions.begin(&self.rank.member_ids());
        let change = self.rank.change().clone();
        let furthest = change.resume_position();
        let stands_there = |standing: &MemberPosition| {
            if known_bugs::skips_agreement() {
                return standing.position.is_some();
            }
            standing.position.is_some_and(|at| Some(at.step) == furthest.map(|furthest| furthest.step))
        };
        let redone = change.positions.iter().any(|standing| standing.begun && stands_there(standing));
        if let (Some(furthest), Some(source)) = (furthest, change.source()) {
            if let Some(shared) = self.shared.take()
                && self.is_told
                && self.next == furthest.step
            {
                shared.bring_home(furthest.step, &mut self.parts)?;
            }
            let positions = &change.positions;
            let holders: Vec<usize> =
                (0..positions.len()).filter(|place| stands_there(&positions[*place])).collect();
            self.apprenticeship = self.plan_apprenticeship(positions, &holders, furthest)?;
            let waits = |place: &usize| {
                let mut learning = self.apprenticeship.iter().flat_map(|course| &course.apprentices);
                !holders.contains(place) && !learning.any(|apprentice| apprentice == place)
            };
            let stale: Vec<usize> = (0..positions.len()).filter(waits).collect();
            self.share_state(&holders, &stale, 0..self.parts.parameters.len())?;
            self.brief(source)?;
            self.tell_epoch(source);
        } else if !self.is_told {
            return Err(self.nobody_knows(&change));
        }
        let course = self.apprenticeship.as_ref();
        self.is_told = !course.is_some_and(|course| course.apprentices.contains(&self.rank.index()));
        self.start_generation()?;
        self.recent = Progress::since(self.rank.now());
        let is_first = self.rank.generation() == 1;
        if is_first {
            self.announce();
        }
        if self.rank.index() == 0 && !(is_first && change.lost.is_empty()) {
            let MembershipChange { lost, joined, left, .. } = change;
            self.rank.forget_change();
            let members = self.rank.member_ids();
            let gone = lost.iter().map(|culprit| (culprit.rank, culprit.host.as_deref()));
            let gone = gone.chain(left.iter().map(|number| (*number, None)));
            for (number, host) in gone.filter(|(number, _)| !members.contains(number)) {
                let account = self.contributions.account(number, host, self.next);
                self.rank.emit(Event::Account { account });
            }
            self.rank.emit(Event::Regrouped {
                generation: self.rank.generation(),
                step: self.next,
                members: self.rank.member_ids(),
                lost,
                joined,
                left,
                recover_s: (self.rank.now() - start).as_secs_f64(),
                steps_redone: u64::from(redone),
            });
        }
        Ok(())
    }

    /// The end of an epoch that was to be told by a rank that may be lost: the first that knows tells it.
    fn tell_epoch(&mut self, source: usize) {
        match self.untold.take() {
            Some(Event::Epoch { epoch, .. }) if epoch >= self.closed => {}
            Some(told) if self.rank.index() == source => self.rank.emit(told),
            untold => self.untold = untold,
        }
    }

    /// All who had the state were lost before this rank had all of it.
    fn nobody_knows(&self, change: &MembershipChange) -> Error {
        let last = change
            .lost
            .last()
            .map_or(String::new(), |culprit| format!(": rank {} {}", culprit.rank, culprit.cause));
        let words = format!(
            "nobody is left who has the job's state{last}; rank {} had not all of it yet",
            self.rank.member_id()
        );
        // By its own words, so that it ends the job for all: a newcomer would begin it anew.
        Error::new(Kind::RankFailed, words).hint("`thalweg resume` goes on from the last checkpoint").blame(
            Culprit {
                rank: self.rank.member_id(),
                step: Some(self.next),
                cause: "had not all of the job's state yet when the last rank that had it was lost".into(),
                ..Culprit::default()
            },
        )
    }

    /// The rank in that place tells the others what else they must know.
    fn brief(&mut self, source: usize) -> Result<()> {
        let internal = |error: postcard::Error| Error::internal(error.to_string());
        let trained = self.trained_before + self.rank.now().saturating_sub(self.begun + self.aside);
        let mut mine = Vec::new();
        if self.rank.index() == source {
            mine = postcard::to_stdvec(&Briefing {
                next: self.next,
                closed: self.closed,
                epoch_loss: self.epoch_loss,
                audit: self.ledger.to_bytes(),
                last: self.last.clone(),
                validated_at: self.validated_at,
                ended: self.ended,
                last_step: self.last_step,
                rows: self.rows,
                data_digest: self.data_digest.clone(),
                model_digest: self.model_digest.clone(),
                contributions: self.contributions.clone(),
                trained,
            })
            .map_err(internal)?;
        }
        let all = self.rank.all_gather("briefing", &mine)?;
        let told: Briefing =
            postcard::from_bytes(all.get(source).map_or(&[][..], Vec::as_slice)).map_err(internal)?;
        for (what, same) in [
            ("data", told.data_digest == self.data_digest),
            ("model", told.model_digest == self.model_digest),
        ] {
            if !same {
                let words =
                    format!("rank {} has other {what} than the group it comes to", self.rank.member_id());
                return Err(Error::new(Kind::Rendezvous, words).hint(
                    "every host must have the same job, the same data and the same version of thalweg",
                ));
            }
        }
        if known_bugs::skips_agreement() && self.is_told {
            return Ok(());
        }
        // One that died in the middle of a step may have let others count it before it counted.
        self.parts.optimizer.set_steps(told.next);
        let mut ledger = Ledger::new(self.parts.data.training.source_len());
        ledger.absorb(&told.audit)?;
        self.ledger = ledger;
        (self.next, self.closed, self.begun_step) = (told.next, told.closed, false);
        (self.epoch_loss, self.rows, self.last) = (told.epoch_loss, told.rows, told.last);
        (self.validated_at, self.ended, self.last_step) = (told.validated_at, told.ended, told.last_step);
        self.contributions = told.contributions;
        // From here on its own clock counts on from what the job has trained so far.
        self.begun = self.rank.now();
        self.aside = Duration::ZERO;
        self.trained_before = told.trained;
        Ok(())
    }
}
