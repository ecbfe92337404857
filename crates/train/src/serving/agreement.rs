//! Several servers commit a clock together, or none does.
//!
//! ```text
//! others:    when all updates are there:  send ready (report) to the first;  receive commit (summary)
//! first:     when all updates are there:  receive ready of all others;  send commit to each
//! ```
//!
//! The first one owns the clocks: with its decision the clock is committed. A server that is ready keeps the sum. If a worker
//! is lost before it hears of the decision, it learns the step of the job with the change of the group, and commits then or
//! drops the sum. Requests to servers are part of their reports, so that all ranks have the same summary.

use super::clocked::Unit;
use super::part;
use crate::context::Context;
use crate::envelope;
use crate::step_report::{StepReport, StepSummary};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thalweg_cluster::MessageTag;
use thalweg_core::Result;

const READY: MessageTag = MessageTag { number: 3, name: "readiness of the other servers" };
const COMMIT: MessageTag = MessageTag { number: 4, name: "the commit of the first server" };

/// On another server than the first.
pub fn send_ready(cx: &mut Context<'_>, unit: Unit, first: usize, report: &StepReport) -> Result<()> {
    send(cx, first, READY, unit, report)
}

pub fn await_commit(cx: &mut Context<'_>, unit: Unit, first: usize) -> Result<StepSummary> {
    receive(cx, first, COMMIT, unit)
}

/// On the first server: the report of another one, when it is ready.
pub fn await_ready(cx: &mut Context<'_>, unit: Unit, other: usize) -> Result<StepReport> {
    receive(cx, other, READY, unit)
}

pub fn send_commit(cx: &mut Context<'_>, unit: Unit, other: usize, summary: &StepSummary) -> Result<()> {
    send(cx, other, COMMIT, unit, summary)
}

fn send(cx: &mut Context<'_>, to: usize, tag: MessageTag, unit: Unit, what: &impl Serialize) -> Result<()> {
    part::send(cx.rank, to, tag, envelope::encode(&(unit, what), &[])?)
}

/// Messages of units that were interrupted are dropped.
fn receive<T: DeserializeOwned>(cx: &mut Context<'_>, from: usize, tag: MessageTag, unit: Unit) -> Result<T> {
    loop {
        let bytes = cx.rank.world().receive(from, tag)?.bytes;
        let invalid = |cause| part::invalid(cx.rank.member_id_at(from), cause);
        let ((of, what), _) = envelope::decode::<(Unit, T)>(&bytes).map_err(invalid)?;
        if of == unit {
            return Ok(what);
        }
        if !of.is_before(unit) {
            return Err(invalid(format!("is at {of:?}")));
        }
    }
}
