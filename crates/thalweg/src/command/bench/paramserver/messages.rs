//! Gradients and parameters as messages, in pieces, so that a receiver works on one while the next ones are under way.

use super::Roles;
use super::carrier::{Carrier, Rule, Visit, announce, next_announcement, send};
use std::ops::Range;
use thalweg_cluster::{MessageTag, Rank};
use thalweg_core::{Error, Result};

const GRADIENT: MessageTag = MessageTag { number: 3, name: "a gradient" };
/// The worker wants the parameters.
const PULL: MessageTag = MessageTag { number: 4, name: "a request for parameters" };
const PARAMETERS: MessageTag = MessageTag { number: 5, name: "parameters" };

/// Elements of a message: its bytes stay in a core's cache until they are used.
const PIECE: usize = 128 << 10;

/// Elements of the first message, so that the receiver begins soon, and of the last, so that it ends soon after the sender.
const SHORT: usize = 64 << 10;

/// Bytes that a rank may be ahead of another.
pub(super) const WINDOW: usize = 4 << 20;

pub(super) struct Messages {
    roles: Roles,
    /// Of a worker its gradient, of a server the parameters of its shard.
    values: Vec<f32>,
}

impl Messages {
    pub(super) fn new(rank: &Rank, roles: Roles) -> Messages {
        let serves = roles.servers().contains(&rank.index());
        let length = if serves { roles.shard(rank.index()).len() } else { roles.length };
        Messages { roles, values: vec![0.0; length] }
    }
}

/// The pieces of a range.
fn pieces(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut rest = range;
    std::iter::from_fn(move || {
        let length = match rest.len() {
            0 => return None,
            _ if rest.start == 0 => SHORT.min(rest.len()),
            left if left > PIECE => PIECE,
            left if left > SHORT => left - SHORT,
            left => left,
        };
        let piece = rest.start..rest.start + length;
        rest.start = piece.end;
        Some(piece)
    })
}

fn send_values(rank: &mut Rank, to: usize, tag: MessageTag, values: &[f32]) -> Result<()> {
    pieces(0..values.len()).try_for_each(|piece| {
        let piece: &[u8] = bytemuck::cast_slice(&values[piece]);
        let mut bytes = rank.message_buffer(piece.len());
        bytes.extend_from_slice(piece);
        rank.world().send_waiting(to, tag, bytes)
    })
}

/// Receives the pieces of a range and shows each.
fn receive_values(
    rank: &mut Rank,
    from: usize,
    tag: MessageTag,
    range: Range<usize>,
    visit: Visit<'_>,
) -> Result<()> {
    for piece in pieces(0..range.len()) {
        let message = rank.world().receive(from, tag)?;
        let values: &[f32] = bytemuck::try_cast_slice(&message.bytes)
            .map_err(|error| Error::internal(format!("{}: {error}", tag.name)))?;
        visit(range.start + piece.start..range.start + piece.end, values);
        rank.recycle(message.bytes);
    }
    Ok(())
}

impl Carrier for Messages {
    fn write_gradient(&mut self, write: &mut dyn FnMut(&mut [f32])) {
        write(&mut self.values);
    }

    fn push(&mut self, rank: &mut Rank) -> Result<()> {
        for server in self.roles.servers() {
            announce(rank, server)?;
            send_values(rank, server, GRADIENT, &self.values[self.roles.shard(server)])?;
        }
        Ok(())
    }

    fn next_push(&mut self, rank: &mut Rank) -> Result<(usize, bool)> {
        next_announcement(rank)
    }

    fn add(&mut self, rank: &mut Rank, worker: usize, sum: &mut [f32]) -> Result<()> {
        receive_values(rank, worker, GRADIENT, 0..sum.len(), &mut |piece, values| {
            sum[piece].iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        })
    }

    fn apply(&mut self, rank: &mut Rank, worker: usize, _: u64, rule: Rule<'_>) -> Result<()> {
        let (shard, parameters) = (self.roles.shard(rank.index()), &mut self.values);
        let start = shard.start;
        receive_values(rank, worker, GRADIENT, shard, &mut |piece, gradient| {
            rule(piece.clone(), gradient, &mut parameters[piece.start - start..piece.end - start]);
        })
    }

    fn write_parameters(&mut self, _: u64, write: &mut dyn FnMut(&mut [f32])) {
        write(&mut self.values);
    }

    fn pull(&mut self, rank: &mut Rank, into: &mut [f32], visit: Visit<'_>) -> Result<()> {
        for server in self.roles.servers() {
            receive_values(rank, server, PARAMETERS, self.roles.shard(server), &mut |piece, values| {
                into[piece.clone()].copy_from_slice(values);
                visit(piece, values);
            })?;
        }
        Ok(())
    }

    fn request(&mut self, rank: &mut Rank) -> Result<()> {
        self.roles.servers().try_for_each(|server| send(rank, server, PULL, &[]))
    }

    fn await_request(&mut self, rank: &mut Rank, worker: usize) -> Result<()> {
        rank.world().receive(worker, PULL).map(drop)
    }

    fn serve(&mut self, rank: &mut Rank, worker: usize) -> Result<()> {
        send_values(rank, worker, PARAMETERS, &self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_are_short_at_its_ends() {
        for length in [0, 1, SHORT, SHORT + 1, PIECE, PIECE + SHORT, 3 * PIECE, 3 * PIECE + 5] {
            let all: Vec<Range<usize>> = pieces(0..length).collect();
            let ends = all.iter().fold(0, |end, piece| {
                assert!(piece.start == end && !piece.is_empty() && piece.len() <= PIECE);
                piece.end
            });
            assert_eq!(ends, length);
            assert!(all.first().is_none_or(|piece| piece.len() <= SHORT));
            assert!(all.last().is_none_or(|piece| piece.len() <= SHORT));
        }
    }
}
