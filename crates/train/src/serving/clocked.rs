//! A server of workers that are all at the same step: it adds their updates, and answers all when every worker has sent
//! its own.
//!
//! ```text
//! worker:   push (values) ..., push (values, report)    of the unit that begins at step t, in parts from the first on
//!           pull (summary, values)
//! server:   owner.add(values)                           in the order of ranks, held until it is their turn
//!           when all have completed the clock, as the policy says:  owner.commit;  answer all
//! ```
//!
//! Several servers each get their shard of an update, and commit together (`agreement.rs`).
//!
//! Nothing changes before all parts are there. What had arrived when a generation of the group ends is dropped: if the
//! unit is not complete on the server, all workers run it again, and their rows are divided anew.

mod worker;

pub use worker::{pull, push};

use super::agreement;
use super::clock_sum::ClockSum;
use super::owner::Owner;
use super::part::{self, Outbox, Part};
#[cfg(test)]
use super::replay::{self, Recorded};
use super::shards::{self, Published};
use crate::context::Context;
use crate::envelope;
use crate::leaves::Leaves;
use crate::reduction::Description;
use crate::registry;
use crate::roles::Roles;
use crate::scheduling::{Admission, Clocks, Decision, Policy, policy};
use crate::state::State;
use crate::step_report::{Requests, StepReport, StepSummary};
use crate::strategy::{Strategy, TransferUnit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::spec::engine::MAX_WORKERS;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Moment;

/// What precedes the values of a part of an update.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Push {
    unit: Unit,
    /// The index of the first value.
    start: u64,
    /// With the last part.
    report: Option<StepReport>,
}

/// What precedes the values of the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pull {
    unit: Unit,
    summary: StepSummary,
}

/// Floating-point operations for a value that is pushed.
const ADDITION: u64 = 1;

/// Bytes before the values, with so many ranks.
const fn header(world: usize) -> usize {
    256 + 32 * world
}

/// The window of messages for updates and answers of so many values, which all ranks must choose the same.
pub fn window(values: usize) -> usize {
    part::window(values, header(MAX_WORKERS))
}

/// Values that a worker pushes at most for a clock: those of its update or, of terms of a sum, several times as many and
/// their losses.
pub fn pushed_values(job: &JobSpec, values: usize) -> usize {
    match job.train.reproducible {
        true => Leaves::of(job.train.global_batch).most_terms() * (values + 1),
        false => values,
    }
}

/// The unit that ranks are at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unit {
    generation: u32,
    step: u64,
}

impl Unit {
    /// The one that begins at the next step.
    pub fn of(cx: &Context<'_>) -> Unit {
        Unit { generation: cx.rank.generation(), step: cx.work.next() }
    }

    /// Another step of the same generation.
    pub fn at(self, step: u64) -> Unit {
        Unit { step, ..self }
    }

    /// Whether it was interrupted before the other one began.
    pub fn is_before(self, other: Unit) -> bool {
        self.generation < other.generation
    }
}

/// After a change of the group: a worker whose parameters are not those of the next step gets them from the servers. All
/// ranks must call it.
pub fn refresh(cx: &mut Context<'_>, is_behind: bool, parameters: &mut [f32]) -> Result<()> {
    let behind = cx.rank.world().all_gather("workers behind", &[u8::from(is_behind)])?;
    match behind.iter().any(|behind| behind == &[1]) {
        true => shards::gather(cx, parameters),
        false => Ok(()),
    }
}

/// After a change of the group: the server sends its last answer again, if a worker has missed it. Returns whether any has.
/// All ranks must call it.
pub fn answer_again(cx: &mut Context<'_>, missed: bool, answer: &mut Vec<f32>) -> Result<bool> {
    let missed = cx.rank.world().all_gather("missed answers", &[u8::from(missed)])?;
    let any = missed.iter().any(|missed| missed == &[1]);
    if any {
        answer.resize(cx.parameters(), 0.0);
        let server = part::server(cx)?;
        cx.rank.world().broadcast_into("the last answer", server, answer)?;
    }
    Ok(any)
}

/// A server's rank.
pub struct Server<O> {
    pub owner: O,
    shard: Shard,
    outbox: Outbox,
    /// The last answer to all, if it may be needed again.
    last: Vec<f32>,
    published: Published,
}

