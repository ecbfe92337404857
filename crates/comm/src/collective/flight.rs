//! Several collectives in progress at once, over separate pieces of one buffer.
//!
//! This is how gradients leave while back-propagation goes on: when a piece is ready its all-reduce is started, between
//! other work [`Flight::progress`] moves what can be moved, and [`Flight::finish`] waits for the rest. Nothing runs
//! behind the caller's back: no thread, and no memory is held between calls.
//!
//! Every rank must start the same operations in the same order, and all of a flight before it waits for any: between two
//! ranks frames arrive in the order they were sent, and one of an operation that is not started here holds up those
//! behind it.

use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::schedule::Schedule;
use crate::transport::{Company, Fault, Interest, Tag, Transport, Vigil};
use std::ops::Range;
use std::time::Duration;

/// Several operations in progress; keeps its memory for the next time.
#[derive(Default)]
pub struct Flight {
    operations: Vec<Operation>,
    /// Which piece of the buffer each of those in progress is about, and whether it is done.
    pieces: Vec<(Range<usize>, bool)>,
    wanted: Vec<Interest>,
}

impl Flight {
    /// Nothing is in progress.
    pub fn new() -> Flight {
        Flight::default()
    }

    /// Starts an operation over a piece of the buffer; pieces in progress must not overlap.
    pub fn start<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &dyn Transport,
        tag: Tag,
        piece: Range<usize>,
    ) -> Result<(), Fault> {
        let index = self.pieces.len();
        if self.operations.len() == index {
            self.operations.push(Operation::new());
        }
        self.operations[index].start::<T>(schedule, transport, tag, piece.len())?;
        self.pieces.push((piece, false));
        Ok(())
    }

    /// Moves what can be moved without waiting; says whether all is done, something moved, or nothing.
    pub fn progress<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Progress, Fault> {
        let mut summary = Progress::Done;
        let mut finished = false;
        for (operation, (piece, done)) in self.operations.iter_mut().zip(&mut self.pieces) {
            if *done {
                continue;
            }
            let part = &mut buffer[piece.clone()];
            match operation.progress(transport, part, operator, Company::Several)? {
                Progress::Done => (*done, finished) = (true, true),
                Progress::Moved => summary = Progress::Moved,
                Progress::Idle if summary == Progress::Done => summary = Progress::Idle,
                Progress::Idle => {}
            }
        }
        // What one has taken from a stream may have stood before another's.
        Ok(if finished && summary == Progress::Idle { Progress::Moved } else { summary })
    }

    /// Waits until all is done, at most until the deadline; then nothing is in progress any more.
    ///
    /// After a fault the buffer's contents are unspecified.
    pub fn finish<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), Fault> {
        let mut vigil = Vigil::new(transport.now(), deadline);
        loop {
            let progress = self.progress(transport, buffer, operator)?;
            if progress == Progress::Done {
                self.pieces.clear();
                return Ok(());
            }
            self.want(transport.world());
            transport.attend(&mut vigil, &self.wanted, progress == Progress::Moved)?;
        }
    }

    /// What any of the operations wants.
    fn want(&mut self, world: usize) {
        self.wanted.clear();
        self.wanted.resize(world, Interest::default());
        for (operation, (_, done)) in self.operations.iter_mut().zip(&self.pieces) {
            if *done {
                continue;
            }
            for (sum, interest) in self.wanted.iter_mut().zip(operation.wanted()) {
                sum.read |= interest.read;
                sum.write |= interest.write;
            }
        }
    }
}
