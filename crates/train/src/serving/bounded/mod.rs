//! Servers of workers with clocks of their own: a policy says who may go on, and what becomes of an update.
//!
//! ```text
//! worker:         ask the first server;  take (task, values)
//!                 compute the rows of the task;  push (task, its part of the values) to every server
//!                 take (next task, values), or the call to a meeting
//!                 if its clock is closed before the rows are computed, and late workers abandon: say so instead of the push
//! first server:   when all servers have their part of a push:
//!                     apply it, hold it for its clock, or drop it, as the policy says;  close clocks of which enough is there
//!                 answer every worker that may begin its next clock; the others wait for their answer
//!                 send its decisions to the other servers, as tickets
//! other servers:  on a push:  stage it, and say so to the first
//!                 on a ticket:  apply what is staged, or send the worker their part of what it reads
//! ```
//!
//! The rows of a task are a function of clock and worker (`work/clock_table.rs`), and the checksum of the rows that arrived
//! at the model comes with the push: the server refuses others. Requests and answers between members that stay outlive a
//! change of the group, so neither side does anything again after one; what lost workers leave is computed by others.
//!
//! The first server has the clocks. It decides about an update when every server has its part, and the tickets arrive in
//! the order of its decisions, whatever becomes of the worker: so all servers apply the same updates in the same order, and
//! what a worker reads is of one moment. The parameters have the bits of one server.
//!
//! At a meeting all clocks are closed: nobody opens a further one, and those behind go on until all have completed as many.
//! The parameters are those of whole steps then.

mod authority;
mod client;
mod follower;
mod parameters;
mod server;
mod shard;
mod ticket;
mod worker_table;

pub use client::Client;
pub use parameters::Parameters;
pub use server::Server;

use super::part;
use crate::step_report::StepReport;
use crate::work::clock_table::Task;
use crate::work::pool::Worker;
use serde::{Deserialize, Serialize};
use thalweg_core::JobSpec;
use thalweg_core::spec::engine::MAX_WORKERS;
use ticket::Ticket;

/// What precedes the values of a message to a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Request {
    /// To the first server: a worker has no task.
    Ask(Worker),
    /// A worker has computed a task.
    Push(Done),
    /// To the first server: a worker leaves a task whose clock is closed, and has none.
    Abandon(TaskOf),
    /// To the first server: another one has its part of the push.
    Staged(TaskOf),
    /// From the first server.
    Tickets(Vec<Ticket>),
}

/// A task of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct TaskOf {
    worker: Worker,
    task: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Done {
    of: TaskOf,
    /// The version that the worker has read.
    version: u64,
    report: StepReport,
}

/// What precedes the values of an answer. If there are any, they are those of this server's shard, and all others send
/// theirs.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    worker: Worker,
    /// The same on all servers.
    number: u64,
    content: Content,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Content {
    /// To be computed with the values, or with the worker's copy if there are none.
    Task { task: Task, version: u64 },
    /// The worker is called to a meeting.
    Meeting { generation: u32 },
    /// Parameters, sent while the worker computes: without the update that it makes.
    Ahead { version: u64 },
    /// The clock of the task with this number, which the worker computes, is closed without it.
    Closed { task: u64 },
    /// Of another server than the first.
    Part,
}

/// The window of messages, which all ranks must choose the same. Most bytes before the values are row numbers, or tickets
/// and notices of the servers.
pub fn window(job: &JobSpec, values: usize) -> usize {
    part::window(values, 256 + 10 * (job.train.global_batch + 1)) + 64 * MAX_WORKERS
}
