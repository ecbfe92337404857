//! Nonblocking operations: started now, completed later, several in progress at once.
//!
//! Two types, because the memory is owned differently. A [`BucketSet`] runs over separate ranges of one buffer that the
//! caller keeps and passes to every call: gradients are reduced bucket by bucket while back-propagation continues. A
//! [`NonblockingTransport`] owns the buffers of its operations and drives them on every wait, so that operations of
//! several [groups](super::Group) overlap with anything else on the transport.
//!
//! There is no progress thread: operations advance only inside calls.
//!
//! All ranks must start the operations of one group in the same order. A frame of an operation that is not started here
//! is buffered up to a limit, then its sender blocks: start what the peers may have started before waiting for something
//! else. Of a [`BucketSet`], start all buckets before waiting for one; only [`BucketSet::run_blocking`] may come between,
//! on all ranks after the same buckets.

use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::schedule::Schedule;
use crate::transport::wait_state::pending_peers;
use crate::transport::{
    Abort, Incoming, Interest, IoProgress, LinkFault, MatchMode, Outgoing, ProgressCounters, Tag, Traffic,
    Transport, TransportError, WaitState,
};
use std::any::Any;
use std::marker::PhantomData;
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

fn merge(merged: &mut [Interest], wanted: &[Interest]) {
    for (merged, interest) in merged.iter_mut().zip(wanted) {
        merged.read |= interest.read;
        merged.write |= interest.write;
    }
}

/// A transport that also owns nonblocking operations and drives them on every wait.
pub struct NonblockingTransport {
    transport: Box<dyn Transport>,
    /// With their ids, in the order in which they were started.
    outstanding: Vec<(u64, Box<dyn Outstanding>)>,
    started: u64,
    wanted: Vec<Interest>,
}

/// Identifies an outstanding operation; [`NonblockingTransport::finish`] returns its buffer.
#[derive(Debug)]
pub struct OperationId<T> {
    number: u64,
    elements: PhantomData<fn() -> T>,
}

/// An [`OwnedOperation`] of any element type.
trait Outstanding: Send {
    /// Advances it without blocking; returns whether anything moved.
    fn advance(&mut self, transport: &mut dyn Transport) -> Result<bool>;
    fn is_done(&self) -> bool;
    fn wanted(&mut self) -> &[Interest];
    fn into_buffer(self: Box<Self>) -> Box<dyn Any>;
}

struct OwnedOperation<T, O> {
    operation: Operation,
    operator: O,
    buffer: Vec<T>,
    done: bool,
}

impl<T: Element, O: Operator<T> + 'static> Outstanding for OwnedOperation<T, O> {
    fn advance(&mut self, transport: &mut dyn Transport) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let OwnedOperation { operation, operator, buffer, .. } = self;
        let progress = operation.progress(transport, buffer, operator, MatchMode::AnyOperation)?;
        self.done = progress == Progress::Done;
        Ok(progress != Progress::Idle)
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn wanted(&mut self) -> &[Interest] {
        self.operation.wanted()
    }

    fn into_buffer(self: Box<Self>) -> Box<dyn Any> {
        Box::new(self.buffer)
    }
}

impl From<Box<dyn Transport>> for NonblockingTransport {
    fn from(transport: Box<dyn Transport>) -> NonblockingTransport {
        NonblockingTransport { transport, outstanding: Vec::new(), started: 0, wanted: Vec::new() }
    }
}

