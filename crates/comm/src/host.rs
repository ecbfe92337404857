//! Connections between ranks of one host.
//!
//! Two ranks with the same [`host_identity`] can share memory. One opens a [`LocalListener`], the other calls
//! [`connect_local`]; the result is a [`LocalPeer`] on both sides: a Unix socket over which file descriptors pass,
//! and whose end is the end of the other rank.

use crate::linux;
pub use crate::linux::{
    EventFd, LocalListener, LocalToken, Segment, Writers, check_room, connect_local, host_identity,
};
use nix::poll::PollFd;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A connection to another rank of this host.
#[derive(Clone, Debug)]
pub struct LocalPeer(Arc<UnixStream>, Arc<Option<linux::PidFd>>);

/// Local peers by rank; `None` for this rank and for ranks on other hosts.
pub type LocalPeers = Vec<Option<LocalPeer>>;

impl LocalPeer {
    /// From a connection on which both sides are authenticated.
    pub fn new(socket: UnixStream) -> LocalPeer {
        // Without a pidfd (a kernel before 5.3) `kill` fails.
        let process = linux::PidFd::of_peer(&socket).unwrap_or_default();
        LocalPeer(Arc::new(socket), Arc::new(process))
    }

    /// Kills the peer's process and waits until the kernel confirms it, so that it cannot write to shared memory any
    /// more; false if there is no confirmation in time. Also false for a thread of this process, which cannot be
    /// killed.
    pub fn kill(&self, timeout: Duration) -> bool {
        self.1.as_ref().as_ref().is_some_and(|process| process.kill(timeout))
    }

    /// Both ends of a connection, for ranks that are threads.
    pub fn pair() -> io::Result<(LocalPeer, LocalPeer)> {
        let (one, other) = UnixStream::pair()?;
        Ok((LocalPeer::new(one), LocalPeer::new(other)))
    }

    /// Sends file descriptors in one message.
    pub fn send_fds(&self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        linux::send_fds(&self.0, files)
    }

    /// Receives exactly `count` file descriptors that were sent in one message.
    pub fn receive_fds(&self, count: usize, timeout: Duration) -> io::Result<Vec<OwnedFd>> {
        self.0.set_read_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        linux::receive_fds(&self.0, count)
    }

    /// Descriptor and events to poll for the end of the peer.
    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(self.0.as_fd(), linux::hangup::WATCH)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        // Fails only if the peer has closed the connection already.
        let _ = self.0.shutdown(how);
    }
}

/// Connections between all pairs of `world` threads: `[rank][peer]`.
pub fn connect_threads(world: usize) -> io::Result<Vec<LocalPeers>> {
    let mut all: Vec<LocalPeers> = (0..world).map(|_| vec![None; world]).collect();
    for (one, other) in (0..world).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let (here, there) = LocalPeer::pair()?;
        all[one][other] = Some(here);
        all[other][one] = Some(there);
    }
    Ok(all)
}
