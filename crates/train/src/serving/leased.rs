//! Servers of workers at their own speed: the first hands out leases on rows, and updates have their effect when they arrive.
//!
//! ```text
//! worker:   ask;  take (lease, values)
//!           compute the rows of the lease;  push (lease, rows, values)
//!           take (next lease, values), or the call to a meeting
//! server:   on a push:  owner.apply(values), the rows of the lease count, both or neither
//!                       answer with the next lease; with a call if the epoch is exhausted or a meeting was called
//! ```
//!
//! A worker has one request under way or one lease at a time, and every request has one answer. Requests and answers
//! between members that stay outlive a change of the group, so neither side does anything again after one. Leases of lost
//! workers go back to the pool; what they have pushed and was not handled yet is ignored.
//!
//! During a warm start the first worker alone gets leases; requests of the others are answered at its end.
//!
//! Of several servers each gets its part of an update, the first one when all others have answered: rows count when every
//! server has applied them. If a worker is lost in between, another one computes its rows again. The others know which rows
//! they have applied and ignore their repetition: these rows are mixed, as the parts come from two gradients. No meeting is
//! held before that has happened, as checkpoints know nothing of it.

mod client;
mod message;

pub use client::Client;
pub use message::window;

use super::mitigation::Mitigation;
use super::owner::Owner;
use super::part::{self, Outbox, Part, Queue};
#[cfg(test)]
use super::replay::{self, Recorded};
use super::shards::{self, Published};
use super::workers::gather_workers;
use crate::context::Context;
use crate::envelope::{self, Values};
use crate::known_bugs;
use crate::reduction::Description;
use crate::scheduling::{Admission, AgeLimit, Clocks, Decision, Policy, policy};
use crate::state::State;
use crate::step_report::StepSummary;
use crate::strategy::{NextActivity, Strategy, TransferUnit};
use crate::work::pool::{Finished, Pool, Worker};
use message::{Answer, Done, Request, version_read};
use std::collections::BTreeSet;
use std::ops::Range;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::report::Staleness;
use thalweg_core::spec::scheduling::QueueOrder;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Moment;

/// A server's rank.
pub struct Server<O> {
    pub owner: O,
    table: LeaseTable,
    outbox: Outbox,
    per_lease: usize,
    published: Published,
    /// Messages that wait until those with staler updates are handled, if updates are ordered.
    queue: Option<Queue>,
}

/// What a server knows of its workers.
struct LeaseTable {
    policy: Box<dyn Policy>,
    limit: AgeLimit,
    mitigation: Mitigation,
    clocks: Clocks,
    workers: Vec<Worker>,
    /// Whether it hands out leases: the first server.
    leases: bool,
    generation: u32,
    /// Members that were called to the next meeting.
    called: BTreeSet<usize>,
    /// Workers that wait for the end of a warm start, for an answer.
    waiting: Vec<Worker>,
    /// Members whose requests of earlier generations were handled.
    requested: BTreeSet<usize>,
    /// Updates that had their effect in this run; with `earlier` ones, those that the optimizer counts.
    version: u64,
    earlier: u64,
    staleness: Staleness,
}

/// Worker table, owner and pool for one message.
struct Handler<'a, O> {
    table: &'a mut LeaseTable,
    owner: &'a mut O,
    pool: &'a mut Pool,
    /// The moment of an update after so many, with so many rows.
    moment: &'a dyn Fn(u64, u64) -> Moment,
    /// Whether the coordinator has called a meeting.
    meets: bool,
}

impl<O: Owner> Server<O> {
    /// Of leases that have so many pieces.
    pub fn new(job: &JobSpec, owner: O, per_lease: usize) -> Server<O> {
        let table = LeaseTable {
            policy: policy(job),
            limit: AgeLimit(job.scheduling.max_age),
            mitigation: Mitigation::of(job),
            clocks: Clocks::default(),
            workers: Vec::new(),
            leases: false,
            generation: 0,
            called: BTreeSet::new(),
            waiting: Vec::new(),
            requested: BTreeSet::new(),
            version: 0,
            earlier: 0,
            staleness: Staleness::default(),
        };
        let published = Published::of(owner.state().len());
        let by_staleness = job.scheduling.queue == QueueOrder::Staleness;
        let queue = by_staleness.then(|| Queue::by(version_read));
        Server { owner, table, outbox: Outbox::default(), per_lease, published, queue }
    }

    /// Of these parameters alone.
    pub fn of_shard(self, range: Range<usize>) -> Server<O> {
        Server { published: self.published.of_shard(range), ..self }
    }
}

