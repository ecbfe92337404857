//! What every server does: it stages pushes, and carries out tickets. Pure.

use super::super::mitigation::Mitigation;
use super::super::part::Outbox;
use super::ticket::Ticket;
use super::{Answer, Content, Done, Parameters, TaskOf};
use crate::envelope::{self, Values};
use std::collections::BTreeMap;
use thalweg_core::JobSpec;
use thalweg_graph::optimizer::Moment;

pub(super) struct Shard {
    pub(super) parameters: Parameters,
    mitigation: Mitigation,
    /// The values of pushes that no ticket has named yet.
    staged: BTreeMap<TaskOf, Vec<f32>>,
}

impl Shard {
    pub(super) fn new(job: &JobSpec, parameters: Parameters) -> Shard {
        Shard { parameters, mitigation: Mitigation::of(job), staged: BTreeMap::new() }
    }

    /// Keeps this shard's part of a push until it is decided what becomes of it.
    pub(super) fn stage(&mut self, done: &Done, values: Values<'_>) -> Result<(), String> {
        if values.len() != self.parameters.state().len() || !values.are_finite() {
            return Err(format!("pushed {} values, or values that are not finite", values.len()));
        }
        self.staged.insert(done.of, values.iter().collect());
        Ok(())
    }

    /// Carries out a ticket: the answer, if it has one, begins with this content.
    pub(super) fn execute(
        &mut self,
        ticket: Ticket,
        content: Content,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        match ticket {
            Ticket::Apply { of, at, share } => {
                let pushed = self.take(of)?;
                let now = self.parameters.state().parameters();
                let (member, pushed_values) = (of.worker.member, Values::of(&pushed));
                let compensated = self.mitigation.compensate(member, pushed_values, now, share);
                let values = compensated.as_deref().map_or(pushed_values, Values::of);
                self.parameters.apply(&[values], 1.0, at.into());
            }
            Ticket::ApplyAll { of, at, scale } => {
                let pushed: Vec<Vec<f32>> =
                    of.into_iter().map(|of| self.take(of)).collect::<Result<_, String>>()?;
                let values: Vec<Values<'_>> = pushed.iter().map(|values| Values::of(values)).collect();
                self.parameters.apply(&values, scale, at.into());
            }
            Ticket::Drop(of) => drop(self.staged.remove(&of)),
            Ticket::Read { worker, number, own } => {
                let mut held = Vec::with_capacity(own.len());
                for (of, at) in own {
                    let values = self.staged.get(&of).ok_or_else(|| missing(of))?;
                    held.push((Values::of(values), Moment::from(at)));
                }
                let values = self.parameters.read(&held);
                self.mitigation.note_sent(worker.member, &values);
                let answer = Answer { worker, number, content };
                let message = envelope::encode(&answer, &values).map_err(|error| error.message)?;
                outbox.send(worker.member, message);
            }
            Ticket::Meet { .. } => {}
        }
        Ok(())
    }

    fn take(&mut self, of: TaskOf) -> Result<Vec<f32>, String> {
        self.staged.remove(&of).ok_or_else(|| missing(of))
    }
}

fn missing(TaskOf { worker, task }: TaskOf) -> String {
    format!("decided about task {task} of rank {}, which it has not pushed", worker.member)
}
