//! Processes of one host, and those of other hosts beside them.
//!
//! A rank reaches the peers on its host through shared memory ([`ShmRing`]) and all others over TCP. The kind of each
//! link is fixed when the group is formed, and callers see one transport. A waiting rank polls memory; when that
//! would take a core from another rank it sleeps, in one `poll(2)` for all: its eventfd, which local peers notify if
//! it sleeps, the connections to local peers, whose end is that of the peer, and the sockets to other hosts.

use super::link::{Link, LinkSet};
use super::polling::poll_peers;
use super::shm_ring::ShmRing;
use super::stream::StreamTransport;
use super::tcp::{Socket, check_mesh};
use super::wait_state::Interest;
use crate::host::EventFd;
use crate::wait::SpinPolicy;
use nix::poll::{PollFd, PollFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// A transport through shared memory where there is any, over TCP elsewhere.
pub type Shm = StreamTransport<ShmLinks>;

impl Shm {
    /// Rank `rank` of a group of `links.len()`, with a link to each other rank; `wakeup` is the eventfd that its
    /// local peers have.
    pub fn new(rank: usize, links: Vec<Option<ShmLink>>, wakeup: EventFd) -> io::Result<Shm> {
        check_mesh(rank, &links)?;
        let local_peers = links.iter().flatten().filter(|link| matches!(link, ShmLink::Ring(_))).count();
        let spin_policy = SpinPolicy::for_shared_memory(local_peers + 1);
        Ok(StreamTransport::over(
            rank,
            ShmLinks { links, wakeup, spin_policy, notifications_requested: false },
        ))
    }
}

/// The link to one peer.
pub enum ShmLink {
    Ring(ShmRing),
    Socket(Socket),
}

impl ShmLink {
    /// Descriptor and events to poll. A ring is polled only for the end of its peer: its data is notified by eventfd.
    fn poll_fd(&self, interest: Interest) -> PollFd<'_> {
        match self {
            ShmLink::Ring(ring) => ring.peer().poll_fd(),
            ShmLink::Socket(socket) => socket.poll_fd(interest),
        }
    }
}

impl Read for ShmLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ShmLink::Ring(ring) => ring.read(buffer),
            ShmLink::Socket(socket) => socket.read(buffer),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            ShmLink::Ring(ring) => ring.read_vectored(buffers),
            ShmLink::Socket(socket) => socket.read_vectored(buffers),
        }
    }
}

impl Write for ShmLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ShmLink::Ring(ring) => ring.write(bytes),
            ShmLink::Socket(socket) => socket.write(bytes),
        }
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            ShmLink::Ring(ring) => ring.write_vectored(buffers),
            ShmLink::Socket(socket) => socket.write_vectored(buffers),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for ShmLink {
    fn unread(&mut self) -> io::Result<Vec<u8>> {
        match self {
            ShmLink::Ring(ring) => ring.unread(),
            ShmLink::Socket(socket) => socket.unread(),
        }
    }

    fn shutdown_write(&mut self) {
        match self {
            ShmLink::Ring(ring) => ring.shutdown_write(),
            ShmLink::Socket(socket) => socket.shutdown_write(),
        }
    }
}

/// The links of one rank.
pub struct ShmLinks {
    links: Vec<Option<ShmLink>>,
    wakeup: EventFd,
    spin_policy: SpinPolicy,
    /// Local peers were asked to notify the eventfd.
    notifications_requested: bool,
}

impl ShmLinks {
    fn rings(&self) -> impl Iterator<Item = &ShmRing> {
        self.links.iter().flatten().filter_map(|link| match link {
            ShmLink::Ring(ring) => Some(ring),
            ShmLink::Socket(_) => None,
        })
    }
}

impl LinkSet for ShmLinks {
    type Link = ShmLink;

    fn links(&mut self) -> &mut [Option<ShmLink>] {
        &mut self.links
    }

    /// The first wait only requests notifications and returns. Another attempt sees what peers did before the
    /// request, and what they do after it notifies the eventfd, so that the second wait may sleep.
    fn wait(
        &mut self,
        interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        let first = !std::mem::replace(&mut self.notifications_requested, true);
        if first {
            self.rings().for_each(ShmRing::request_notifications);
        }
        let timeout = if first { Duration::ZERO } else { timeout };
        let poll_fd = |peer: usize, link| ShmLink::poll_fd(link, interests[peer]);
        let wakeup = PollFd::new(self.wakeup.as_fd(), PollFlags::POLLIN);
        poll_peers(&self.links, watched, poll_fd, Some(wakeup), timeout, hung_up)?;
        if !first {
            self.on_progress();
        }
        Ok(())
    }

    fn on_progress(&mut self) {
        if std::mem::replace(&mut self.notifications_requested, false) {
            self.rings().for_each(ShmRing::cancel_notifications);
            // An eventfd that cannot be cleared only ends the next sleep early.
            let _ = self.wakeup.clear();
        }
    }

    fn wake_peers(&mut self) {
        // A running rank needs no notifications.
        self.on_progress();
        ShmRing::wake_all(self.rings());
    }

    fn spin_policy(&self) -> SpinPolicy {
        self.spin_policy
    }
}
