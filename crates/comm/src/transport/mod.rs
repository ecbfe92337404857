//! Moving frames between the ranks of one group.
//!
//! A [`Transport`] is one rank's endpoint in its group. [`Transport::send`] and [`Transport::receive`] are
//! nonblocking and advance one frame each. [`Transport::wait`] blocks, with a deadline, until another attempt may
//! succeed, and turns the loss of any rank into a [`TransportError`] that names it. [`Transport::transfer`] combines
//! the three: it runs any number of sends and receives concurrently, so that no schedule depends on buffering.
//!
//! [`mem`] connects threads, [`shm`] processes of one host, [`tcp`] hosts, [`sim`] simulated ranks in virtual time,
//! and `mpi` (a feature) the ranks of an MPI job. All of them are [`stream::StreamTransport`]s over their own byte
//! streams, so that framing, checksums, deadlines and failure attribution are implemented once.

mod early_frames;
pub mod error;
mod inbox;
pub mod link;
mod link_fault;
pub mod mem;
#[cfg(feature = "mpi")]
pub mod mpi;
mod outbox;
mod peer_activity;
mod peer_state;
mod polling;
mod progress_counters;
pub mod shm;
pub mod shm_ring;
pub mod sim;
pub mod stream;
pub mod tcp;
mod transfer;
pub(crate) mod wait_state;

pub use crate::wire::Tag;
pub use error::{Cause, TransportError, culprit};
pub use link_fault::{ForgedFrame, LinkFault};
pub use mem::{LinkControl, Mem, mesh};
pub use progress_counters::{AwaitedPeers, ProgressCounters};
pub use shm::{Shm, ShmLink};
pub use shm_ring::ShmRing;
pub use tcp::Tcp;
pub use wait_state::{Interest, WaitMode, WaitState};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A chunk to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub to: usize,
    /// Index of the chunk within the operation's buffer.
    pub chunk: u32,
    /// At most [`crate::wire::MAX_PAYLOAD`].
    pub bytes: &'a [u8],
}

/// A chunk to receive, and the memory it is received into.
#[derive(Debug)]
pub struct Incoming<'a> {
    pub from: usize,
    /// Index of the chunk within the operation's buffer.
    pub chunk: u32,
    /// The sender must send exactly this many bytes.
    pub bytes: &'a mut [u8],
}

/// One rank's endpoint in a fully connected group of ranks.
pub trait Transport: Send {
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world(&self) -> usize;

    /// Monotonic time since a fixed moment; deadlines are measured by it.
    fn now(&self) -> Duration;

    /// Advances the send of this frame as far as possible without blocking. The caller repeats it with the same frame
    /// until it is complete and must not change the memory before. While one frame to a rank is in progress, another
    /// to the same rank is blocked.
    ///
    /// A send never relies on buffering: it may complete only when the peer receives.
    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<IoProgress, TransportError>;

    /// Advances the receive of this frame as far as possible without blocking. The caller repeats it with the same
    /// memory until it is complete. Frames from one rank arrive in the order in which they were sent: an unexpected
    /// frame is an error of its sender, unless `mode` allows frames of other operations.
    fn receive(
        &mut self,
        tag: Tag,
        frame: Incoming<'_>,
        mode: MatchMode,
    ) -> Result<IoProgress, TransportError>;

    /// Called after one attempt to advance all frames, with what is still wanted from each peer and whether anything
    /// moved. Returns when another attempt makes sense.
    ///
    /// Fails with an error that names a rank when *any* rank of the group is lost (not only the wanted ones), when
    /// the deadline of `wait` has passed, or when [`Abort::abort`] is called. A rank that left the group by
    /// [`Transport::close`] is an error only for ranks that still want something from it.
    fn wait(&mut self, wait: &mut WaitState, wanted: &[Interest], moved: bool) -> Result<(), TransportError>;

    /// The error for a wait that ended while frames of the `pending` peers were incomplete. It distinguishes peers
    /// that never entered the operation from peers that are slow.
    fn timeout_error(&self, wait: &WaitState, pending: Vec<usize>) -> TransportError;

