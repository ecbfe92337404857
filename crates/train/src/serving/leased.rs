//! A server of workers at their own speed: it hands out leases on rows, and updates have their effect when they arrive.
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

use super::owner::Owner;
use super::part::{self, Outbox, Part};
#[cfg(test)]
use super::replay::{self, Recorded};
use crate::context::Context;
use crate::envelope::{self, Values};
use crate::known_bugs;
use crate::reduction::Description;
use crate::scheduling::{Admission, Clocks, Decision, Policy, policy};
use crate::state::State;
use crate::step_report::{StepReport, StepSummary};
use crate::strategy::{NextActivity, Strategy, TransferUnit};
use crate::work::pool::{Finished, Lease, Pool, Worker};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::report::Staleness;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Moment;

/// What precedes the values of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Request {
    worker: Worker,
    done: Option<Done>,
}

/// A lease is computed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Done {
    lease: u64,
    /// The server's version that the update was computed from.
    version: u64,
    rows: Vec<u64>,
    report: StepReport,
}

/// What precedes the values of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    worker: Worker,
    generation: u32,
    version: u64,
    /// None calls the worker to a meeting.
    lease: Option<Lease>,
}

/// Bytes before the values: most are row numbers, in the request or in the answer.
fn header(job: &JobSpec, per_lease: usize) -> usize {
    256 + 32 * per_lease + 10 * (job.train.global_batch.div_ceil(job.engine.workers.max(1)) + 1) * per_lease
}

/// The window of messages, which all ranks must choose the same.
pub fn window(job: &JobSpec, values: usize, per_lease: usize) -> usize {
    part::window(values, header(job, per_lease))
}

/// A worker's side.
#[derive(Debug, Default)]
pub struct Client {
    worker: Worker,
    phase: Phase,
    version: u64,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Idle,
    /// A request is under way.
    Waiting,
    Holding(Lease),
}

impl Client {
    /// What this worker does next. `take` gets the values of an answer. Waits for the server.
    pub fn next(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(Values<'_>) -> std::result::Result<(), String>,
    ) -> Result<NextActivity> {
        loop {
            match self.phase {
                Phase::Holding(_) => return Ok(NextActivity::Unit),
                Phase::Idle => {
                    let request = Request { worker: self.worker, done: None };
                    part::request(cx, envelope::encode(&request, &[])?)?;
                    self.phase = Phase::Waiting;
                }
                Phase::Waiting => {
                    let bytes = part::await_answer(cx)?;
                    let read = envelope::decode::<Answer>(&bytes).and_then(|(answer, values)| {
                        if answer.worker == self.worker && values.len() > 0 {
                            take(values)?;
                        }
                        Ok(answer)
                    });
                    let server = cx.rank.member_id_at(part::server(cx)?);
                    let answer = read.map_err(|cause| part::invalid(server, cause))?;
                    // One to an earlier worker with this id is dropped.
                    if answer.worker == self.worker {
                        self.version = answer.version;
                        match answer.lease {
                            Some(lease) => self.phase = Phase::Holding(lease),
                            None => self.phase = Phase::Idle,
                        }
                        // Of a call from before a change of the group nobody else may know.
                        if matches!(self.phase, Phase::Idle) && answer.generation == cx.rank.generation() {
                            return Ok(NextActivity::Meeting);
                        }
                    }
                }
            }
        }
    }

    /// The lease that this worker has.
    pub fn lease(&self) -> Result<&Lease> {
        match &self.phase {
            Phase::Holding(lease) => Ok(lease),
            Phase::Idle | Phase::Waiting => Err(Error::internal("a unit without a lease")),
        }
    }

    /// The rows of the lease are computed, as the report says.
    pub fn push(&mut self, cx: &mut Context<'_>, report: &StepReport, values: &[f32]) -> Result<()> {
        let rows = cx.compute.consumed().to_vec();
        let done = Done { lease: self.lease()?.number, version: self.version, rows, report: *report };
        let request = Request { worker: self.worker, done: Some(done) };
        part::request(cx, envelope::encode(&request, values)?)?;
        self.phase = Phase::Waiting;
        Ok(())
    }

    /// A new group: the server learns which worker this is. All ranks must call it or [`Server`]'s.
    pub fn change(&mut self, cx: &mut Context<'_>) -> Result<()> {
        if self.worker.since == 0 {
            self.worker = Worker { member: cx.rank.member_id(), since: cx.rank.generation() };
        }
        gather_workers(cx, self.worker).map(drop)
    }
}

/// All workers of the group, with the generation since which each is a member.
fn gather_workers(cx: &mut Context<'_>, mine: Worker) -> Result<Vec<Worker>> {
    let all = cx.rank.world().all_gather("workers", &mine.since.to_le_bytes())?;
    let since = |bytes: &Vec<u8>| bytes.as_chunks().0.first().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let members = cx.rank.member_ids();
    let all = members.into_iter().zip(&all).map(|(member, bytes)| Worker { member, since: since(bytes) });
    // Servers have joined in no generation.
    Ok(all.filter(|worker| worker.since > 0).collect())
}

/// The server's rank.
pub struct Server<O> {
    pub owner: O,
    desk: Desk,
    outbox: Outbox,
    per_lease: usize,
}

/// What a server knows of its workers.
struct Desk {
    policy: Box<dyn Policy>,
    clocks: Clocks,
    workers: Vec<Worker>,
    generation: u32,
    /// Members that were called to the next meeting.
    called: BTreeSet<usize>,
    /// Updates that had their effect in this run; with `earlier` ones, those that the optimizer counts.
    version: u64,
    earlier: u64,
    staleness: Staleness,
}

/// Desk, owner and pool for one message.
struct Handler<'a, O> {
    desk: &'a mut Desk,
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
        let desk = Desk {
            policy: policy(job.scheduling.kind),
            clocks: Clocks::default(),
            workers: Vec::new(),
            generation: 0,
            called: BTreeSet::new(),
            version: 0,
            earlier: 0,
            staleness: Staleness::default(),
        };
        Server { owner, desk, outbox: Outbox::default(), per_lease }
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
        if !self.desk.workers.contains(&request.worker) && !known_bugs::applies_repeats() {
            // It was lost before this message was handled: its lease went back to the pool.
            return Ok(());
        }
        let mut answer = Vec::new();
        match &request.done {
            Some(done) => self.apply(request.worker, done, values, &mut answer)?,
            None => answer.extend_from_slice(self.owner.greet()),
        }
        self.answer(request.worker, &answer, outbox)
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
        let Handler { desk, owner, pool, moment, .. } = self;
        if !pool.has(worker, done.lease) {
            return Err(format!("pushed lease {}, which it does not have", done.lease));
        }
        if values.len() != owner.state().len() || !values.are_finite() || done.version > desk.version {
            return Err(format!("pushed {} values, or values that are not finite", values.len()));
        }
        if desk.policy.admit(&desk.clocks, worker.member) != Admission::Apply {
            return Err("pushed an update that is to wait for others".into());
        }
        owner.apply(values, moment(desk.earlier + desk.version, pool.rows()), answer);
        #[cfg(test)]
        replay::record(|| Recorded::Applied {
            member: worker.member,
            pieces: pool.pieces(done.lease),
            age: desk.version - done.version,
        });
        pool.commit(worker, done.lease, &done.rows);
        pool.finish(Finished { member: worker.member, rows: done.rows.len() as u64, report: done.report });
        let behind = desk.clocks.fastest() - desk.clocks.of(worker.member);
        desk.staleness.add(desk.version - done.version, behind);
        desk.version += 1;
        desk.clocks.complete(worker.member);
        Ok(())
    }

    /// Answers with the next lease, or calls the worker to a meeting.
    fn answer(
        &mut self,
        worker: Worker,
        values: &[f32],
        outbox: &mut Outbox,
    ) -> std::result::Result<(), String> {
        let Handler { desk, pool, meets, .. } = self;
        if desk.policy.may_begin(&desk.clocks, worker.member) != Decision::Go {
            return Err("is to wait for others".into());
        }
        let lease = if *meets { None } else { pool.hand_out(worker) };
        if lease.is_none() {
            desk.called.insert(worker.member);
        }
        let answer = Answer { worker, generation: desk.generation, version: desk.version, lease };
        outbox.send(worker.member, envelope::encode(&answer, values).map_err(|error| error.message)?);
        Ok(())
    }
}

