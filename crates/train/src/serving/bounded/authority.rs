//! The first server, which has the clocks: what it decides about each message. Pure.

use super::super::part::{Outbox, Part};
#[cfg(test)]
use super::super::replay::{self, Recorded};
use super::shard::Shard;
use super::ticket::{At, Ticket};
use super::worker_table::{Arriving, Sent, WorkerTable};
use super::{Answer, Content, Done, Request, TaskOf};
use crate::envelope;
use crate::scheduling::Admission;
use crate::step_report::{RowChecksum, StepReport};
use crate::work::clock_table::{NextTask, OpenClock, Share, ShareProgress, Task};
use crate::work::pool::{Finished, Pool, Worker};
use thalweg_core::spec::scheduling::Push;
use thalweg_graph::optimizer::Moment;

/// Worker table, shard and rows for one message.
pub(super) struct Handler<'a> {
    pub(super) table: &'a mut WorkerTable,
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
                if self.table.workers.contains(&worker) {
                    // Whatever it had read, it has not any more.
                    self.table.sent.remove(&worker.member);
                    self.go_on(worker, outbox)?;
                }
            }
            Request::Push(done) if done.of.worker.member == from => {
                self.check(&done)?;
                self.shard.stage(&done, values)?;
                self.note_arrival(done.of, outbox, |arriving| arriving.done = Some(done))?;
            }
            Request::Abandon(of) if of.worker.member == from => {
                if self.table.workers.contains(&of.worker) {
                    if !self.table.clock_table.abandon(of.worker, of.task) {
                        return Err(format!("abandoned task {}, whose clock is open", of.task));
                    }
                    #[cfg(test)]
                    replay::record(|| Recorded::Abandoned { member: from });
                    self.go_on(of.worker, outbox)?;
                }
            }
            Request::Staged(of) if self.table.others.contains(&from) => {
                self.note_arrival(of, outbox, |arriving| arriving.at.extend([from]))?;
            }
            other => return Err(format!("sent the first server what is not for it: {other:?}")),
        }
        self.table.send_tickets(outbox)
    }
}