/// What a server knows of the unit in progress.
struct Shard {
    policy: Box<dyn Policy>,
    clocks: Clocks,
    unit: Unit,
    moment: Option<Moment>,
    sum: ClockSum,
    /// What has arrived of each worker's update.
    #[cfg(test)]
    pushed: BTreeMap<usize, Vec<f32>>,
    /// Along a tree: the sum of the losses.
    loss: Option<f64>,
    /// Of the workers whose updates are complete, by member id.
    reports: BTreeMap<usize, StepReport>,
    /// All updates are there, and not committed.
    is_ready: bool,
    /// All members by rank, and which of them work.
    members: Vec<usize>,
}

/// Shard and owner for one message.
struct Handler<'a, O> {
    shard: &'a mut Shard,
    owner: &'a mut O,
}

impl<O: Owner> Server<O> {
    pub fn new(job: &JobSpec, owner: O) -> Server<O> {
        let shard = Shard {
            policy: policy(job),
            clocks: Clocks::default(),
            unit: Unit { generation: 0, step: 0 },
            moment: None,
            sum: ClockSum::default(),
            #[cfg(test)]
            pushed: BTreeMap::new(),
            loss: None,
            reports: BTreeMap::new(),
            is_ready: false,
            members: Vec::new(),
        };
        let published = Published::of(owner.state().len());
        Server { owner, shard, outbox: Outbox::default(), last: Vec::new(), published }
    }

    /// Of these parameters alone.
    pub fn of_shard(self, range: Range<usize>) -> Server<O> {
        Server { published: self.published.of_shard(range), ..self }
    }

    /// The next unit begins.
    fn begin(&mut self, cx: &mut Context<'_>) {
        let shard = &mut self.shard;
        shard.unit = Unit::of(cx);
        let workers = Roles::of(cx.job).worker_ranks(&shard.members);
        let workers = workers.iter().map(|rank| shard.members[*rank]);
        shard.clocks = Clocks::at(shard.unit.step, workers.clone());
        shard.moment = Some(cx.moment(shard.unit.step));
        shard.reports.clear();
        #[cfg(test)]
        shard.pushed.clear();
        shard.sum = match cx.work.tree_of(shard.unit.step) {
            Some(tree) => ClockSum::along(tree, workers, self.published.range().len()),
            None => ClockSum::in_order_of_ranks(workers, self.published.range().len()),
        };
        self.owner.begin();
    }

    /// Waits until all updates are there.
    fn await_updates(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let Server { owner, shard, outbox, .. } = self;
        let ranks = Roles::of(cx.job).worker_ranks(&shard.members);
        while !shard.is_ready {
            let is_missing = |rank: &usize| !shard.reports.contains_key(&shard.members[*rank]);
            let missing: Vec<usize> = ranks.iter().copied().filter(is_missing).collect();
            part::serve(cx, &mut Handler { shard, owner }, ADDITION, &missing, outbox)?;
        }
        Ok(())
    }

    /// The decision to commit, and what all ranks have reported.
    fn agree(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (unit, servers) = (self.shard.unit, part::servers(cx)?);
        // Requests to this rank count as of now.
        let own = StepReport { steps: 1, requests: Requests::of(cx.rank), ..StepReport::default() };
        let (first, others) = (servers[0], &servers[1..]);
        if first != cx.rank.index() {
            agreement::send_ready(cx, unit, first, &own)?;
            return agreement::await_commit(cx, unit, first);
        }
        let mut reports: Vec<StepReport> =
            self.shard.members.iter().map(|id| self.shard.reports.get(id).copied().unwrap_or(own)).collect();
        for other in others {
            reports[*other] = agreement::await_ready(cx, unit, *other)?;
        }
        let mut summary = StepSummary::of(&reports);
        summary.loss = self.shard.loss.unwrap_or(summary.loss);
        for other in others {
            // It is decided. The next operation has the error, if there is one.
            let _ = agreement::send_commit(cx, unit, *other, &summary);
        }
        Ok(summary)
    }

    /// The updates have their effect. Returns the answer to all.
    fn commit(&mut self) -> Vec<f32> {
        let (mut answer, shard) = (Vec::new(), &mut self.shard);
        shard.is_ready = false;
        if let Some(moment) = shard.moment {
            self.owner.commit(shard.reports.len(), moment, &mut answer);
            #[cfg(test)]
            replay::record(|| Recorded::AppliedAll {
                step: shard.unit.step,
                pushed: std::mem::take(&mut shard.pushed).into_values().collect(),
                published: self.owner.published().to_vec(),
            });
        }
        if self.owner.repeats_answer() {
            self.last.clone_from(&answer);
        }
        answer
    }

