//! A server's rank.

use super::super::part::Outbox;
use super::super::shards::Published;
use super::super::{part, workers};
use super::authority;
use super::follower::{self, Follower};
use super::shard::Shard;
use super::worker_table::WorkerTable;
use super::{Parameters, window};
use crate::context::Context;
use crate::reduction::Description;
use crate::roles::Roles;
use crate::state::State;
use crate::step_report::StepSummary;
use crate::strategy::{NextActivity, Strategy, TransferUnit};
use crate::work::pool::Worker;
use std::ops::Range;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::report::Staleness;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_graph::optimizer::Moment;

pub struct Server {
    shard: Shard,
    role: Role,
    outbox: Outbox,
    published: Published,
}

enum Role {
    /// Of the first server.
    Authority(Box<WorkerTable>),
    Follower(Follower),
}

/// Floating-point operations of the update of a value.
const OPERATIONS: u64 = 10;

impl Server {
    /// With this range of the parameters.
    pub fn new(job: &JobSpec, parameters: Parameters, range: Range<usize>) -> Server {
        let role = match range.start {
            0 => Role::Authority(Box::new(WorkerTable::new(job))),
            _ => Role::Follower(Follower::default()),
        };
        let published = Published::of(parameters.state().len()).of_shard(range);
        Server { shard: Shard::new(job, parameters), role, outbox: Outbox::default(), published }
    }

    /// Answers those that may go on, and handles one message.
    fn decide(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let Server { shard, role: Role::Authority(table), outbox, .. } = self else { return Ok(()) };
        let (schedule, meets) = (cx.schedule(), cx.meeting_called());
        let mut pool = cx.pool.take().ok_or_else(|| Error::internal("a server without rows"))?;
        let moment = |updates, step| Moment { updates, rate: schedule.rate(step) };
        let members = cx.rank.member_ids();
        let mut handler = authority::Handler { table, shard, pool: &mut pool, moment: &moment, meets };
        let answered = handler.answer(outbox).map_err(Error::internal);
        let from = handler.table.awaited(&members);
        let served = match (answered, from.is_empty()) {
            (Err(error), _) => Err(error),
            (Ok(()), true) => outbox.deliver(cx),
            (Ok(()), false) => part::serve(cx, &mut handler, OPERATIONS, &from, outbox),
        };
        cx.pool = Some(pool);
        served?;
        if from.is_empty() && !table.asking.is_empty() {
            return Err(Error::internal("every worker waits for another one to complete a clock"));
        }
        Ok(())
    }

    /// Handles one message, of the first server if there is one.
    fn apply_tickets(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let Server { shard, role: Role::Follower(follower), outbox, .. } = self else { return Ok(()) };
        let members = cx.rank.member_ids();
        let mut from = Roles::of(cx.job).worker_ranks(&members);
        from.push(part::server(cx)?);
        let mut handler = follower::Handler { follower, shard };
        part::serve(cx, &mut handler, OPERATIONS, &from, outbox)
    }
}

impl Strategy for Server {
    fn next(&mut self, cx: &mut Context<'_>) -> Result<NextActivity> {
        let meets = match &self.role {
            Role::Authority(table) => table.all_are_called(),
            Role::Follower(follower) => {
                follower.meets || Roles::of(cx.job).worker_ranks(&cx.rank.member_ids()).is_empty()
            }
        };
        Ok(if meets { NextActivity::Meeting } else { NextActivity::Unit })
    }

    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        match self.role {
            Role::Authority(_) => self.decide(cx)?,
            Role::Follower(_) => self.apply_tickets(cx)?,
        }
        Ok(StepSummary::default())
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        match &mut self.role {
            Role::Authority(table) => table.has_met(),
            Role::Follower(follower) => follower.meets = false,
        }
        self.published.gather(cx, self.shard.parameters.state().parameters())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        let workers = workers::gather_workers(cx, Worker::default())?;
        let generation = cx.rank.generation();
        // If one is gone, the job ends.
        let servers = Roles::of(cx.job).servers();
        match &mut self.role {
            Role::Authority(table) => {
                if table.generation == 0 {
                    table.earlier = cx.moment(cx.work.next()).updates;
                }
                let changed =
                    table.set_group(generation, workers, servers, &mut self.shard, &mut self.outbox);
                changed.map_err(Error::internal)?;
            }
            Role::Follower(follower) => {
                *follower = Follower { first: servers.start, generation, meets: false };
            }
        }
        // By now every rank has had all of the state that it needs.
        self.shard.parameters.keep(self.published.range());
        Ok(())
    }

    fn staleness(&self) -> Option<&Staleness> {
        match &self.role {
            Role::Authority(table) => Some(&table.staleness),
            Role::Follower(_) => None,
        }
    }

    fn published(&self) -> &[f32] {
        self.published.values(self.shard.parameters.state().parameters())
    }

    fn state(&self) -> &State {
        self.shard.parameters.state()
    }

    fn state_mut(&mut self) -> &mut State {
        self.shard.parameters.state_mut()
    }

    fn agree_on_transfer_unit(&self, _: &mut Context<'_>) -> Result<TransferUnit> {
        Ok(TransferUnit::State)
    }

    fn message_window(&self, job: &JobSpec) -> Option<usize> {
        Some(window(job, self.published.parameters()))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
