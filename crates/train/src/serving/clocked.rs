//! A server of workers that are all at the same step: it holds their updates until every worker has sent its own, and
//! answers all of them.
//!
//! ```text
//! worker:   push (report, values) of the unit that begins at step t;  pull (summary, values)
//! server:   held[i] = push of worker i, as the policy says
//!           when all have completed the clock:  owner.apply_all(held, in the order of ranks);  answer all
//! ```
//!
//! What was held when a generation of the group ends is dropped: if the unit is not complete on the server, all workers
//! run it again, and their rows are divided anew.

use super::owner::Owner;
use super::part::{self, Outbox, Part};
#[cfg(test)]
use super::replay::{self, Recorded};
use crate::context::Context;
use crate::envelope;
use crate::known_bugs;
use crate::reduction::Description;
use crate::registry;
use crate::roles::Roles;
use crate::scheduling::{Admission, Clocks, Decision, Policy, policy};
use crate::state::State;
use crate::step_report::{Requests, StepReport, StepSummary};
use crate::strategy::{Strategy, TransferUnit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thalweg_cluster::regroup::MembershipChange;
use thalweg_core::spec::engine::MAX_WORKERS;
use thalweg_core::{JobSpec, Result};
use thalweg_graph::optimizer::Moment;

/// What precedes the values of an update.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Push {
    generation: u32,
    step: u64,
    report: StepReport,
}

/// What precedes the values of the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pull {
    generation: u32,
    step: u64,
    summary: StepSummary,
}

/// Bytes before the values, with so many ranks.
const fn header(world: usize) -> usize {
    256 + 32 * world
}

/// The window of messages, which all ranks must choose the same.
pub fn window(values: usize) -> usize {
    part::window(values, header(MAX_WORKERS))
}

/// On a worker: pushes the update of the unit that begins at the next step.
pub fn push(cx: &mut Context<'_>, report: &StepReport, values: &[f32]) -> Result<()> {
    let push = Push { generation: cx.rank.generation(), step: cx.work.next(), report: *report };
    part::request(cx, envelope::encode(&push, values)?)
}

/// On a worker: waits until all have pushed, and takes the server's values.
pub fn pull(cx: &mut Context<'_>, values: &mut [f32]) -> Result<StepSummary> {
    let (generation, step, server) = (cx.rank.generation(), cx.work.next(), part::server(cx)?);
    loop {
        let bytes = part::await_answer(cx)?;
        let read = envelope::decode::<Pull>(&bytes);
        let (pull, received) = read.map_err(|cause| part::invalid(cx.rank.member_id_at(server), cause))?;
        if pull.generation < generation {
            // The unit was interrupted.
            continue;
        }
        if (pull.generation, pull.step, received.len()) != (generation, step, values.len()) {
            let cause = format!("answered step {} with {} values", pull.step, received.len());
            return Err(part::invalid(cx.rank.member_id_at(server), cause));
        }
        received.copy_to(values);
        return Ok(pull.summary);
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

/// The server's rank.
pub struct Server<O> {
    pub owner: O,
    shard: Shard,
    outbox: Outbox,
    /// The last answer to all, if it may be needed again.
    last: Vec<f32>,
}

/// What a server knows of the unit in progress.
struct Shard {
    policy: Box<dyn Policy>,
    clocks: Clocks,
    generation: u32,
    step: u64,
    /// By member id, which is the order of ranks.
    held: BTreeMap<usize, (StepReport, Vec<u8>)>,
    /// All members by rank, and which of them work.
    members: Vec<usize>,
}

/// Shard and owner for one message.
struct Handler<'a, O> {
    shard: &'a mut Shard,
    owner: &'a mut O,
    moment: Moment,
    /// The server's own report.
    own: StepReport,
    last: &'a mut Vec<f32>,
    completed: Option<StepSummary>,
}

impl<O: Owner> Server<O> {
    pub fn new(job: &JobSpec, owner: O) -> Server<O> {
        let shard = Shard {
            policy: policy(job.scheduling.kind),
            clocks: Clocks::default(),
            generation: 0,
            step: 0,
            held: BTreeMap::new(),
            members: Vec::new(),
        };
        Server { owner, shard, outbox: Outbox::default(), last: Vec::new() }
    }
}

impl<O: Owner> Part for Handler<'_, O> {
    fn receive(
        &mut self,
        from: usize,
        message: &[u8],
        outbox: &mut Outbox,
    ) -> std::result::Result<(), String> {
        let (push, values) = envelope::decode::<Push>(message)?;
        let shard = &mut *self.shard;
        if push.generation < shard.generation {
            // The unit was interrupted.
            return Ok(());
        }
        if (push.generation, push.step) != (shard.generation, shard.step) || shard.held.contains_key(&from) {
            return Err(format!("pushed step {} of generation {}", push.step, push.generation));
        }
        if values.len() != self.owner.state().len() || !values.are_finite() {
            return Err(format!("pushed {} values, or values that are not finite", values.len()));
        }
        match shard.policy.admit(&shard.clocks, from) {
            Admission::Hold => shard.held.insert(from, (push.report, message.to_vec())),
            Admission::Apply => return Err("pushed an update that does not wait for others".into()),
        };
        #[cfg(test)]
        replay::record(|| Recorded::Arrived(from));
        shard.clocks.complete(from);
        if shard.policy.may_begin(&shard.clocks, from) == Decision::Go {
            self.complete(outbox)?;
        }
        Ok(())
    }
}