    /// Sends the answer to all workers.
    fn answer(&mut self, cx: &mut Context<'_>, answer: Vec<f32>, summary: &StepSummary) -> Result<()> {
        let Shard { unit, clocks, .. } = &self.shard;
        self.outbox.publish(answer, unit.step + 1);
        let pull = Pull { unit: *unit, summary: summary.clone() };
        let message = envelope::header_bytes(&pull)?;
        for worker in clocks.workers() {
            self.outbox.send_published(worker, message.clone());
        }
        // The unit is committed. What follows may be a collective, and the workers wait for their answers.
        let _ = self.outbox.deliver(cx).and_then(|()| cx.rank.world().flush_messages());
        Ok(())
    }
}

impl<O: Owner> Part for Handler<'_, O> {
    fn receive(&mut self, from: usize, message: &[u8], _: &mut Outbox) -> std::result::Result<(), String> {
        let (push, values) = envelope::decode::<Push>(message)?;
        let shard = &mut *self.shard;
        if push.unit.is_before(shard.unit) {
            return Ok(());
        }
        if push.unit != shard.unit || shard.reports.contains_key(&from) {
            return Err(format!("pushed {:?}", push.unit));
        }
        if !values.are_finite() {
            return Err("pushed values that are not finite".into());
        }
        if shard.policy.admit(&shard.clocks, from) != Admission::Hold {
            return Err("pushed an update that does not wait for others".into());
        }
        let start = usize::try_from(push.start).unwrap_or(usize::MAX);
        shard.sum.receive(from, start, values, |start, values| self.owner.add(start, values))?;
        #[cfg(test)]
        shard.pushed.entry(from).or_default().extend(values.iter());
        let Some(report) = push.report else { return Ok(()) };
        if !shard.sum.has_all_of(from) {
            return Err("ended an update before it was complete".into());
        }
        shard.reports.insert(from, report);
        #[cfg(test)]
        replay::record(|| Recorded::Arrived(from));
        shard.clocks.complete(from);
        if shard.policy.may_begin(&shard.clocks, from) == Decision::Go {
            shard.loss = shard.sum.finish(|start, values| self.owner.add(start, values));
            shard.is_ready = true;
        }
        Ok(())
    }
}

impl<O: Owner> Strategy for Server<O> {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        cx.compute.clear_consumed();
        self.begin(cx);
        self.await_updates(cx)?;
        let summary = self.agree(cx)?;
        let operations = self.owner.operations() * self.published.range().len() as u64;
        let answer = cx.rank.compute("the update", operations, || Ok(self.commit()))?;
        self.answer(cx, answer, &summary)?;
        Ok(summary)
    }

    fn unit(&self, cx: &Context<'_>) -> u64 {
        registry::unit_steps(cx.job).min(cx.work.steps_left(cx.work.next())).max(1)
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.published.gather(cx, self.owner.published())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let shard = &mut self.shard;
        (shard.unit.generation, shard.members) = (cx.rank.generation(), cx.rank.member_ids());
        // The job goes on after the unit: the first server has decided to commit it.
        if std::mem::take(&mut shard.is_ready) && shard.unit.step < cx.work.next() {
            self.commit();
        }
        self.outbox.clear();
        cx.windows.drop_earlier(cx.rank.generation());
        if Roles::of(cx.job).missing_server(&cx.rank.member_ids()).is_some() {
            return Ok(());
        }
        match self.owner.repeats_answer() {
            true => answer_again(cx, false, &mut self.last).map(drop)?,
            false => {
                let mut whole = self.published.own_in_whole(self.owner.published());
                refresh(cx, false, &mut whole)?;
            }
        }
        // By now every rank has had all of the state that it needs.
        self.owner.keep(self.published.range());
        Ok(())
    }

    fn published(&self) -> &[f32] {
        self.published.values(self.owner.published())
    }

    fn state(&self) -> &State {
        self.owner.state()
    }

    fn state_mut(&mut self) -> &mut State {
        self.owner.state_mut()
    }

    fn agree_on_transfer_unit(&self, _: &mut Context<'_>) -> Result<TransferUnit> {
        Ok(TransferUnit::State)
    }

    fn shown_values(&self, _: &JobSpec) -> usize {
        self.published.range().len()
    }

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(window(pushed_values(job, self.published.parameters())))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