impl Handler<'_> {
    fn decide(&mut self, ticket: Ticket, content: Content, outbox: &mut Outbox) -> Result<(), String> {
        self.table.decide(ticket, content, self.shard, outbox)
    }

    /// Refuses a push that is not of the worker's task. Those of lost workers have none any more.
    fn check(&self, Done { of, version, report }: &Done) -> Result<(), String> {
        if !self.table.workers.contains(&of.worker) {
            return Ok(());
        }
        let Some((task, _)) =
            self.table.clock_table.task(of.worker).filter(|(task, _)| task.number == of.task)
        else {
            return Err(format!("pushed task {}, which it does not have", of.task));
        };
        if report.rows != RowChecksum::of(&task.piece.rows) {
            return Err(format!("pushed clock {} made of other rows than its own", task.clock));
        }
        if *version > self.table.version {
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
        if !self.table.workers.contains(&of.worker) {
            // It was lost before this message was handled: others compute its task.
            return self.decide(Ticket::Drop(of), Content::Part, outbox);
        }
        let arriving = self.table.arriving.entry(of).or_default();
        note(arriving);
        let Some(done) = arriving.done.filter(|_| arriving.at.len() == self.table.others.len()) else {
            return Ok(());
        };
        self.table.arriving.remove(&of);
        self.take(done, outbox)?;
        self.go_on(of.worker, outbox)
    }

    /// A worker asks for its next task.
    fn go_on(&mut self, worker: Worker, outbox: &mut Outbox) -> Result<(), String> {
        if !self.table.asking.contains(&worker) {
            self.table.asking.push(worker);
        }
        self.close_clocks(outbox)?;
        self.answer(outbox)
    }

    /// The update of a task has its effect, is held for its clock, or comes too late.
    fn take(&mut self, done: Done, outbox: &mut Outbox) -> Result<(), String> {
        let Done { of, version, report } = done;
        let worker = of.worker;
        let Some((task, owner)) = self.table.clock_table.task(worker).cloned() else { return Ok(()) };
        let mut held = None;
        match self.table.policy.admit(&self.table.clock_table.clocks, owner) {
            Admission::Apply if !self.table.limit.admits(self.table.version - version) => {
                self.pool.drop_rows(&task.piece.rows);
                self.decide(Ticket::Drop(of), Content::Part, outbox)?;
            }
            Admission::Apply => {
                self.apply(of, &task, version, outbox)?;
                self.count(worker.member, owner, &task.piece.rows, (version, report));
                self.table.version += 1;
                #[cfg(test)]
                replay::record(|| Recorded::AppliedTask { member: worker.member, task });
            }
            Admission::Hold => held = Some(of.task),
            Admission::Drop => self.decide(Ticket::Drop(of), Content::Part, outbox)?,
        }
        self.table.clock_table.arrive(worker, ShareProgress::Arrived { worker, held, report, version });
        Ok(())
    }

    /// The update of a task has its effect at once.
    fn apply(&mut self, of: TaskOf, task: &Task, version: u64, outbox: &mut Outbox) -> Result<(), String> {
        let Handler { table, pool, moment, .. } = self;
        let moment = moment(table.earlier + table.version, pool.sizes().step_at(pool.rows()));
        let moment = table.mitigation.moment(moment, table.version - version);
        let share = task.piece.rows.len() as f32 / task.piece.of_step as f32;
        self.decide(Ticket::Apply { of, at: moment.into(), share }, Content::Part, outbox)
    }

    /// These rows are in the parameters now.
    fn count(&mut self, member: usize, owner: usize, rows: &[u64], (version, report): (u64, StepReport)) {
        let Handler { table, pool, .. } = self;
        pool.count(rows);
        pool.finish(Finished { member, rows: rows.len() as u64, report });
        let clocks = &table.clock_table.clocks;
        table.staleness.add(table.version - version, clocks.fastest().saturating_sub(clocks.of(owner)));
    }

    /// Closes the clocks of which enough has arrived: what was held for them has its effect, the rest of their rows is
    /// dropped.
    fn close_clocks(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        while let Some(OpenClock { step, shares }) = self.table.clock_table.close(&*self.table.policy) {
            self.apply_held(step.step, step.of_step, &shares, outbox)?;
            for share in shares {
                if !matches!(share.progress, ShareProgress::Arrived { .. }) {
                    self.pool.drop_rows(&share.rows);
                }
            }
            if self.table.policy.tells_late_workers() {
                let late: Vec<(Worker, u64)> = self.table.clock_table.late().collect();
                late.into_iter()
                    .try_for_each(|(worker, task)| self.send(worker, Content::Closed { task }, outbox))?;
            }
            if self.table.policy.sends_ahead() {
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
        let at = (self.moment)(self.table.earlier + self.table.version, step).into();
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
        self.table.version += 1;
        Ok(())
    }

    /// Sends parameters to the workers that compute, unless some are on the way to them.
    fn send_ahead(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        let closed = self.table.clock_table.clocks.closed();
        let workers: Vec<Worker> = self.table.clock_table.computing().collect();
        for worker in workers {
            if self.table.sent.get(&worker.member).is_some_and(|sent| !sent.is_ahead) {
                #[cfg(test)]
                replay::record(|| Recorded::SentAhead { member: worker.member });
                self.send_parameters(worker, Content::Ahead { version: self.table.version }, outbox)?;
                self.table.sent.insert(worker.member, Sent { closed, is_ahead: true });
            }
        }
        Ok(())
    }

    /// Answers the workers that may go on.
    pub(super) fn answer(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        loop {
            let before = self.table.clock_table.clocks.clone();
            let mut waiting = Vec::new();
            for worker in std::mem::take(&mut self.table.asking) {
                let Handler { table, pool, meets, .. } = self;
                let open = || if *meets { None } else { pool.next_step() };
                match table.clock_table.next(worker, &*table.policy, open) {
                    NextTask::Compute(task) => self.hand_out(worker, task, outbox)?,
                    NextTask::Wait => waiting.push(worker),
                    NextTask::Meet => {
                        table.called.insert(worker.member);
                        self.call(worker, outbox)?;
                    }
                }
            }
            self.table.asking = waiting;
            // A worker without rows of a clock completes it when it asks, which others may wait for.
            if self.table.clock_table.clocks == before {
                break;
            }
        }
        self.table.send_tickets(outbox)
    }

    /// Calls a worker to a meeting. When all are called, the other servers hear of it.
    fn call(&mut self, worker: Worker, outbox: &mut Outbox) -> Result<(), String> {
        let generation = self.table.generation;
        let content = Content::Meeting { generation };
        self.table.called.insert(worker.member);
        self.send(worker, content, outbox)?;
        match self.table.all_are_called() {
            true => self.decide(Ticket::Meet { generation }, Content::Part, outbox),
            false => Ok(()),
        }
    }

    /// Sends a task, with parameters unless the worker has a copy that it may read.
    fn hand_out(&mut self, worker: Worker, task: Task, outbox: &mut Outbox) -> Result<(), String> {
        let (member, closed) = (worker.member, self.table.clock_table.clocks.closed());
        let needed = match self.table.policy.sends_ahead() {
            true => closed,
            false => self.table.policy.reads(task.clock),
        };
        let has_copy = self.table.sent.get(&member).is_some_and(|sent| sent.closed >= needed);
        let copy = self.table.sent.get_mut(&member).filter(|_| has_copy && self.table.push == Push::Delta);
        let reads = copy.is_none();
        match copy {
            Some(copy) => copy.is_ahead = false,
            None => drop(self.table.sent.insert(member, Sent { closed, is_ahead: false })),
        }
        #[cfg(test)]
        replay::record(|| Recorded::Began { member, clock: task.clock, reads });
        let content = Content::Task { task, version: self.table.version };
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
        let table = &mut *self.table;
        table.reads += 1;
        let updates = table.earlier + table.version..;
        let held = updates.zip(table.clock_table.held(worker)).map(|(update, (step, task))| {
            let at: At = (self.moment)(update, step).into();
            (TaskOf { worker, task }, at)
        });
        let ticket = Ticket::Read { worker, number: table.reads, own: held.collect() };
        self.decide(ticket, content, outbox)
    }

    /// Sends an answer without values.
    fn send(&self, worker: Worker, content: Content, outbox: &mut Outbox) -> Result<(), String> {
        let answer = Answer { worker, number: self.table.reads, content };
        outbox.send(worker.member, envelope::encode(&answer, &[]).map_err(|error| error.message)?);
        Ok(())
    }
}
