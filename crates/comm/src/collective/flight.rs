//! Several collectives in progress at once, over separate pieces of one buffer.
//!
//! This is how gradients leave while back-propagation goes on: when a piece is ready its all-reduce is started, between
//! other work [`Flight::progress`] moves what can be moved, and [`Flight::finish`] waits for the rest. Nothing runs
//! behind the caller's back: no thread, and no memory is held between calls.
//!
//! Every rank must start the same operations in the same order, and all of a flight before it waits for any: between two
//! ranks frames arrive in the order they were sent, and one of an operation that is not started here holds up those
//! behind it. [`Flight::run_beside`] is the exception: an operation that all ranks come to after having started the same
//! ones can be waited for alone.

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
    /// The one that runs beside them.
    guest: Operation,
    wanted: Vec<Interest>,
}

/// An operation over memory of its own, beside those of a flight.
pub struct Guest<'a, T> {
    /// What to do.
    pub schedule: &'a Schedule,
    /// What its frames belong to.
    pub tag: Tag,
    /// Its memory.
    pub values: &'a mut [T],
}

/// Whether anything is still to be done, and whether anything happened.
struct Look {
    open: bool,
    moved: bool,
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

    /// The first that is not complete, in the order in which they were started.
    pub fn first_open(&self) -> Option<usize> {
        self.pieces.iter().position(|(_, done)| !done)
    }

    /// Gives up whatever is in progress: after a fault, when the group is at its end.
    pub fn abandon(&mut self) {
        self.pieces.clear();
    }

    /// Moves what can be moved without waiting; says whether all is done, something moved, or nothing.
    pub fn progress<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Progress, Fault> {
        let look = self.advance(transport, buffer, operator)?;
        Ok(match (look.open, look.moved) {
            (false, _) => Progress::Done,
            (true, true) => Progress::Moved,
            (true, false) => Progress::Idle,
        })
    }

    fn advance<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Look, Fault> {
        let mut look = Look { open: false, moved: false };
        for (operation, (piece, done)) in self.operations.iter_mut().zip(&mut self.pieces) {
            if *done {
                continue;
            }
            let part = &mut buffer[piece.clone()];
            match operation.progress(transport, part, operator, Company::Several)? {
                // What one has taken from a stream may have stood before another's.
                Progress::Done => (*done, look.moved) = (true, true),
                Progress::Moved => (look.open, look.moved) = (true, true),
                Progress::Idle => look.open = true,
            }
        }
        Ok(look)
    }

    /// Waits until all is done, at most until the deadline; then nothing is in progress any more.
    ///
    /// After a fault the buffer's contents are unspecified, and what was open still is, so that it can be named.
    pub fn finish<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), Fault> {
        let mut vigil = Vigil::new(transport.now(), deadline);
        loop {
            let look = self.advance(transport, buffer, operator)?;
            if !look.open {
                self.pieces.clear();
                return Ok(());
            }
            self.want(transport.world());
            transport.attend(&mut vigil, &self.wanted, look.moved)?;
        }
    }

    /// Runs one more operation to its end, at most until the deadline, while the others go on.
    pub fn run_beside<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        guest: Guest<'_, T>,
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), Fault> {
        let mut vigil = Vigil::new(transport.now(), deadline);
        self.guest.start::<T>(guest.schedule, transport, guest.tag, guest.values.len())?;
        loop {
            let own = self.guest.progress(transport, guest.values, operator, Company::Several)?;
            if own == Progress::Done {
                return Ok(());
            }
            let look = self.advance(transport, buffer, operator)?;
            self.want(transport.world());
            add(&mut self.wanted, self.guest.wanted());
            transport.attend(&mut vigil, &self.wanted, look.moved || own == Progress::Moved)?;
        }
    }

    /// What any of the operations wants.
    fn want(&mut self, world: usize) {
        self.wanted.clear();
        self.wanted.resize(world, Interest::default());
        for (operation, (_, done)) in self.operations.iter_mut().zip(&self.pieces) {
            if !*done {
                add(&mut self.wanted, operation.wanted());
            }
        }
    }
}

/// What either wants.
pub(super) fn add(sums: &mut [Interest], wanted: &[Interest]) {
    for (sum, interest) in sums.iter_mut().zip(wanted) {
        sum.read |= interest.read;
        sum.write |= interest.write;
    }
}