impl LeaseTable {
    /// The ranks of workers from which a message is to come.
    fn awaited(&self, members: &[usize]) -> Vec<usize> {
        let is_awaited =
            |worker: &&Worker| !self.called.contains(&worker.member) && !self.waiting.contains(worker);
        let awaited: Vec<usize> =
            self.workers.iter().filter(is_awaited).map(|worker| worker.member).collect();
        (0..members.len()).filter(|rank| awaited.contains(&members[*rank])).collect()
    }
}

impl<O: Owner> Part for Handler<'_, O> {
    fn receive(
        &mut self,
        from: usize,
        message: &[u8],
        outbox: &mut Outbox,
    ) -> std::result::Result<(), String> {
        let (request, values) = envelope::decode::<Request>(message)?;
        if request.worker.member != from {
            return Err(format!("sent a request of rank {}", request.worker.member));
        }
        if !self.table.workers.contains(&request.worker) && !known_bugs::applies_repeats() {
            // It was lost before this message was handled: its lease went back to the pool.
            return Ok(());
        }
        if request.meets {
            // Nobody else may know of a call from before a change of the group.
            if request.generation == self.table.generation {
                self.table.called.insert(from);
            }
            return Ok(());
        }
        self.table.requested.insert(from);
        let mut answer = Vec::new();
        match &request.done {
            Some(done) => self.apply(request.worker, done, values, &mut answer)?,
            None => answer.extend_from_slice(self.owner.initial_answer()),
        }
        if !request.fetches {
            answer.clear();
        }
        if self.is_to_wait(request.worker) {
            self.table.waiting.push(request.worker);
        } else {
            self.answer(request.worker, answer, outbox)?;
        }
        self.end_warm_start(outbox)
    }
}

impl<O: Owner> Handler<'_, O> {
    /// The update of a lease has its effect, and its rows count.
    fn apply(
        &mut self,
        worker: Worker,
        done: &Done,
        values: Values<'_>,
        answer: &mut Vec<f32>,
    ) -> std::result::Result<(), String> {
        let Handler { table, owner, pool, moment, .. } = self;
        if table.leases && !pool.has(worker, done.lease) {
            return Err(format!("pushed lease {}, which it does not have", done.lease));
        }
        if values.len() != owner.state().len() || !values.are_finite() || done.version > table.version {
            return Err(format!("pushed {} values, or values that are not finite", values.len()));
        }
        if table.policy.admit(&table.clocks, worker.member) != Admission::Apply {
            return Err("pushed an update that is to wait for others".into());
        }
        let age = table.version - done.version;
        if !table.limit.admits(age) {
            pool.drop_lease(worker, done.lease);
            table.clocks.complete(worker.member);
            answer.extend_from_slice(owner.initial_answer());
            return Ok(());
        }
        if !table.leases && pool.skips_repeated(&done.rows) {
            answer.extend_from_slice(owner.initial_answer());
            return Ok(());
        }
        let moment = table.mitigation.moment(moment(table.earlier + table.version, pool.rows()), age);
        let compensated = table.mitigation.compensate(worker.member, values, owner.published(), done.share);
        owner.apply(compensated.as_deref().map_or(values, Values::of), moment, answer);
        #[cfg(test)]
        if table.leases {
            replay::record(|| Recorded::Applied {
                member: worker.member,
                pieces: pool.pieces(done.lease),
                age,
            });
        }
        match table.leases {
            true => {
                pool.commit(worker, done.lease, &done.rows);
                let rows = done.rows.len() as u64;
                pool.finish(Finished { member: worker.member, rows, report: done.report });
            }
            false => pool.count(&done.rows),
        }
        let behind = table.clocks.fastest() - table.clocks.of(worker.member);
        table.staleness.add(age, behind);
        table.version += 1;
        table.clocks.complete(worker.member);
        Ok(())
    }

    /// During a warm start all workers but the first wait.
    fn is_to_wait(&self, worker: Worker) -> bool {
        let Handler { table, pool, meets, .. } = self;
        let is_warm = pool.sizes().step_at(pool.rows()) < table.mitigation.warm_start && !pool.is_exhausted();
        table.leases && is_warm && (!meets || pool.has_returned()) && table.workers.first() != Some(&worker)
    }

    /// Workers that need not wait any more ask again, as what they have read is old.
    fn end_warm_start(&mut self, outbox: &mut Outbox) -> std::result::Result<(), String> {
        for worker in std::mem::take(&mut self.table.waiting) {
            if self.is_to_wait(worker) {
                self.table.waiting.push(worker);
                continue;
            }
            let LeaseTable { generation, version, .. } = *self.table;
            let answer = Answer { worker, generation, version, lease: None, asks_again: true };
            outbox.send(worker.member, envelope::encode(&answer, &[]).map_err(|error| error.message)?);
        }
        Ok(())
    }

    /// Answers with the next lease, or calls the worker to a meeting.
    fn answer(
        &mut self,
        worker: Worker,
        values: Vec<f32>,
        outbox: &mut Outbox,
    ) -> std::result::Result<(), String> {
        let Handler { table, owner, pool, meets, .. } = self;
        if table.policy.may_begin(&table.clocks, worker.member) != Decision::Go {
            return Err("is to wait for others".into());
        }
        table.mitigation.note_sent(worker.member, &values);
        let lease = match (table.leases, *meets) {
            (false, _) => None,
            (true, false) => pool.hand_out(worker),
            (true, true) if known_bugs::meets_early() => None,
            (true, true) => pool.hand_out_returned(worker),
        };
        if lease.is_none() && table.leases {
            table.called.insert(worker.member);
        }
        let LeaseTable { generation, version, .. } = **table;
        let answer = Answer { worker, generation, version, lease, asks_again: false };
        // Shared memory may have later ones by the time that they are read.
        if owner.answers_alike() && !values.is_empty() && !table.mitigation.needs_what_was_read() {
            outbox.publish(values, table.version);
            let header = envelope::header_bytes(&answer).map_err(|error| error.message)?;
            outbox.send_published(worker.member, header);
            return Ok(());
        }
        outbox.send(worker.member, envelope::encode(&answer, &values).map_err(|error| error.message)?);
        Ok(())
    }
}

