//! What a transport is built over: a byte stream to each peer, and how to wait for all of them.

use super::IoProgress;
#[cfg(doc)]
use super::Transport;
use super::wait_state::Interest;
use crate::wait::SpinPolicy;
#[cfg(doc)]
use crate::wire::HEADER;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A nonblocking byte stream to one peer.
pub trait Link: Read + Write + Send {
    /// The unread bytes, without consuming them. Of a stream that the peer ended, at least the last [`HEADER`] bytes.
    fn unread(&mut self) -> io::Result<Vec<u8>>;

    /// Whether the peer has read everything written, as far as the stream can know.
    fn is_drained(&mut self) -> bool {
        true
    }

    /// Whether a close frame travels outside of the byte stream, so that it can be sent in the middle of another
    /// frame.
    const CLOSE_OUT_OF_BAND: bool = false;

    /// Writes a close frame, or as much of it as there is room for.
    fn write_close_frame(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }

    /// Ends the outgoing direction; everything written before still arrives.
    fn shutdown_write(&mut self);
}

/// All links of one rank.
pub trait LinkSet: Send {
    type Link: Link;

    /// The links by rank; `None` for the rank itself.
    fn links(&mut self) -> &mut [Option<Self::Link>];

    /// Called before each attempt to move frames; changes after it must end the following [`LinkSet::wait`].
    fn mark(&mut self) {}

    /// Waits until one of the interests is ready, a `watched` peer ended its stream, or `timeout` has passed. Appends
    /// the watched peers that ended their streams to `hung_up`.
    fn wait(
        &mut self,
        interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()>;

    /// Called after progress: cancels preparations for sleep.
    fn on_progress(&mut self) {}

    /// Ends the current or next wait of all peers that share memory; see [`Transport::wake_peers`].
    fn wake_peers(&mut self) {}

    /// Monotonic time since a fixed moment; deadlines are measured by it.
    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    /// How long to poll before sleeping.
    fn spin_policy(&self) -> SpinPolicy {
        SpinPolicy::NONE
    }

    /// See [`Transport::has_native_all_reduce`].
    fn has_native_all_reduce(&self) -> bool {
        false
    }

    /// See [`Transport::native_all_reduce`].
    fn native_all_reduce(&mut self, _buffer: &mut [f32]) -> io::Result<IoProgress> {
        Err(io::Error::new(ErrorKind::Unsupported, "this transport has no all-reduce of its own"))
    }

    /// Called when the group was left in good order.
    fn on_close(&mut self) {}
}

/// Writes a close frame to a peer and ends the outgoing direction; returns the bytes written within `timeout`.
pub(super) fn close_link<L: LinkSet>(links: &mut L, peer: usize, frame: &[u8], timeout: Duration) -> usize {
    let start = links.now();
    let mut written = 0;
    while written < frame.len() {
        let Some(link) = &mut links.links()[peer] else { break };
        match link.write_close_frame(&frame[written..]) {
            Ok(count) if count > 0 => written += count,
            Err(error) if would_block(&error) && links.now() - start < timeout => {
                links.sleep(Duration::from_millis(1));
            }
            _ => break,
        }
    }
    if let Some(link) = &mut links.links()[peer] {
        link.shutdown_write();
    }
    written
}

/// Whether a nonblocking call has to be repeated later.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether an error is one of the ways in which the stream of a dead peer ends.
pub(super) fn is_end_of_stream(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let ends = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
    would_block(error) || ends.contains(&error.kind())
}
