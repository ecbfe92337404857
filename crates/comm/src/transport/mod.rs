//! Moving frames between the ranks of one group.
//!
//! A [`Transport`] is a rank's view of its group. Two verbs never block: [`Transport::send`] and
//! [`Transport::receive`] go on with one frame. [`Transport::attend`] waits, with a deadline, until there may be more to
//! do, and turns whatever happened to the others into a fault that names one. [`Transport::transfer`], made of them,
//! carries out any number of sends and receives at once, so that nothing depends on a buffer in between.
//! [`mem`] connects threads, [`shm`] processes of one host, [`tcp`] hosts, [`sim`] ranks in virtual time, and with the
//! feature of that name `mpi` what an MPI connects; all are [`stream::Streamed`] over their own byte streams, so that framing, checksums, deadlines and blame exist once.

pub mod activity;
mod aside;
pub mod fault;
mod inbox;
mod link_fault;
pub mod links;
pub mod mem;
#[cfg(feature = "mpi")]
pub mod mpi;
mod outbox;
mod polling;
pub mod ring;
pub mod shm;
mod sign;
pub mod sim;
mod standing;
pub mod stream;
pub mod tcp;
mod transfer;
pub mod vigil;

pub use crate::wire::Tag;
pub use activity::Activity;
pub use fault::{Cause, Fault, culprit};
pub use link_fault::{Forgery, LinkFault};
pub use mem::{Links, Mem, mesh};
pub use ring::Ring;
pub use shm::{Shm, Way};
pub use tcp::Tcp;
pub use vigil::{Interest, Vigil};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A chunk to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The rank that receives it.
    pub to: usize,
    /// Which part of the buffer it is.
    pub chunk: u32,
    /// Its bytes, at most [`crate::wire::MAX_PAYLOAD`].
    pub bytes: &'a [u8],
}

/// A chunk to receive, and the memory it goes to.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The rank that sends it.
    pub from: usize,
    /// Which part of the buffer it is.
    pub chunk: u32,
    /// Where it goes; the sender must send exactly this many bytes.
    pub bytes: &'a mut [u8],
}

/// One rank's view of a group of ranks that are connected to each other.
pub trait Transport: Send {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn world(&self) -> usize;

    /// Time since some fixed moment, by which deadlines are measured.
    fn now(&self) -> Duration;

    /// Goes on sending this frame, as far as it goes without waiting. Repeated with the same frame until all of it has
    /// moved; the memory may change only then. While a frame is under way to a rank, another one to it moves nothing.
    ///
    /// No send relies on a buffer: it may take until the other rank receives.
    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<Moved, Fault>;

    /// Goes on receiving this frame, as far as it goes without waiting. Repeated with the same memory until all of it
    /// has moved. Frames from a rank arrive in the order in which it sent them: one that is not expected is a fault of
    /// that rank, unless it belongs to another operation and `company` says that several are in progress.
    fn receive(&mut self, tag: Tag, frame: Incoming<'_>, company: Company) -> Result<Moved, Fault>;

    /// Called when an attempt to move all frames at hand has ended, with what is still wanted by peer and whether
    /// anything moved. Returns when another attempt makes sense.
    ///
    /// Ends with a fault that names a rank when *any* rank of the group is lost (not only those of interest), when the
    /// vigil's deadline has passed, or when [`Abort::abort`] is called. A rank that left the group by
    /// [`Transport::close`] is a fault only for those who still want something from it.
    fn attend(&mut self, vigil: &mut Vigil, wanted: &[Interest], moved: bool) -> Result<(), Fault>;

    /// What it means that these have not moved all that was wanted of them by the end of a vigil in which
    /// [`Transport::attend`] found so: whether they never came to the operations that were asked for, or are slow.
    fn overdue(&self, vigil: &Vigil, owed: Vec<usize>) -> Fault;

    /// Looks, without waiting, whether a rank of the group is lost, for one that has work of its own and waits for nobody.
    fn glance(&mut self) -> Result<(), Fault>;

    /// Lets peers that wait in [`Transport::attend`] look again: what they wait for, in memory that is shared with them,
    /// may have changed. It does not touch those that are awake, and nothing where no memory is shared.
    fn nudge(&mut self);

    /// From now on other groups than the one that is received for may be at work, too: their frames wait until they are
    /// asked for, and so do those of later operations.
    fn admit_groups(&mut self);

    /// Whether it has an all-reduce of its own.
    fn adds_up(&self) -> bool;

    /// Goes on adding up this buffer over all ranks by the transport's own means, in place, as far as it goes without
    /// waiting. Repeated with the same buffer until all of it has moved; all ranks must do so, with buffers of the same
    /// length. A fault where it [has none](Transport::adds_up).
    fn add_up(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<Moved, Fault>;

    /// Carries out all sends and receives at once and returns when all are done, see [`Transport::send`],
    /// [`Transport::receive`] and [`Transport::attend`]. Several chunks to or from the same rank travel in the order of
    /// the list.
    ///
    /// After a fault the contents of the receiving memory are unspecified, the group is at its end, and every
    /// further transfer returns the same fault.
    fn transfer(
        &mut self,
        tag: Tag,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        deadline: Duration,
    ) -> Result<(), Fault> {
        transfer::transfer(self, tag, sends, receives, deadline)
    }

    /// Lets a fault happen to the link to a peer. Nothing where there is none.
    fn inject(&mut self, _peer: usize, _fault: LinkFault) {}

    /// What has passed through so far.
    fn traffic(&self) -> Traffic;

    /// A handle by which another thread ends a transfer in progress.
    fn abort_handle(&self) -> Abort;

    /// Where other threads see that it moves things.
    fn activity(&self) -> &Activity;

    /// Leaves the group in good order: the others are told that this rank is done, not dead.
    ///
    /// A transport that is dropped without it looks like a dead rank to the others, which is what a rank that ends
    /// with an error of its own wants.
    fn close(&mut self);
}

/// How far a frame has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Not at all.
    Nothing,
    /// A bit further.
    Part,
    /// All of it.
    Whole,
}

/// Whether a rank has one operation in progress or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// One: a frame of another operation is a fault, unless [several groups](Transport::admit_groups) are at work.
    Alone,
    /// Several: a frame of another operation waits until that one asks for it.
    Several,
}

/// Bytes that passed through a transport since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Payload handed to the network.
    pub payload_sent: u64,
    /// Payload taken from the network.
    pub payload_received: u64,
    /// All bytes handed to the network, headers included.
    pub total_sent: u64,
    /// All bytes taken from the network, headers included.
    pub total_received: u64,
}

impl Traffic {
    /// Counts a sum of so many bytes that was not made of messages of ours as those it needs at least: from every rank
    /// what it adds to the others' shares, and the sum of its own.
    pub(crate) fn add_sum(&mut self, bytes: usize, world: usize) {
        let least = (2 * bytes as u64 * (world as u64 - 1)).div_ceil(world as u64);
        self.payload_sent += least;
        self.payload_received += least;
        self.total_sent += least;
        self.total_received += least;
    }
}

/// Ends the transfers of one rank from another thread, within some 20 ms.
#[derive(Clone, Debug, Default)]
pub struct Abort(Arc<AtomicBool>);

impl Abort {
    /// Ends the transfer in progress and every later one with [`Cause::Aborted`].
    pub fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether [`Abort::abort`] was called.
    pub fn is_aborted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
