//! Detects that the peer of a socket closed its stream. The only part of the TCP transport that depends on the
//! system.

use nix::poll::{PollFd, PollFlags};
use std::io;
use std::net::TcpStream;

/// The event to poll for besides errors and hang-ups, which are always reported: on Linux the end of the peer's
/// stream, which is reported even while data is unread.
#[cfg(target_os = "linux")]
pub(crate) const WATCH: PollFlags = PollFlags::from_bits_retain(nix::libc::POLLRDHUP);

/// Other systems report a hang-up only when both directions are closed.
#[cfg(not(target_os = "linux"))]
pub(crate) const WATCH: PollFlags = PollFlags::empty();

/// Whether the peer of a polled socket ended its stream.
pub(crate) fn is_hang_up(polled: &PollFd<'_>) -> bool {
    let ends = WATCH | PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    // `None` means a flag without a name in nix, and WATCH is the only one that was requested.
    polled.revents().is_none_or(|events| events.intersects(ends))
}

/// The unread bytes of a stream, without consuming them.
pub(crate) fn unread(stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = stream.peek(&mut bytes)?;
        if count < bytes.len() {
            bytes.truncate(count);
            return Ok(bytes);
        }
        bytes.resize(bytes.len() * 2, 0);
    }
}
