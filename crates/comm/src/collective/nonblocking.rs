//! Nonblocking operations: started now, completed later, several in progress at once.
//!
//! A [`NonblockingTransport`] owns the buffers of its operations and drives them on every wait, so that operations of
//! several [groups](super::Group) overlap with anything else on the transport. It drives the rank's
//! [`Messages`] in the same way. (A [`BucketSet`](super::BucketSet) runs over memory of the caller instead.)
//!
//! Operations and messages advance only inside calls. A progress thread is one that makes them.
//!
//! All ranks must start the operations of one group in the same order. A frame of an operation that is not started here
//! is buffered up to a limit, then its sender blocks: start what the peers may have started before waiting for something
//! else.

use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::schedule::Schedule;
use crate::messages::Messages;
use crate::transport::wait_state::{merge, pending_peers};
use crate::transport::{
    Abort, Cause, Incoming, Interest, IoProgress, LinkFault, MatchMode, Outgoing, ProgressCounters, Tag,
    Traffic, Transport, TransportError, WaitState,
};
use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

type Result<T> = std::result::Result<T, TransportError>;

/// A transport that also owns nonblocking operations and messages, and drives them on every wait.
pub struct NonblockingTransport {
    transport: Box<dyn Transport>,
    /// With their ids, in the order in which they were started.
    outstanding: Vec<(u64, Box<dyn Outstanding>)>,
    started: u64,
    messages: Option<Messages>,
    wanted: Vec<Interest>,
    background: Vec<Interest>,
    unsent: Vec<bool>,
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
        NonblockingTransport {
            transport,
            outstanding: Vec::new(),
            started: 0,
            messages: None,
            wanted: Vec::new(),
            background: Vec::new(),
            unsent: Vec::new(),
        }
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

    /// Whether there may be something to advance.
    pub fn has_background(&self) -> bool {
        self.messages.is_some() || self.is_busy()
    }

    /// Advances all operations and messages without blocking; returns whether anything moved.
    pub fn advance(&mut self) -> Result<bool> {
        self.advance_beside(&[])
    }

    /// The same beside an operation that wants this of each peer.
    fn advance_beside(&mut self, own: &[Interest]) -> Result<bool> {
        let mut moved = false;
        for (_, operation) in &mut self.outstanding {
            moved |= operation.advance(self.transport.as_mut())?;
        }
        if self.messages.is_some() {
            self.collect_wanted(own);
        }
        if let Some(messages) = &mut self.messages {
            moved |= messages.advance(self.transport.as_mut(), &self.wanted)?;
            self.background.clear();
            self.background.extend(messages.interests(self.transport.rank()));
            self.unsent.clear();
            self.unsent.extend(messages.unsent());
            self.transport.set_background(&self.background, &self.unsent);
        }
        Ok(moved)
    }

    /// Collects what this operation and all others want.
    fn collect_wanted(&mut self, own: &[Interest]) {
        self.wanted.clear();
        self.wanted.extend_from_slice(own);
        self.wanted.resize(self.transport.world(), Interest::default());
        for (_, operation) in self.outstanding.iter_mut().filter(|(_, operation)| !operation.is_done()) {
            merge(&mut self.wanted, operation.wanted());
        }
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
        self.collect_wanted(own);
        let waited = self.transport.wait(wait_state, &self.wanted, moved);
        if let Some(messages) = &mut self.messages {
            messages.on_waited(self.transport.now());
        }
        waited.map_err(|error| match error.cause.is_late() {
            true => self.transport.timeout_error(wait_state, pending_peers(own)),
            false => error,
        })
    }

    /// Opens messages between the members of this generation, by rank, or widens their window; see [`Messages::new`]. All
    /// ranks must do this between the same two collectives.
    pub fn open_messages(&mut self, generation: u32, members: &[usize], window: usize) {
        match &mut self.messages {
            Some(messages) => messages.widen(window),
            None => self.set_messages(Messages::new(generation, members, window)),
        }
    }

    /// Goes on with messages of an earlier generation, which [`Messages::resume`] has moved to this one.
    pub fn set_messages(&mut self, messages: Messages) {
        self.transport.admit_groups();
        self.messages = Some(messages);
    }

