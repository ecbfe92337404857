//! The headers of the messages between servers and workers with leases.

use super::super::part;
use crate::envelope;
use crate::step_report::StepReport;
use crate::work::pool::{Lease, Worker};
use serde::{Deserialize, Serialize};
use thalweg_core::JobSpec;

/// What precedes the values of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) worker: Worker,
    pub(super) generation: u32,
    pub(super) done: Option<Done>,
    /// The answer is to have values.
    pub(super) fetches: bool,
    /// To another server than the first: the worker was called to a meeting. There is no answer.
    pub(super) meets: bool,
}

/// A lease is computed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) lease: u64,
    /// The server's version that the update was computed from.
    pub(super) version: u64,
    pub(super) rows: Vec<u64>,
    /// The part of their steps that the rows are.
    pub(super) share: f32,
    pub(super) report: StepReport,
}

/// What precedes the values of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) worker: Worker,
    pub(super) generation: u32,
    pub(super) version: u64,
    /// None calls the worker to a meeting, unless it is to ask again.
    pub(super) lease: Option<Lease>,
    pub(super) asks_again: bool,
}

/// Bytes before the values: most are row numbers, in the request or in the answer.
fn header(job: &JobSpec, per_lease: usize) -> usize {
    256 + 32 * per_lease + 10 * (job.train.global_batch.div_ceil(job.engine.workers.max(1)) + 1) * per_lease
}

/// The window of messages, which all ranks must choose the same.
pub fn window(job: &JobSpec, values: usize, per_lease: usize) -> usize {
    part::window(values, header(job, per_lease))
}

/// The version that an update was computed from: the stalest has the least. Requests without an update come first.
pub(super) fn version_read(message: &[u8]) -> u64 {
    let read = envelope::decode::<Request>(message);
    read.ok().and_then(|(request, _)| request.done).map_or(0, |done| done.version)
}
