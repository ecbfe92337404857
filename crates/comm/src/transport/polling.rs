//! One `poll(2)` for all peers: readable, writable, hung up.

use crate::linux::hangup::is_hang_up;
use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};
use std::io;
use std::time::Duration;

/// Waits for the first event of a `watched` peer or of `wakeup`, or until the timeout; appends to `hung_up` the peers
/// that ended their streams. `poll_fd` returns the descriptor and events of a peer.
pub(super) fn poll_peers<'a, L>(
    links: &'a [Option<L>],
    watched: &[bool],
    poll_fd: impl Fn(usize, &'a L) -> PollFd<'a>,
    wakeup: Option<PollFd<'a>>,
    timeout: Duration,
    hung_up: &mut Vec<usize>,
) -> io::Result<()> {
    let mut peers = Vec::with_capacity(links.len());
    let mut all = Vec::with_capacity(links.len() + 1);
    for (peer, link) in links.iter().enumerate() {
        if let (Some(link), true) = (link, watched[peer]) {
            peers.push(peer);
            all.push(poll_fd(peer, link));
        }
    }
    all.extend(wakeup);
    let timeout = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
    match poll(&mut all, PollTimeout::from(timeout)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let ended = peers.iter().zip(&all).filter(|(_, polled)| is_hang_up(polled));
    hung_up.extend(ended.map(|(peer, _)| *peer));
    Ok(())
}
