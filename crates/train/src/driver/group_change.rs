//! From one generation of the group to the next: which members have the job's state, which get it, and where it goes on.
//!
//! ```text
//! every rank:   report (steps committed, epochs closed)       the coordinator answers with the next group
//!               T = the furthest of all reports
//!               members at T hold the state; all others get it from the holders, each of which sends a share;
//!               new members may get it in chunks while the others train (`state_transfer`)
//!               the first holder sends the rest: position, consumed rows, losses, metrics
//!               the strategy answers the change, and the job goes on from T
//! ```
//!
//! A unit commits on all ranks or on none, up to the last exchange of it: members are before the unit or after it. If no
//! member is after it, the unit is run again, from the same rows.

use super::meeting::Stretch;
use super::own_models::Aligned;
use super::{Driver, Holds, Next};
use crate::job_progress::{TrainingTime, Transferred};
use crate::known_bugs;
use crate::recent_steps::RecentSteps;
use crate::registry;
use crate::split::Split;
use crate::state_transfer::{self, Receivers, StateTransfer};
use crate::work::local_rows::LocalRows;
use std::time::Duration;
use thalweg_cluster::membership::{MemberPosition, Position};
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::event::Event;
use thalweg_core::{Culprit, Error, Kind, Result};

impl Driver<'_> {
    fn position(&self) -> MemberPosition {
        let position = Position { step: self.cx.work.next(), stage: self.progress.closed };
        let holds = self.membership.holds;
        MemberPosition {
            position: (holds != Holds::Nothing).then_some(position),
            begun: holds == Holds::StateInUnit,
        }
    }

    /// Enters the next generation after this one has ended in the middle of an operation.
    pub(super) fn change_group(&mut self) -> Result<()> {
        let start = self.cx.rank.now();
        self.membership.next = Next::Unit;
        self.cx.rank.regroup(self.position(), false)?;
        self.enter_group(start)
    }

    /// Enters the next generation between two units, as all ranks do, or leaves the job.
    pub(super) fn change_group_in_order(&mut self) -> Result<()> {
        let start = self.cx.rank.now();
        if self.membership.next == Next::Leave {
            self.membership.next = Next::Left;
            self.cx.rank.depart();
            return Ok(());
        }
        self.membership.next = Next::Unit;
        self.cx.rank.regroup(self.position(), true)?;
        self.enter_group(start)
    }

    /// Continues the job where the group stands. `start` is when the last generation ended.
    pub(super) fn enter_group(&mut self, start: Duration) -> Result<()> {
        // The step of a rank's own loss is not lost again by the rank that takes its place.
        let behind_own_loss = u64::from(self.membership.holds == Holds::Nothing);
        self.membership.transfer = None;
        if let Some(window) = self.strategy.message_window(self.cx.job) {
            self.cx.rank.open_messages(window);
        }
        if self.cx.job.engine.progress_thread {
            self.cx.rank.start_progress_thread()?;
        }
        self.is_published = false;
        self.progress.contributions.begin(&self.cx.rank.member_ids());
        let change = self.cx.rank.change().clone();
        let (mut redone, mut final_model) = (false, None);
        match (change.resume_position(), change.source()) {
            (Some(at), Some(source)) => {
                let (mut source, mut holders, mut aligned) = (source, holders(&change, at), None);
                if self.claims.own_models.is_some() {
                    (source, aligned) = self.align(&change)?;
                    holders = vec![source];
                }
                // A server knows most of work at different speeds, and its parameters are the ones to begin with.
                if let Some(server) = self.server_among(&holders) {
                    (source, holders) = (server, vec![server]);
                }
                redone = holders.iter().any(|holder| change.positions[*holder].begun);
                let own = (self.membership.holds != Holds::Nothing).then_some(self.cx.work.next());
                self.strategy.suspend(own)?;
                let progress = self.exchange_progress(source, aligned)?;
                self.plan_transfer(&change, &holders, at, &progress)?;
                self.transfer_state(&change, &holders)?;
                self.continue_from(progress)?;
                final_model = self.share_final_model(source)?;
                self.share_local_rows(&change, source)?;
                self.report_epoch(source);
            }
            _ if self.membership.holds == Holds::Nothing => return Err(self.state_is_lost(&change)),
            _ => {
                self.strategy.suspend(Some(self.cx.work.next()))?;
                self.share_local_rows(&change, 0)?;
            }
        }
        self.note_begun();
        let (job, first) = (self.cx.job, self.cx.work.next() + behind_own_loss);
        self.cx.rank.schedule_faults(&job.fault.inject.0, first);
        let transfer = self.membership.transfer.as_ref();
        let receives = transfer.is_some_and(|transfer| transfer.receivers.contains(&self.cx.rank.index()));
        self.membership.holds = if receives { Holds::Nothing } else { Holds::State };
        self.start_generation(&change)?;
        if let Some(model) = final_model {
            self.strategy.set_published(model);
            self.is_published = true;
        }
        let rows = self.cx.local_rows.as_ref().map_or(0, LocalRows::agreed_rows);
        self.recent = RecentSteps::after(rows, self.cx.rank.now());
        self.report_work(true);
        let is_first = self.cx.rank.generation() == 1;
        if is_first {
            self.announce();
        }
        if !(is_first && change.lost.is_empty()) {
            let steps_redone = if redone { self.strategy.unit(&self.cx) } else { 0 };
            self.report_change(change, start, steps_redone);
        }
        Ok(())
    }

    /// Rebuilds per-generation state: shares, slowdown, checkpoint writer, and what the strategy needs. All ranks call it
    /// together, as strategies run collectives in it.
    fn start_generation(&mut self, change: &MembershipChange) -> Result<()> {
        let idle = self.membership.transfer.as_ref().map(|transfer| transfer.receivers.clone());
        self.divide(&idle.unwrap_or_default());
        let cx = &mut self.cx;
        cx.compute.slow_down(cx.job, cx.rank.member_id());
        self.checkpoints.set_writer(cx.rank.index() == 0, cx.compute.model.layout());
        if self.claims.servers > 0 {
            let values = self.strategy.shown_values(cx.job);
            cx.windows.open(cx.rank, cx.job, values)?;
        }
        self.strategy.change(cx, change)
    }

    /// Divides rows among the workers without the idle ones.
    pub(super) fn divide(&mut self, idle: &[usize]) {
        let cx = &mut self.cx;
        let ranks = self.roles.worker_ranks(&cx.rank.member_ids());
        let split = Split::new(cx.job, ranks.len(), idle);
        cx.work.divide(cx.rank.index(), ranks, split);
    }

    /// With workers at their own speed or with models of their own: the server among these ranks, if there is one.
    fn server_among(&self, ranks: &[usize]) -> Option<usize> {
        let alike = !self.claims.at_own_speed() && !self.claims.local_updates;
        let servers = self.roles.server_ranks(&self.cx.rank.member_ids());
        servers.into_iter().find(|server| !alike && ranks.contains(server))
    }

    /// Decides whether new members get the state in chunks while the others train: by numbers that all ranks have.
    fn plan_transfer(
        &mut self,
        change: &MembershipChange,
        holders: &[usize],
        at: Position,
        progress: &Transferred,
    ) -> Result<()> {
        let new = new_members(change);
        let (cx, strategy) = (&mut self.cx, &self.strategy);
        let is_over = progress.progress.ended.is_some() || at.step >= progress.end;
        if new.is_empty() || new[0] == 0 || is_over {
            return Ok(());
        }
        let unit = strategy.agree_on_transfer_unit(cx)?;
        let epoch = cx.work.steps_per_epoch();
        let steps = match at.step.is_multiple_of(epoch) {
            // The epoch that ends here is validated first.
            true if at.stage < at.step / epoch => 0,
            _ => ((at.step / epoch + 1) * epoch).min(progress.end) - at.step,
        };
        let units = steps.div_ceil(registry::unit_steps(cx.job).max(1));
        let now = cx.rank.now();
        self.membership.transfer =
            StateTransfer::plan(cx.job, strategy.state(), (holders, &new), (at.step, units), unit, now);
        Ok(())
    }

    /// The holders send the state to members that are behind, and to new ones that get it at once.
    fn transfer_state(&mut self, change: &MembershipChange, holders: &[usize]) -> Result<()> {
        let new = match &self.membership.transfer {
            Some(_) => Vec::new(),
            None => new_members(change),
        };
        // A member with parameters of its own keeps them, and so does a server: no other has its shard.
        let own = self.strategy.state().has_own_parameters();
        let servers = self.roles.server_ranks(&self.cx.rank.member_ids());
        let keeps = |rank: &usize| own || holders.contains(rank) || servers.contains(rank);
        let is_behind = |rank: &usize| change.positions[*rank].position.is_some() && !keeps(rank);
        let behind = (0..change.positions.len()).filter(is_behind).collect();
        let servers = servers.into_iter().filter(|server| new.contains(server)).collect();
        let receivers = Receivers { new, behind, servers };
        if receivers.contains(self.cx.rank.index()) {
            // What it had is overwritten: until all has arrived it has no valid state.
            self.membership.holds = Holds::Nothing;
        }
        let state = self.strategy.state_mut();
        let all = 0..state.len();
        state_transfer::transfer(self.cx.rank, state, holders, &receivers, &all)
    }

    /// The source sends all ranks what else they must know.
    fn exchange_progress(&mut self, source: usize, aligned: Option<Aligned>) -> Result<Transferred> {
        let (rank, work) = (&mut self.cx.rank, &mut self.cx.work);
        let mut mine = Vec::new();
        if rank.index() == source {
            let mut progress = self.progress.clone();
            let (next, consumed) = match aligned {
                Some(Aligned { next, consumed, at_risk, unspread }) => {
                    (progress.at_risk, progress.unspread) = (at_risk, unspread);
                    (next, consumed)
                }
                None => {
                    progress.lose_models(rank.change());
                    (work.next(), work.consumed().to_bytes())
                }
            };
            mine = Transferred {
                next,
                end: work.end(),
                consumed,
                slots_start: self.cx.slots_start,
                data_digest: self.checkpoints.data_digest().into(),
                model_digest: self.checkpoints.model_digest().into(),
                trained: self.progress.time.total(rank.now()),
                progress,
                unreported: self.membership.unreported.as_ref().map(to_json).transpose()?,
            }
            .to_bytes()?;
        }
        let all = rank.world().all_gather("job progress", &mine)?;
        let sent = Transferred::from_bytes(all.get(source).map_or(&[], Vec::as_slice))?;
        for (what, matches) in [
            ("data", sent.data_digest == self.checkpoints.data_digest()),
            ("model", sent.model_digest == self.checkpoints.model_digest()),
        ] {
            if !matches {
                let message = format!("rank {} has other {what} than the group it joins", rank.member_id());
                return Err(Error::new(Kind::Rendezvous, message).hint(
                    "every host must have the same job, the same data and the same version of thalweg",
                ));
            }
        }
        Ok(sent)
    }

    /// Continues from the progress of the job, after the state of that step has arrived.
    fn continue_from(&mut self, sent: Transferred) -> Result<()> {
        if known_bugs::skips_agreement() && self.membership.holds != Holds::Nothing {
            return Ok(());
        }
        if sent.progress.meetings > self.progress.meetings {
            // The others have counted what this worker did before.
            self.stretch = Stretch::default();
        }
        let work = &mut self.cx.work;
        work.restore(sent.next, &sent.consumed)?;
        work.end_after(sent.end);
        self.cx.slots_start = sent.slots_start;
        self.membership.unreported = sent.unreported.as_deref().map(from_json).transpose()?;
        self.progress = sent.progress;
        self.cx.merge_every = self.progress.interval.of(self.cx.job);
        self.progress.time = TrainingTime::continued(sent.trained, self.cx.rank.now());
        Ok(())
    }

    /// The end of an epoch that a lost rank was to report: the source does. The others keep it, as the source may be lost, too.
    fn report_epoch(&mut self, source: usize) {
        if self.cx.rank.index() == source
            && let Some(closed) = self.membership.unreported.take()
        {
            self.cx.rank.emit(closed);
        }
    }

    /// Rank 0 reports the change and the accounts of members that are gone.
    fn report_change(&mut self, change: MembershipChange, start: Duration, steps_redone: u64) {
        let (rank, step) = (&mut self.cx.rank, self.cx.work.next());
        if rank.index() != 0 {
            return;
        }
        let MembershipChange { lost, joined, left, .. } = change;
        rank.forget_change();
        let members = rank.member_ids();
        let gone = lost.iter().map(|culprit| (culprit.rank, culprit.host.as_deref()));
        let gone = gone.chain(left.iter().map(|id| (*id, None)));
        for (id, host) in gone.filter(|(id, _)| !members.contains(id)) {
            rank.emit(Event::Account { account: self.progress.contributions.account(id, host, step) });
        }
        rank.emit(Event::Regrouped {
            generation: rank.generation(),
            step,
            members,
            lost,
            joined,
            left,
            recover_s: (rank.now() - start).as_secs_f64(),
            steps_redone,
        });
    }

    /// All members with the state were lost before this one had received it.
    fn state_is_lost(&self, change: &MembershipChange) -> Error {
        let last = change
            .lost
            .last()
            .map_or(String::new(), |culprit| format!(": rank {} {}", culprit.rank, culprit.cause));
        let rank = self.cx.rank.member_id();
        let message =
            format!("no rank is left that has the job's state{last}; rank {rank} had not received all of it");
        // A failure of this rank's own ends the job for all: a new member would begin it anew.
        Error::new(Kind::RankFailed, message).hint("`thalweg resume` goes on from the last checkpoint").blame(
            Culprit {
                rank,
                step: Some(self.cx.work.next()),
                cause: "had not received all of the job's state when the last rank that had it was lost"
                    .into(),
                ..Culprit::default()
            },
        )
    }
}

fn from_json(event: &str) -> Result<Event> {
    serde_json::from_str(event).map_err(|error| Error::internal(error.to_string()))
}

fn to_json(event: &Event) -> Result<String> {
    serde_json::to_string(event).map_err(|error| Error::internal(error.to_string()))
}

/// Ranks that have the state of the resume position.
fn holders(change: &MembershipChange, at: Position) -> Vec<usize> {
    let holds = |rank: &usize| match change.positions[*rank].position {
        Some(position) => position.step == at.step || known_bugs::skips_agreement(),
        None => false,
    };
    (0..change.positions.len()).filter(holds).collect()
}

/// For a new member, the rank that it takes its state over from, where every member has parameters of its own.
pub(super) fn giver_of(rank: usize, change: &MembershipChange) -> Option<usize> {
    let number = new_members(change).iter().position(|new| *new == rank)?;
    let holders = holders(change, change.resume_position()?);
    Some(state_transfer::giver(number, &holders))
}

/// Ranks without any state.
fn new_members(change: &MembershipChange) -> Vec<usize> {
    (0..change.positions.len()).filter(|rank| change.positions[*rank].position.is_none()).collect()
}
