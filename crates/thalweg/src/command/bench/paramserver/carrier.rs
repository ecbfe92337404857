//! How gradients and parameters get from one rank to another.

use super::Roles;
use std::ops::Range;
use thalweg_cluster::{MessageTag, Rank};
use thalweg_core::{Error, Result};

/// The worker's gradient is there to be taken, or the worker is done.
const PUSHED: MessageTag = MessageTag { number: 1, name: "a pushed gradient" };
/// The server has added or applied it.
const TAKEN: MessageTag = MessageTag { number: 2, name: "an acknowledgement" };

/// What a server does with a piece of a gradient: its range, the gradient, and the server's elements of that range.
pub(super) type Rule<'a> = &'a mut dyn FnMut(Range<usize>, &[f32], &mut [f32]);

/// What a worker does with a piece of the parameters: its range and its values.
pub(super) type Visit<'a> = &'a mut dyn FnMut(Range<usize>, &[f32]);

/// Shared memory or messages.
pub(super) trait Carrier {
    /// Writes this worker's gradient.
    fn write_gradient(&mut self, write: &mut dyn FnMut(&mut [f32]));

    /// Makes a worker's gradient known to all servers.
    fn push(&mut self, rank: &mut Rank) -> Result<()>;

    /// Waits for the gradient of any worker, or for its end; returns the worker, and whether it has one.
    fn next_push(&mut self, rank: &mut Rank) -> Result<(usize, bool)>;

    /// Adds the gradient of a worker to the sum of this server, which has its shard's length.
    fn add(&mut self, rank: &mut Rank, worker: usize, sum: &mut [f32]) -> Result<()>;

    /// Applies the gradient of a worker to the parameters of this server, which get the version.
    fn apply(&mut self, rank: &mut Rank, worker: usize, version: u64, rule: Rule<'_>) -> Result<()>;

    /// Writes this server's parameters, of its shard.
    fn write_parameters(&mut self, version: u64, write: &mut dyn FnMut(&mut [f32]));

    /// Asks all servers for their parameters.
    fn request(&mut self, rank: &mut Rank) -> Result<()>;

    /// Waits for the request of a worker.
    fn await_request(&mut self, rank: &mut Rank, worker: usize) -> Result<()>;

    /// What a server does for the pull of one worker.
    fn serve(&mut self, rank: &mut Rank, worker: usize) -> Result<()>;

    /// Copies the parameters of all servers to this worker and shows each piece.
    fn pull(&mut self, rank: &mut Rank, into: &mut [f32], visit: Visit<'_>) -> Result<()>;
}

/// Sends a small message to a rank.
pub(super) fn send(rank: &mut Rank, to: usize, tag: MessageTag, bytes: &[u8]) -> Result<()> {
    rank.world().send_waiting(to, tag, bytes.to_vec())
}

/// Tells a server that this worker has a gradient.
pub(super) fn announce(rank: &mut Rank, server: usize) -> Result<()> {
    send(rank, server, PUSHED, &[])
}

/// Tells all servers that this worker is done.
pub(super) fn send_end(rank: &mut Rank, roles: Roles) -> Result<()> {
    roles.servers().try_for_each(|server| send(rank, server, PUSHED, &[0]))
}

/// Tells a worker that its gradient was taken.
pub(super) fn acknowledge(rank: &mut Rank, worker: usize) -> Result<()> {
    send(rank, worker, TAKEN, &[])
}

/// Waits until all servers have taken this worker's gradient.
pub(super) fn await_acknowledgements(rank: &mut Rank, roles: Roles) -> Result<()> {
    roles.servers().try_for_each(|server| rank.world().receive(server, TAKEN).map(drop))
}

/// Waits for the next announcement of a worker.
pub(super) fn next_announcement(rank: &mut Rank) -> Result<(usize, bool)> {
    let message = rank.world().receive_any(PUSHED)?;
    let from = message.from.ok_or_else(|| Error::internal("a message of no member"))?;
    Ok((from, message.bytes.is_empty()))
}
