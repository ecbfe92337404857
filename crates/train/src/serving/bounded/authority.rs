//! The first server, which has the clocks: what it decides about each message. Pure.

use super::super::part::{Outbox, Part};
#[cfg(test)]
use super::super::replay::{self, Recorded};
use super::desk::{Arriving, Desk, Sent};
use super::shard::Shard;
use super::ticket::{At, Ticket};
use super::{Answer, Content, Done, Request, TaskOf};
use crate::envelope;
use crate::scheduling::Admission;
use crate::step_report::{RowChecksum, StepReport};
use crate::work::clock_table::{NextTask, OpenClock, Share, ShareProgress, Task};
use crate::work::pool::{Finished, Pool, Worker};
use thalweg_core::spec::scheduling::Push;
use thalweg_graph::optimizer::Moment;

/// Desk, shard and rows for one message.
pub(super) struct Handler<'a> {
    pub(super) desk: &'a mut Desk,
    pub(super) shard: &'a mut Shard,
    pub(super) pool: &'a mut Pool,
    /// The moment of an update after so many, in that step.
    pub(super) moment: &'a dyn Fn(u64, u64) -> Moment,
    /// Whether the coordinator has called a meeting.
    pub(super) meets: bool,
}

impl Part for Handler<'_> {
    fn receive(&mut self, from: usize, message: &[u8], outbox: &mut Outbox) -> Result<(), String> {
        let (request, values) = envelope::decode::<Request>(message)?;
        match request {
            Request::Ask(worker) if worker.member == from => {
                if self.desk.workers.contains(&worker) {
                    // Whatever it had read, it has not any more.
                    self.desk.sent.remove(&worker.member);
                    self.go_on(worker, outbox)?;
                }
            }
            Request::Push(done) if done.of.worker.member == from => {
                self.check(&done)?;
                self.shard.stage(&done, values)?;
                self.note_arrival(done.of, outbox, |arriving| arriving.done = Some(done))?;
            }
            Request::Staged(of) if self.desk.others.contains(&from) => {
                self.note_arrival(of, outbox, |arriving| arriving.at.extend([from]))?;
            }
            other => return Err(format!("sent the first server what is not for it: {other:?}")),
        }
        self.desk.send_tickets(outbox)
    }
}

