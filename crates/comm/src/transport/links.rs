//! What a transport is made over: a byte stream to each other rank, and how to wait for all of them.

use super::Moved;
#[cfg(doc)]
use super::Transport;
use super::vigil::Interest;
use crate::wait::Patience;
#[cfg(doc)]
use crate::wire::HEADER;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A byte stream to one other rank. Reading and writing never block.
pub trait Link: Read + Write + Send {
    /// What the peer sent last before it ended the stream, without taking it: at least the last [`HEADER`] bytes
    /// that are not read yet, or all of them. Called only after the stream was found ended.
    fn last_words(&mut self) -> io::Result<Vec<u8>>;

    /// Whether the peer has taken all that was written, as far as this stream can know.
    fn is_drained(&mut self) -> bool {
        true
    }

    /// Whether a farewell travels apart from the bytes, so that it can be told in the middle of a frame.
    const FAREWELL_APART: bool = false;

    /// Writes a farewell, or as much of it as there is room for.
    fn bid_farewell(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }

    /// Ends the outgoing half; what was written before still arrives.
    fn finish(&mut self);
}

/// All streams of one rank.
pub trait Wires: Send {
    /// The stream to one peer.
    type Link: Link;

    /// The streams by rank; the own place is empty.
    fn links(&mut self) -> &mut [Option<Self::Link>];

    /// Called before each attempt to move frames; what changes after it must end the following [`Wires::wait`].
    fn mark(&mut self) {}

    /// Waits until one of the interests is met, a peer that is `watched` ended its stream, or `timeout` has passed,
    /// and adds to `hung_up` the watched peers that did.
    fn wait(
        &mut self,
        interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()>;

    /// Called when something has moved: whoever was about to sleep goes on.
    fn awake(&mut self) {}

    /// Ends the wait of all peers that share memory, or the next one that they begin; see [`Transport::nudge`].
    fn nudge(&mut self) {}

    /// The time by which deadlines are kept: since some fixed moment, never going back.
    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    /// Lets time pass.
    fn pause(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    /// What to do before sleeping.
    fn patience(&self) -> Patience {
        Patience::NONE
    }

    /// See [`Transport::adds_up`].
    fn adds_up(&self) -> bool {
        false
    }

    /// Goes on with an all-reduce of its own, as far as it goes without waiting; see [`Transport::add_up`].
    fn add_up(&mut self, _buffer: &mut [f32]) -> io::Result<Moved> {
        Err(io::Error::new(ErrorKind::Unsupported, "this transport has no all-reduce of its own"))
    }

    /// The group was left in good order.
    fn left(&mut self) {}
}

/// Whether the stream has nothing to give or take right now.
pub(crate) fn try_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
