//! What the first server knows of the workers and of the other servers. Pure.

use super::super::mitigation::Mitigation;
use super::super::part::Outbox;
use super::shard::Shard;
use super::ticket::Ticket;
use super::{Content, Done, Request, TaskOf};
use crate::envelope;
use crate::scheduling::{AgeLimit, Policy, policy};
use crate::work::clock_table::ClockTable;
use crate::work::pool::Worker;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use thalweg_core::JobSpec;
use thalweg_core::report::Staleness;
use thalweg_core::spec::scheduling::Push;

pub(super) struct WorkerTable {
    pub(super) policy: Box<dyn Policy>,
    pub(super) limit: AgeLimit,
    pub(super) mitigation: Mitigation,
    pub(super) push: Push,
    pub(super) clock_table: ClockTable,
    pub(super) workers: Vec<Worker>,
    pub(super) generation: u32,
    /// Workers that have asked for their next task, in that order.
    pub(super) asking: Vec<Worker>,
    /// Members that were called to the next meeting.
    pub(super) called: BTreeSet<usize>,
    /// By member: what was sent to it last.
    pub(super) sent: BTreeMap<usize, Sent>,
    /// Updates in this run; with `earlier` ones, those that the optimizer counts.
    pub(super) version: u64,
    pub(super) earlier: u64,
    pub(super) staleness: Staleness,
    /// Pushes of which some server has its part, by task.
    pub(super) arriving: BTreeMap<TaskOf, Arriving>,
    /// The other servers.
    pub(super) others: Range<usize>,
    /// Decisions that were not sent to them yet.
    tickets: Vec<Ticket>,
    /// Parameters that were sent to workers.
    pub(super) reads: u64,
}

/// A push of which some server has its part.
#[derive(Default)]
pub(super) struct Arriving {
    /// This one has its own.
    pub(super) done: Option<Done>,
    /// The others that have theirs.
    pub(super) at: BTreeSet<usize>,
}

/// Parameters that a worker has been sent.
pub(super) struct Sent {
    /// They hold all updates of this many clocks.
    pub(super) closed: u64,
    /// They were sent ahead, and the worker has not asked since.
    pub(super) is_ahead: bool,
}

impl WorkerTable {
    pub(super) fn new(job: &JobSpec) -> WorkerTable {
        WorkerTable {
            policy: policy(job),
            limit: AgeLimit(job.scheduling.max_age),
            mitigation: Mitigation::of(job),
            push: job.strategy.push(job.scheduling.kind),
            clock_table: ClockTable::new(job.mitigation.warm_start),
            workers: Vec::new(),
            generation: 0,
            asking: Vec::new(),
            called: BTreeSet::new(),
            sent: BTreeMap::new(),
            version: 0,
            earlier: 0,
            staleness: Staleness::default(),
            arriving: BTreeMap::new(),
            others: 0..0,
            tickets: Vec::new(),
            reads: 0,
        }
    }

    /// The ranks from which a message is to come: workers that compute, and servers that are sent what they have computed.
    pub(super) fn awaited(&self, members: &[usize]) -> Vec<usize> {
        let WorkerTable { workers, called, asking, .. } = self;
        let is_awaited = |worker: &&Worker| !called.contains(&worker.member) && !asking.contains(worker);
        let mut awaited: Vec<usize> = workers.iter().filter(is_awaited).map(|worker| worker.member).collect();
        if !awaited.is_empty() {
            awaited.extend(self.others.clone());
        }
        (0..members.len()).filter(|rank| awaited.contains(&members[*rank])).collect()
    }

    pub(super) fn all_are_called(&self) -> bool {
        self.workers.iter().all(|worker| self.called.contains(&worker.member))
    }

    pub(super) fn has_met(&mut self) {
        self.called.clear();
        self.sent.clear();
    }

    /// A new group of these workers. What lost ones have not pushed to all servers has no effect.
    pub(super) fn set_group(
        &mut self,
        generation: u32,
        workers: Vec<Worker>,
        servers: Range<usize>,
        shard: &mut Shard,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        self.clock_table.set_workers(&workers);
        self.asking.retain(|worker| workers.contains(worker));
        let stays = |member: &usize| workers.iter().any(|worker| worker.member == *member);
        self.sent.retain(|member, _| stays(member));
        self.called.clear();
        self.others = servers.start + 1..servers.end;
        (self.workers, self.generation) = (workers, generation);
        let is_gone = |of: &TaskOf| !self.workers.contains(&of.worker);
        let gone: Vec<TaskOf> = self.arriving.keys().copied().filter(is_gone).collect();
        for of in gone {
            self.arriving.remove(&of);
            self.decide(Ticket::Drop(of), Content::Part, shard, outbox)?;
        }
        self.send_tickets(outbox)
    }

    /// Carries out a decision, and keeps it for the other servers. If it makes a worker read, its answer has this content.
    pub(super) fn decide(
        &mut self,
        ticket: Ticket,
        content: Content,
        shard: &mut Shard,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        if !self.others.is_empty() {
            self.tickets.push(ticket.clone());
        }
        shard.execute(ticket, content, outbox)
    }

    /// Sends the other servers what was decided.
    pub(super) fn send_tickets(&mut self, outbox: &mut Outbox) -> Result<(), String> {
        if !self.tickets.is_empty() {
            let request = Request::Tickets(std::mem::take(&mut self.tickets));
            let message = envelope::encode(&request, &[]).map_err(|error| error.message)?;
            self.others.clone().for_each(|server| outbox.send_to_server(server, message.clone()));
        }
        Ok(())
    }
}