impl Handler<'_> {
    fn decide(&mut self, ticket: Ticket, content: Content, outbox: &mut Outbox) -> Result<(), String> {
        self.desk.decide(ticket, content, self.shard, outbox)
    }

    /// Refuses a push that is not of the worker's task. Those of lost workers have none any more.
    fn check(&self, Done { of, version, report }: &Done) -> Result<(), String> {
        if !self.desk.workers.contains(&of.worker) {
            return Ok(());
        }
        let Some((task, _)) = self.desk.table.task(of.worker).filter(|(task, _)| task.number == of.task)
        else {
            return Err(format!("pushed task {}, which it does not have", of.task));
        };
        if report.rows != RowChecksum::of(&task.piece.rows) {
            return Err(format!("pushed clock {} made of other rows than its own", task.clock));
        }
        if *version > self.desk.version {
            return Err(format!("has read version {version}, which does not exist"));
        }
        Ok(())
    }

    /// A server has its part of a push. When all have, it is decided what becomes of it.
    fn note_arrival(
        &mut self,
        of: TaskOf,
        outbox: &mut Outbox,
        note: impl FnOnce(&mut Arriving),
    ) -> Result<(), String> {
        if !self.desk.workers.contains(&of.worker) {
            // It was lost before this message was handled: others compute its task.
            return self.decide(Ticket::Drop(of), Content::Part, outbox);
        }
        let arriving = self.desk.arriving.entry(of).or_default();
        note(arriving);
        let Some(done) = arriving.done.filter(|_| arriving.at.len() == self.desk.others.len()) else {
            return Ok(());
        };
        self.desk.arriving.remove(&of);
        self.take(done, outbox)?;
        self.go_on(of.worker, outbox)
    }

    /// A worker asks for its next task.
    fn go_on(&mut self, worker: Worker, outbox: &mut Outbox) -> Result<(), String> {
        if !self.desk.asking.contains(&worker) {
            self.desk.asking.push(worker);
        }
        self.close_clocks(outbox)?;
        self.answer(outbox)
    }

    /// The update of a task has its effect, is held for its clock, or comes too late.
    fn take(&mut self, done: Done, outbox: &mut Outbox) -> Result<(), String> {
        let Done { of, version, report } = done;
        let worker = of.worker;
        let Some((task, owner)) = self.desk.table.task(worker).cloned() else { return Ok(()) };
        let mut held = None;
        match self.desk.policy.admit(&self.desk.table.clocks, owner) {
            Admission::Apply if !self.desk.limit.admits(self.desk.version - version) => {
                self.pool.drop_rows(&task.piece.rows);
                self.decide(Ticket::Drop(of), Content::Part, outbox)?;
            }
            Admission::Apply => {
                self.apply(of, &task, version, outbox)?;
                self.count(worker.member, owner, &task.piece.rows, (version, report));
                self.desk.version += 1;
                #[cfg(test)]
                replay::record(|| Recorded::AppliedTask { member: worker.member, task });
            }
            Admission::Hold => held = Some(of.task),
            Admission::Drop => self.decide(Ticket::Drop(of), Content::Part, outbox)?,
        }
        self.desk.table.arrive(worker, ShareProgress::Arrived { worker, held, report, version });
        Ok(())
    }

    /// The update of a task has its effect at once.
    fn apply(&mut self, of: TaskOf, task: &Task, version: u64, outbox: &mut Outbox) -> Result<(), String> {
        let Handler { desk, pool, moment, .. } = self;
        let moment = moment(desk.earlier + desk.version, pool.sizes().step_at(pool.rows()));
        let moment = desk.mitigation.moment(moment, desk.version - version);
        let share = task.piece.rows.len() as f32 / task.piece.of_step as f32;
        self.decide(Ticket::Apply { of, at: moment.into(), share }, Content::Part, outbox)
    }

    /// These rows are in the parameters now.
    fn count(&mut self, member: usize, owner: usize, rows: &[u64], (version, report): (u64, StepReport)) {
        let Handler { desk, pool, .. } = self;
        pool.count(rows);
        pool.finish(Finished { member, rows: rows.len() as u64, report });
        let clocks = &desk.table.clocks;
        desk.staleness.add(desk.version - version, clocks.fastest().saturating_sub(clocks.of(owner)));
    }

    /// Closes the clocks of which enough has arrived: what was held for them has its effect, the rest of their rows is
    /// dropped.
    fn close_clocks(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        while let Some(OpenClock { step, shares }) = self.desk.table.close(&*self.desk.policy) {
            self.apply_held(step.step, step.of_step, &shares, outbox)?;
            for share in shares {
                if !matches!(share.progress, ShareProgress::Arrived { .. }) {
                    self.pool.drop_rows(&share.rows);
                }
            }
            if self.desk.policy.sends_ahead() {
                self.send_ahead(outbox)?;
            }
        }
        Ok(())
    }

    /// The updates held for a clock become one, divided by the rows of which they are made.
    fn apply_held(
        &mut self,
        step: u64,
        of_step: usize,
        shares: &[Share],
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        let (mut held_of, mut counted, mut rows) = (Vec::new(), Vec::new(), 0);
        for share in shares {
            if let ShareProgress::Arrived { worker, held: Some(task), report, version } = share.progress {
                held_of.push(TaskOf { worker, task });
                counted.push((worker.member, &share.rows, (version, report)));
                rows += share.rows.len();
            }
        }
        if held_of.is_empty() {
            return Ok(());
        }
        let at = (self.moment)(self.desk.earlier + self.desk.version, step).into();
        let ticket = Ticket::ApplyAll { of: held_of, at, scale: of_step as f32 / rows as f32 };
        self.decide(ticket, Content::Part, outbox)?;
        #[cfg(test)]
        replay::record(|| Recorded::Closed {
            of_step,
            shares: counted.iter().map(|(worker, rows, _)| (*worker, rows.to_vec())).collect(),
        });
        for (member, rows, of) in counted {
            self.count(member, member, rows, of);
        }
        self.desk.version += 1;
        Ok(())
    }

    /// Sends parameters to the workers that compute, unless some are on the way to them.
    fn send_ahead(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        let closed = self.desk.table.clocks.closed();
        let workers: Vec<Worker> = self.desk.table.computing().collect();
        for worker in workers {
            if self.desk.sent.get(&worker.member).is_some_and(|sent| !sent.is_ahead) {
                #[cfg(test)]
                replay::record(|| Recorded::SentAhead { member: worker.member });
                self.send_parameters(worker, Content::Ahead { version: self.desk.version }, outbox)?;
                self.desk.sent.insert(worker.member, Sent { closed, is_ahead: true });
            }
        }
        Ok(())
    }

    /// Answers the workers that may go on.
    pub(super) fn answer(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        loop {
            let before = self.desk.table.clocks.clone();
            let mut waiting = Vec::new();
            for worker in std::mem::take(&mut self.desk.asking) {
                let Handler { desk, pool, meets, .. } = self;
                let open = || if *meets { None } else { pool.next_step() };
                match desk.table.next(worker, &*desk.policy, open) {
                    NextTask::Compute(task) => self.hand_out(worker, task, outbox)?,
                    NextTask::Wait => waiting.push(worker),
                    NextTask::Meet => {
                        desk.called.insert(worker.member);
                        self.call(worker, outbox)?;
                    }
                }
            }
            self.desk.asking = waiting;
            // A worker without rows of a clock completes it when it asks, which others may wait for.
            if self.desk.table.clocks == before {
                break;
            }
        }
        self.desk.send_tickets(outbox)
    }

    /// Calls a worker to a meeting. When all are called, the other servers hear of it.
    fn call(&mut self, worker: Worker, outbox: &mut Outbox) -> Result<(), String> {
        let generation = self.desk.generation;
        let content = Content::Meeting { generation };
        self.desk.called.insert(worker.member);
        self.send(worker, content, outbox)?;
        match self.desk.all_are_called() {
            true => self.decide(Ticket::Meet { generation }, Content::Part, outbox),
            false => Ok(()),
        }
    }

    /// Sends a task, with parameters unless the worker has a copy that it may read.
    fn hand_out(&mut self, worker: Worker, task: Task, outbox: &mut Outbox) -> Result<(), String> {
        let (member, closed) = (worker.member, self.desk.table.clocks.closed());
        let needed = match self.desk.policy.sends_ahead() {
            true => closed,
            false => self.desk.policy.reads(task.clock),
        };
        let has_copy = self.desk.sent.get(&member).is_some_and(|sent| sent.closed >= needed);
        let copy = self.desk.sent.get_mut(&member).filter(|_| has_copy && self.desk.push == Push::Delta);
        let reads = copy.is_none();
        match copy {
            Some(copy) => copy.is_ahead = false,
            None => drop(self.desk.sent.insert(member, Sent { closed, is_ahead: false })),
        }
        #[cfg(test)]
        replay::record(|| Recorded::Began { member, clock: task.clock, reads });
        let content = Content::Task { task, version: self.desk.version };
        match reads {
            true => self.send_parameters(worker, content, outbox),
            false => self.send(worker, content, outbox),
        }
    }

    /// Sends the parameters as a worker is to read them: always with its own updates.
    fn send_parameters(
        &mut self,
        worker: Worker,
        content: Content,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        let desk = &mut *self.desk;
        desk.reads += 1;
        let updates = desk.earlier + desk.version..;
        let held = updates.zip(desk.table.held(worker)).map(|(update, (step, task))| {
            let at: At = (self.moment)(update, step).into();
            (TaskOf { worker, task }, at)
        });
        let ticket = Ticket::Read { worker, number: desk.reads, own: held.collect() };
        self.decide(ticket, content, outbox)
    }

    /// Sends an answer without values.
    fn send(&self, worker: Worker, content: Content, outbox: &mut Outbox) -> Result<(), String> {
        let answer = Answer { worker, number: self.desk.reads, content };
        outbox.send(worker.member, envelope::encode(&answer, &[]).map_err(|error| error.message)?);
        Ok(())
    }
}