    /// What ends waits from now on besides what is wanted, by peer, although no wait is for it: messages that can move; and
    /// to which peers messages are `unsent`.
    ///
    /// Frames of operations overtake unsent messages to the same peer by what the peer can buffer, 16 MiB. Then they are
    /// blocked until those messages are written: the peer may wait for one before it takes part in the operation.
    fn set_background(&mut self, interests: &[Interest], unsent: &[bool]);

    /// Whether a frame of an operation to this peer was blocked until messages are written.
    fn is_held(&self, peer: usize) -> bool;

    /// Checks whether a rank of the group is lost. For ranks that compute or sleep and wait for no peer: waits up to
    /// `timeout` until another attempt makes sense.
    fn poll(&mut self, timeout: Duration) -> Result<(), TransportError>;

    /// Wakes peers that sleep in [`Transport::wait`], because shared memory that they wait for may have changed. No
    /// effect on running peers, nor where no memory is shared.
    fn wake_peers(&mut self);

    /// From now on several groups may use the connections concurrently: frames of other groups, and of later
    /// operations, stay buffered until they are received. Before, a frame of another group is an error.
    fn admit_groups(&mut self);

    /// Whether the transport has an all-reduce of its own.
    fn has_native_all_reduce(&self) -> bool;

    /// Advances the transport's own all-reduce (sum, in place) as far as possible without blocking. All ranks repeat
    /// it with buffers of the same length until it is complete. An error without
    /// [`Transport::has_native_all_reduce`].
    fn native_all_reduce(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<IoProgress, TransportError>;

    /// Runs all sends and receives concurrently and returns when all are complete. Chunks to or from the same rank
    /// travel in the order of the list.
    ///
    /// After an error the contents of the receive buffers are unspecified, the group is unusable, and every further
    /// transfer returns the same error.
    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        deadline: Duration,
    ) -> Result<(), TransportError> {
        transfer::transfer(self, tag, sends, receives, deadline)
    }

    /// Injects a fault into the link to a peer, for `fault.inject`; see [`LinkFault`]. No effect without such a link
    /// or, for bytes, without room on it.
    fn inject(&mut self, _peer: usize, _fault: LinkFault) {}

    fn traffic(&self) -> Traffic;

    /// A handle by which another thread ends a transfer in progress.
    fn abort_handle(&self) -> Abort;

    fn progress_counters(&self) -> &ProgressCounters;

    /// Leaves the group in good order: a close frame tells the peers that this rank is done.
    ///
    /// A transport that is dropped without it looks like a dead rank to its peers, as it should for a rank that
    /// fails.
    fn close(&mut self);
}

/// Result of one nonblocking attempt to move a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoProgress {
    /// No byte moved.
    Blocked,
    Partial,
    Complete,
}

/// Which frames besides the expected one may arrive from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchMode {
    /// None: any other frame is an error. [`Transport::admit_groups`] widens it to [`MatchMode::OtherGroups`].
    Exact,
    /// Frames of other groups, and of later operations of this one, stay buffered until they are received.
    OtherGroups,
    /// Frames of all other operations, and of other groups if they are admitted, stay buffered until they are received.
    AnyOperation,
}

/// Bytes that passed through a transport since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub payload_sent: u64,
    pub payload_received: u64,
    /// Headers included.
    pub total_sent: u64,
    /// Headers included.
    pub total_received: u64,
}

impl Traffic {
    /// Counts an all-reduce of `bytes` that was not made of frames as its lower bound: every rank sends and receives
    /// 2 (world - 1) / world of the buffer.
    pub(crate) fn add_sum(&mut self, bytes: usize, world: usize) {
        let least = (2 * bytes as u64 * (world as u64 - 1)).div_ceil(world as u64);
        self.payload_sent += least;
        self.payload_received += least;
        self.total_sent += least;
        self.total_received += least;
    }
}

/// Ends the transfers of one rank from another thread, within about 20 ms.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<AtomicBool>);

impl Abort {
    /// Ends the transfer in progress and every later one with [`Cause::Aborted`].
    pub fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_aborted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