impl NonblockingTransport {
    /// Starts an operation and sends what can be sent without blocking.
    pub fn start<T: Element>(
        &mut self,
        schedule: &Schedule,
        tag: Tag,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<OperationId<T>> {
        let mut operation = Operation::new();
        operation.start::<T>(schedule, self.transport.as_ref(), tag, buffer.len())?;
        self.started += 1;
        let owned = OwnedOperation { operation, operator, buffer, done: false };
        self.outstanding.push((self.started, Box::new(owned)));
        self.advance()?;
        Ok(OperationId { number: self.started, elements: PhantomData })
    }

    /// Whether any operation is incomplete.
    fn is_busy(&self) -> bool {
        self.outstanding.iter().any(|(_, operation)| !operation.is_done())
    }

    /// Advances all operations without blocking; returns whether anything moved.
    pub fn advance(&mut self) -> Result<bool> {
        let mut moved = false;
        for (_, operation) in &mut self.outstanding {
            moved |= operation.advance(self.transport.as_mut())?;
        }
        Ok(moved)
    }

    /// Waits until the operation is complete, at most until the deadline, and returns its buffer; `None` if it was not
    /// started on this transport.
    pub fn finish<T: Element>(&mut self, id: OperationId<T>, deadline: Duration) -> Result<Option<Vec<T>>> {
        let mut wait_state = WaitState::new(self.now(), deadline);
        loop {
            let moved = self.advance()?;
            let Some(index) = self.outstanding.iter().position(|(number, _)| *number == id.number) else {
                return Ok(None);
            };
            if self.outstanding[index].1.is_done() {
                let (_, operation) = self.outstanding.remove(index);
                return Ok(operation.into_buffer().downcast().ok().map(|buffer| *buffer));
            }
            let own = self.outstanding[index].1.wanted().to_vec();
            self.wait_for_any(&mut wait_state, &own, moved)?;
        }
    }

    /// Waits for the frames of any operation. A timeout is attributed to the peers in `own` alone.
    fn wait_for_any(&mut self, wait_state: &mut WaitState, own: &[Interest], moved: bool) -> Result<()> {
        self.wanted.clear();
        self.wanted.extend_from_slice(own);
        for (_, operation) in self.outstanding.iter_mut().filter(|(_, operation)| !operation.is_done()) {
            merge(&mut self.wanted, operation.wanted());
        }
        self.transport.wait(wait_state, &self.wanted, moved).map_err(|error| match error.cause.is_late() {
            true => self.transport.timeout_error(wait_state, pending_peers(own)),
            false => error,
        })
    }
}

impl AsRef<dyn Transport> for NonblockingTransport {
    fn as_ref(&self) -> &(dyn Transport + 'static) {
        self
    }
}

impl AsMut<dyn Transport> for NonblockingTransport {
    fn as_mut(&mut self) -> &mut (dyn Transport + 'static) {
        self
    }
}

impl Transport for NonblockingTransport {
    fn rank(&self) -> usize {
        self.transport.rank()
    }

    fn world(&self) -> usize {
        self.transport.world()
    }

    fn now(&self) -> Duration {
        self.transport.now()
    }

    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<IoProgress> {
        self.transport.send(tag, frame)
    }

    fn receive(&mut self, tag: Tag, frame: Incoming<'_>, mode: MatchMode) -> Result<IoProgress> {
        let mode = if self.is_busy() { MatchMode::AnyOperation } else { mode };
        self.transport.receive(tag, frame, mode)
    }

    fn wait(&mut self, state: &mut WaitState, wanted: &[Interest], moved: bool) -> Result<()> {
        if !self.is_busy() {
            return self.transport.wait(state, wanted, moved);
        }
        let moved = self.advance()? || moved;
        self.wait_for_any(state, wanted, moved)
    }

    fn timeout_error(&self, wait_state: &WaitState, pending: Vec<usize>) -> TransportError {
        self.transport.timeout_error(wait_state, pending)
    }

    fn poll(&mut self) -> Result<()> {
        self.advance()?;
        self.transport.poll()
    }

    fn wake_peers(&mut self) {
        self.transport.wake_peers();
    }

    fn admit_groups(&mut self) {
        self.transport.admit_groups();
    }

    fn has_native_all_reduce(&self) -> bool {
        self.transport.has_native_all_reduce()
    }

    fn native_all_reduce(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<IoProgress> {
        self.transport.native_all_reduce(tag, buffer)
    }

    fn inject(&mut self, peer: usize, fault: LinkFault) {
        self.transport.inject(peer, fault);
    }

    fn traffic(&self) -> Traffic {
        self.transport.traffic()
    }

    fn abort_handle(&self) -> Abort {
        self.transport.abort_handle()
    }

    fn progress_counters(&self) -> &ProgressCounters {
        self.transport.progress_counters()
    }

    fn close(&mut self) {
        self.transport.close();
    }
}