impl<O: Owner> Strategy for Server<O> {
    fn next(&mut self, _: &mut Context<'_>) -> Result<NextActivity> {
        let is_called = |worker: &Worker| self.table.called.contains(&worker.member);
        match self.table.workers.iter().all(is_called) {
            true => Ok(NextActivity::Meeting),
            false => Ok(NextActivity::Unit),
        }
    }

    /// Handles one request.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (schedule, meets) = (cx.schedule(), cx.meeting_called());
        let mut pool = cx.pool.take().ok_or_else(|| Error::internal("a server without a pool"))?;
        let members = cx.rank.member_ids();
        let (sizes, operations) = (pool.sizes(), self.owner.operations());
        let moment = |updates, rows| Moment { updates, rate: schedule.rate(sizes.step_at(rows)) };
        let Server { owner, table, outbox, queue, .. } = self;
        let mut handler = Handler { table, owner, pool: &mut pool, moment: &moment, meets };
        let released = handler.end_warm_start(outbox).map_err(Error::internal);
        let from = handler.table.awaited(&members);
        let served = released.and_then(|()| match from.is_empty() {
            true => outbox.deliver(cx),
            false => match queue.as_mut() {
                Some(queue) => part::serve_first(cx, &mut handler, operations, &from, outbox, queue),
                None => part::serve(cx, &mut handler, operations, &from, outbox),
            },
        });
        cx.pool = Some(pool);
        #[cfg(test)]
        if let Some(versions) = queue.as_ref().map(Queue::ranks).filter(|versions| !versions.is_empty()) {
            replay::record(|| Recorded::Waiting(versions));
        }
        if table.workers.iter().all(|worker| table.requested.contains(&worker.member)) {
            cx.windows.drop_earlier(table.generation);
        }
        served.map(|()| StepSummary::default())
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.table.called.clear();
        self.published.gather(cx, self.owner.published())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let workers = gather_workers(cx, Worker::default())?;
        let table = &mut self.table;
        if table.generation == 0 {
            table.earlier = cx.moment(cx.work.next()).updates;
        }
        table.clocks = Clocks::at(0, workers.iter().map(|worker| worker.member));
        cx.pool.iter_mut().for_each(|pool| pool.keep(&workers));
        table.called.clear();
        table.waiting.retain(|worker| workers.contains(worker));
        table.requested.clear();
        (table.workers, table.generation) = (workers, cx.rank.generation());
        if let Ok(first) = part::server(cx) {
            table.leases = first == cx.rank.index();
        }
        // By now every rank has had all of the state that it needs.
        self.owner.keep(self.published.range());
        Ok(())
    }

    fn staleness(&self) -> Option<&Staleness> {
        Some(&self.table.staleness)
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
        if self.owner.answers_alike() { self.published.range().len() } else { 0 }
    }

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(window(job, self.published.parameters(), self.per_lease))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}

/// On a worker, when all meet: receives the parameters of all servers.
pub fn receive_published(cx: &mut Context<'_>, parameters: &mut [f32]) -> Result<()> {
    cx.rank.world().flush_messages()?;
    shards::gather(cx, parameters)
}

#[cfg(test)]
mod tests;
