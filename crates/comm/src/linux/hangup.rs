//! How a socket tells that the other side is gone. The only part of the TCP transport that depends on the system.

use nix::poll::{PollFd, PollFlags};
use std::io;
use std::net::TcpStream;

/// The event to ask for beside the errors and hang-ups that are always reported: on Linux the end of the peer's
/// half, which is seen without reading what is still to be read.
#[cfg(target_os = "linux")]
pub(crate) const WATCH: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);

/// Other systems report a hang-up only when both halves are closed.
#[cfg(not(target_os = "linux"))]
pub(crate) const WATCH: PollFlags = PollFlags::empty();

/// Whether the events of a polled socket say that the peer ended its stream.
pub(crate) fn is_hang_up(polled: &PollFd<'_>) -> bool {
    let ends = WATCH | PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    // None stands for a flag without a name there, and WATCH is the only one that was asked for.
    polled.revents().is_none_or(|events| events.intersects(ends))
}

/// All that an ended stream still holds, left in place.
pub(crate) fn unread(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut words = vec![0; 64 << 10];
    loop {
        let count = stream.peek(&mut words)?;
        if count < words.len() {
            words.truncate(count);
            return Ok(words);
        }
        words.resize(words.len() * 2, 0);
    }
}
