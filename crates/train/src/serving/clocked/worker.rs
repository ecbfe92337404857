//! A worker of servers that wait for all.

use super::{Pull, Push, Unit};
use crate::context::Context;
use crate::envelope;
use crate::serving::{part, shards};
use crate::step_report::{StepReport, StepSummary};
use thalweg_cluster::Rank;
use thalweg_core::Result;

/// On a worker: pushes the update of the unit that begins at the next step, to the only server.
pub fn push(cx: &mut Context<'_>, report: &StepReport, values: &[f32]) -> Result<()> {
    let server = part::server(cx)?;
    Unit::of(cx).push(cx, server, (0, 0), values, Some(report))
}

impl Unit {
    /// Pushes the part of its update that begins with the element `start` of those that the server gets, `at` of this
    /// worker's window. Parts follow each other; the last has the report.
    pub fn push(
        self,
        cx: &mut Context<'_>,
        server: usize,
        (start, at): (usize, usize),
        values: &[f32],
        report: Option<&StepReport>,
    ) -> Result<()> {
        cx.windows.drop_earlier(self.generation);
        part::push(cx, server, &self.header(start, report), at, values)
    }

    /// The same as a message, during a pass.
    pub fn send(self, rank: &mut Rank, server: usize, start: usize, values: &[f32]) -> Result<()> {
        part::request_of(rank, server, envelope::encode(&self.header(start, None), values)?)
    }

    fn header(self, start: usize, report: Option<&StepReport>) -> Push {
        Push { unit: self, start: start as u64, report: report.copied() }
    }
}

/// On a worker: waits until all have pushed, and takes the values of all servers, once all are there.
pub fn pull(cx: &mut Context<'_>, values: &mut [f32]) -> Result<StepSummary> {
    let (unit, shards) = (Unit::of(cx), shards::of(cx)?);
    let mut answers = Vec::with_capacity(shards.len());
    for (server, range) in shards {
        answers.push((await_answer(cx, unit, server, range.len())?, range));
    }
    let mut summary = StepSummary::default();
    for (bytes, range) in answers.into_iter().rev() {
        // It was read before.
        if let Ok((pull, received)) = envelope::decode::<Pull>(&bytes) {
            received.copy_to(&mut values[range]);
            summary = pull.summary;
        }
        cx.rank.recycle(bytes);
    }
    Ok(summary)
}

/// The answer of a server to the updates of a unit. Those to interrupted ones are dropped.
fn await_answer(cx: &mut Context<'_>, unit: Unit, server: usize, length: usize) -> Result<Vec<u8>> {
    loop {
        let (bytes, _) = part::await_answer(cx, server)?;
        let invalid = |cause| part::invalid(cx.rank.member_id_at(server), cause);
        let (pull, received) = envelope::decode::<Pull>(&bytes).map_err(invalid)?;
        if (pull.unit, received.len()) == (unit, length) {
            return Ok(bytes);
        }
        if !pull.unit.is_before(unit) {
            return Err(invalid(format!("answered {:?} with {} values", pull.unit, received.len())));
        }
    }
}
