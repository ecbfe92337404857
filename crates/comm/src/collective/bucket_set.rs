//! Operations over separate ranges of one buffer that the caller keeps and passes to every call: gradients are reduced
//! bucket by bucket while back-propagation continues.
//!
//! All ranks must start the operations in the same order. Start all buckets before waiting for one; only
//! [`BucketSet::run_blocking`] may come between, on all ranks after the same buckets.

use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::schedule::Schedule;
use crate::transport::wait_state::merge;
use crate::transport::{Interest, MatchMode, Tag, Transport, TransportError, WaitState};
use std::ops::Range;
use std::time::Duration;

type Result<T> = std::result::Result<T, TransportError>;

/// Operations over ranges (buckets) of the caller's buffer; reuses its memory.
#[derive(Default)]
pub struct BucketSet {
    operations: Vec<Operation>,
    /// The range of each operation in progress, and whether it is complete.
    buckets: Vec<(Range<usize>, bool)>,
    blocking: Operation,
    wanted: Vec<Interest>,
}

/// An operation over its own memory, for [`BucketSet::run_blocking`].
pub struct BlockingOperation<'a, T> {
    pub schedule: &'a Schedule,
    pub tag: Tag,
    pub values: &'a mut [T],
}

impl BucketSet {
    pub fn new() -> BucketSet {
        BucketSet::default()
    }

    /// Starts an operation over a range of the buffer; the ranges in progress must not overlap.
    pub fn start<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &dyn Transport,
        tag: Tag,
        range: Range<usize>,
    ) -> Result<()> {
        let index = self.buckets.len();
        self.operations.resize_with(self.operations.len().max(index + 1), Operation::new);
        self.operations[index].start::<T>(schedule, transport, tag, range.len())?;
        self.buckets.push((range, false));
        Ok(())
    }

    /// The first incomplete operation, in the order in which they were started.
    pub fn first_incomplete(&self) -> Option<usize> {
        self.buckets.iter().position(|(_, done)| !done)
    }

    /// Drops all operations: after an error, when the group is unusable.
    pub fn clear(&mut self) {
        self.buckets.clear();
    }

    /// Advances all operations as far as possible without blocking.
    pub fn progress<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Progress> {
        Ok(match self.advance(transport, buffer, operator)? {
            (false, _) => Progress::Done,
            (true, true) => Progress::Moved,
            (true, false) => Progress::Idle,
        })
    }

    /// Returns whether any operation is incomplete, and whether anything moved.
    fn advance<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<(bool, bool)> {
        let (mut incomplete, mut moved) = (false, false);
        for (operation, (range, done)) in self.operations.iter_mut().zip(&mut self.buckets) {
            if *done {
                continue;
            }
            let bucket = &mut buffer[range.clone()];
            match operation.progress(transport, bucket, operator, MatchMode::AnyOperation)? {
                // Completion counts as movement: the frames it consumed may have blocked those of another operation.
                Progress::Done => (*done, moved) = (true, true),
                Progress::Moved => (incomplete, moved) = (true, true),
                Progress::Idle => incomplete = true,
            }
        }
        Ok((incomplete, moved))
    }

    /// Waits until all operations are complete, at most until the deadline, and clears the set.
    ///
    /// After an error the buffer's contents are unspecified, and [`BucketSet::first_incomplete`] still names the operation.
    pub fn finish<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<()> {
        let mut wait_state = WaitState::new(transport.now(), deadline);
        loop {
            let (incomplete, moved) = self.advance(transport, buffer, operator)?;
            if !incomplete {
                self.buckets.clear();
                return Ok(());
            }
            self.collect_interests(transport.world());
            transport.wait(&mut wait_state, &self.wanted, moved)?;
        }
    }

    /// Runs one more operation to completion, at most until the deadline, while the others advance.
    pub fn run_blocking<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operation: BlockingOperation<'_, T>,
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<()> {
        let BlockingOperation { schedule, tag, values } = operation;
        let mut wait_state = WaitState::new(transport.now(), deadline);
        self.blocking.start::<T>(schedule, transport, tag, values.len())?;
        loop {
            let own = self.blocking.progress(transport, values, operator, MatchMode::AnyOperation)?;
            if own == Progress::Done {
                return Ok(());
            }
            let (_, moved) = self.advance(transport, buffer, operator)?;
            self.collect_interests(transport.world());
            merge(&mut self.wanted, self.blocking.wanted());
            transport.wait(&mut wait_state, &self.wanted, moved || own == Progress::Moved)?;
        }
    }

    fn collect_interests(&mut self, world: usize) {
        self.wanted.clear();
        self.wanted.resize(world, Interest::default());
        for (operation, (_, done)) in self.operations.iter_mut().zip(&self.buckets) {
            if !*done {
                merge(&mut self.wanted, operation.wanted());
            }
        }
    }
}
