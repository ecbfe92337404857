//! MPI's own all-reduce, piece by piece.
//!
//! MPI may go on reading and writing memory that an operation was begun with when nobody waits for it any more: a rank
//! that gives up must not leave it the caller's. So a piece is copied into memory of its own, added up there, and copied
//! back. Two are under way at a time, each long enough that it costs MPI no more than the whole would, and short enough to
//! stay in a cache while it is copied.

use super::flight::{Flight, Terms};
use super::library::Group;
use crate::transport::Moved;
use std::collections::VecDeque;
use std::io;

/// Elements of a piece.
const PIECE: usize = 1 << 20;

/// Pieces under way at a time.
const UNDER_WAY: usize = 2;

/// The sum in progress, if any; keeps its memory for the next.
pub(super) struct Sums {
    group: Group,
    under_way: VecDeque<Flight<Terms>>,
    spare: Vec<Terms>,
    /// Elements that were begun, and those that are back.
    begun: usize,
    done: usize,
}

impl Sums {
    pub(super) fn new(group: Group) -> Sums {
        Sums { group, under_way: VecDeque::new(), spare: Vec::new(), begun: 0, done: 0 }
    }

    /// Goes on with the sum of this buffer, as far as it goes without waiting.
    pub(super) fn progress(&mut self, buffer: &mut [f32]) -> io::Result<Moved> {
        let before = (self.begun, self.done);
        while self.begun < buffer.len() && self.under_way.len() < UNDER_WAY {
            let end = buffer.len().min(self.begun + PIECE);
            let mut terms = self.spare.pop().unwrap_or_default();
            terms.mine.clear();
            terms.mine.extend_from_slice(&buffer[self.begun..end]);
            self.under_way.push_back(Flight::sum(self.group, terms)?);
            self.begun = end;
        }
        while let Some(first) = self.under_way.front_mut() {
            if !first.is_done()? {
                break;
            }
            let Some(terms) = self.under_way.pop_front().and_then(Flight::take) else { break };
            let back = buffer.get_mut(self.done..self.done + terms.sum.len());
            back.ok_or_else(shrunk)?.copy_from_slice(&terms.sum);
            self.done += terms.sum.len();
            self.spare.push(terms);
        }
        if self.done == buffer.len() {
            (self.begun, self.done) = (0, 0);
            return Ok(Moved::Whole);
        }
        Ok(if (self.begun, self.done) == before { Moved::Nothing } else { Moved::Part })
    }
}

fn shrunk() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the buffer is shorter than when the sum began")
}