impl<O: Owner> Handler<'_, O> {
    /// All workers have pushed.
    fn complete(&mut self, outbox: &mut Outbox) -> std::result::Result<(), String> {
        let Shard { members, held, generation, step, .. } = &mut *self.shard;
        let mut held = std::mem::take(held);
        let of = |member: &usize| held.get(member).map_or(self.own, |(report, _)| *report);
        let reports: Vec<StepReport> = members.iter().map(of).collect();
        let summary = StepSummary::of(&reports);
        if known_bugs::drops_held() && held.len() > 1 {
            held.pop_last();
        }
        let mut pushed = Vec::with_capacity(held.len());
        for (_, message) in held.values() {
            pushed.push(envelope::decode::<Push>(message)?.1);
        }
        let mut answer = Vec::new();
        self.owner.apply_all(&pushed, self.moment, &mut answer);
        #[cfg(test)]
        replay::record(|| Recorded::AppliedAll {
            step: *step,
            pushed: pushed.iter().map(|values| values.iter().collect()).collect(),
            published: self.owner.published().to_vec(),
        });
        let pull = Pull { generation: *generation, step: *step, summary };
        let message = envelope::encode(&pull, &answer).map_err(|error| error.message)?;
        for worker in self.shard.clocks.workers() {
            outbox.send(worker, message.clone());
        }
        self.completed = Some(pull.summary);
        if self.owner.repeats_answer() {
            *self.last = answer;
        }
        Ok(())
    }
}

impl<O: Owner> Strategy for Server<O> {
    fn step(&mut self, cx: &mut Context<'_>) -> Result<StepSummary> {
        cx.compute.clear_consumed();
        let Server { owner, shard, outbox, last } = self;
        let ranks = Roles::of(cx.job).worker_ranks(&shard.members);
        shard.step = cx.work.next();
        shard.clocks = Clocks::at(shard.step, ranks.iter().map(|rank| shard.members[*rank]));
        shard.held.clear();
        let moment = cx.moment(shard.step);
        loop {
            let missing: Vec<usize> = ranks
                .iter()
                .copied()
                .filter(|rank| !shard.held.contains_key(&shard.members[*rank]))
                .collect();
            // Its requests count as of the last message.
            let own = StepReport { steps: 1, requests: Requests::of(cx.rank), ..StepReport::default() };
            let operations = if missing.len() == 1 { owner.operations() } else { 0 };
            let mut handler = Handler { shard, owner, moment, own, last, completed: None };
            part::serve(cx, &mut handler, operations, &missing, outbox)?;
            if let Some(summary) = handler.completed {
                // The unit is committed. What follows may be a collective, and the workers wait for their answers.
                let _ = cx.rank.world().flush_messages();
                return Ok(summary);
            }
        }
    }

    fn unit(&self, cx: &Context<'_>) -> u64 {
        registry::unit_steps(cx.job).min(cx.work.steps_left(cx.work.next())).max(1)
    }

    fn meet(&mut self, cx: &mut Context<'_>) -> Result<()> {
        super::leased::send_published(cx, self.owner.published())
    }

    fn change(&mut self, cx: &mut Context<'_>, _: &MembershipChange) -> Result<()> {
        self.outbox.clear();
        self.shard.held.clear();
        if self.owner.repeats_answer() {
            answer_again(cx, false, &mut self.last)?;
        }
        (self.shard.generation, self.shard.members) = (cx.rank.generation(), cx.rank.member_ids());
        Ok(())
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

    fn message_window(&self, _: &JobSpec) -> Option<usize> {
        Some(window(self.owner.state().len()))
    }

    fn describe(&self, _: &Context<'_>) -> Description {
        Description::none()
    }
}