    pub fn messages(&self) -> Option<&Messages> {
        self.messages.as_ref()
    }

    pub fn messages_mut(&mut self) -> Option<&mut Messages> {
        self.messages.as_mut()
    }

    /// Takes the messages out, for the next generation.
    pub fn take_messages(&mut self) -> Option<Messages> {
        self.messages.take()
    }

    /// Waits until `take` takes a message, or whatever it waits for, at most until the deadline. `wait_state` is for all or
    /// any of the ranks `from`, which a timeout is attributed to.
    pub fn wait_for_message<T>(
        &mut self,
        mut wait_state: WaitState,
        from: &[usize],
        mut take: impl FnMut(&mut Messages) -> Option<T>,
    ) -> Result<T> {
        let read = |peer: usize| Interest { read: from.contains(&peer), write: false };
        let own: Vec<Interest> = (0..self.world()).map(read).collect();
        loop {
            let moved = self.advance_beside(&own)?;
            if let Some(message) = self.messages.as_mut().and_then(&mut take) {
                return Ok(message);
            }
            self.wait_for_any(&mut wait_state, &own, moved).map_err(|error| self.slow_if_arriving(error))?;
        }
    }

    /// Waits until these ranks have received all messages to them, and know which ones this rank has, at most until the
    /// deadline.
    pub fn flush_messages(&mut self, to: &[usize], deadline: Duration) -> Result<()> {
        let mut wait_state = WaitState::new(self.now(), deadline);
        loop {
            let moved = self.advance()?;
            let Some(messages) = &self.messages else { return Ok(()) };
            let missing = |peer: usize| match to.contains(&peer) {
                true => messages.pending(peer),
                false => Interest::default(),
            };
            let own: Vec<Interest> = (0..self.world()).map(missing).collect();
            if own.iter().all(|interest| *interest == Interest::default()) {
                return Ok(());
            }
            self.wait_for_any(&mut wait_state, &own, moved)?;
        }
    }

    /// Sleeps, while messages and operations move; fails if a rank is lost.
    pub fn sleep(&mut self, duration: Duration) -> Result<()> {
        self.sleep_until(duration, |_| None::<()>).map(drop)
    }

    /// The same, at most until `take` takes a message.
    pub fn sleep_until<T>(
        &mut self,
        duration: Duration,
        mut take: impl FnMut(&mut Messages) -> Option<T>,
    ) -> Result<Option<T>> {
        let end = self.now() + duration;
        loop {
            let moved = self.advance()?;
            if let Some(message) = self.messages.as_mut().and_then(&mut take) {
                return Ok(Some(message));
            }
            let rest = end.saturating_sub(self.now());
            if rest.is_zero() {
                return Ok(None);
            }
            self.transport.poll(if moved { Duration::ZERO } else { rest })?;
            if let Some(messages) = &mut self.messages {
                messages.on_waited(self.transport.now());
            }
        }
    }

    /// A rank of whose message a part has arrived is slow, not silent.
    fn slow_if_arriving(&self, error: TransportError) -> TransportError {
        let heard = error.peer.and_then(|peer| self.messages.as_ref()?.is_arriving(peer));
        match (&error.cause, heard) {
            (Cause::Silent { waited }, Some(heard)) => {
                let quiet = self.now().saturating_sub(heard).min(*waited);
                TransportError { cause: Cause::Slow { waited: *waited, quiet }, ..error }
            }
            _ => error,
        }
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
        if self.messages.is_none() && !self.is_busy() {
            return self.transport.wait(state, wanted, moved);
        }
        let moved = self.advance_beside(wanted)? || moved;
        self.wait_for_any(state, wanted, moved)
    }

    fn timeout_error(&self, wait_state: &WaitState, pending: Vec<usize>) -> TransportError {
        self.transport.timeout_error(wait_state, pending)
    }

    fn set_background(&mut self, interests: &[Interest], unsent: &[bool]) {
        self.transport.set_background(interests, unsent);
    }

    fn is_held(&self, peer: usize) -> bool {
        self.transport.is_held(peer)
    }

    fn poll(&mut self, timeout: Duration) -> Result<()> {
        self.advance()?;
        self.transport.poll(timeout)
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