impl<O: Owner> Strategy for Server<O> {
    fn next(&mut self, _: &mut Context<'_>) -> Result<NextActivity> {
        let is_called = |worker: &Worker| self.desk.called.contains(&worker.member);
        match self.desk.workers.iter().all(is_called) {
            true => Ok(NextActivity::Meeting),
            false => Ok(NextActivity::Unit),
        }
    }

    /// Handles one request.
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        let (schedule, meets) = (cx.schedule(), cx.meeting_called());
        let mut pool = cx.pool.take().ok_or_else(|| Error::internal("a server without a pool"))?;
        let members = cx.rank.member_ids();
        let waits_for = |rank: &usize| {
            let of = |worker: &&Worker| worker.member == members[*rank];
            self.desk.workers.iter().find(of).is_some_and(|worker| !self.desk.called.contains(&worker.member))
        };
        let from: Vec<usize> = (0..members.len()).filter(waits_for).collect();
        let (sizes, operations) = (pool.sizes(), self.owner.operations());
        let moment = |updates, rows| Moment { updates, rate: schedule.rate(sizes.step_at(rows)) };
        let Server { owner, desk, outbox, .. } = self;
        let mut handler = Handler { desk, owner, pool: &mut pool, moment: &moment, meets };
        let served = part::serve(cx, &mut handler, operations, &from, outbox);
        cx.pool = Some(pool);
        served.map(|()| StepSummary::default())
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        self.desk.called.clear();
        send_published(cx, self.owner.published())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let workers = gather_workers(cx, Worker::default())?;
        let desk = &mut self.desk;
        if desk.generation == 0 {
            desk.earlier = cx.moment(cx.work.next()).updates;
        }
        desk.clocks = Clocks::at(0, workers.iter().map(|worker| worker.member));
        cx.pool.iter_mut().for_each(|pool| pool.keep(&workers));
        desk.called.clear();
        (desk.workers, desk.generation) = (workers, cx.rank.generation());
        Ok(())
    }

    fn staleness(&self) -> Option<&Staleness> {
        Some(&self.desk.staleness)
    }

    fn published(&self) -> &[f32] {
        self.owner.published()
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

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(window(job, self.owner.state().len(), self.per_lease))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}

/// On the server, when all meet: sends the parameters that it publishes.
pub fn send_published(cx: &mut Context<'_>, published: &[f32]) -> Result<()> {
    cx.rank.world().flush_messages()?;
    let (server, mut published) = (cx.rank.index(), published.to_vec());
    cx.rank.world().broadcast_into("parameters", server, &mut published)
}

/// On a worker: receives them.
pub fn receive_published(cx: &mut Context<'_>, parameters: &mut [f32]) -> Result<()> {
    cx.rank.world().flush_messages()?;
    let server = part::server(cx)?;
    cx.rank.world().broadcast_into("parameters", server, parameters)
}
