//! Sockets between processes and hosts.
//!
//! A full mesh of connected, already authenticated streams. One `poll(2)` serves all sends and receives of a transfer
//! in both directions, without threads, and watches every peer of the group for a hang-up, so that ranks notice the
//! death of a peer with which they exchange nothing.

use super::link::{Link, LinkSet};
use super::polling::poll_peers;
use super::stream::StreamTransport;
use super::wait_state::Interest;
use crate::linux::{disable_pacing, hangup};
use crate::wait::SpinPolicy;
use nix::poll::{PollFd, PollFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// A transport over TCP connections.
pub type Tcp = StreamTransport<Sockets>;

impl Tcp {
    /// Rank `rank` of a group of `peers.len()`, connected to each of the others; `peers[rank]` is `None`.
    ///
    /// The handshake on the streams must be complete: from now on they carry only frames.
    pub fn new(rank: usize, peers: Vec<Option<TcpStream>>) -> io::Result<Tcp> {
        check_mesh(rank, &peers)?;
        let local_peers = peers.iter().flatten().filter(|stream| is_on_this_host(stream)).count();
        let spin_policy = SpinPolicy::for_ranks(local_peers + 1);
        let links: io::Result<Vec<Option<Socket>>> =
            peers.into_iter().map(|stream| stream.map(Socket::new).transpose()).collect();
        Ok(StreamTransport::over(rank, Sockets { links: links?, spin_policy }))
    }
}

/// Refuses anything but one connection to each other rank and none to itself.
pub(super) fn check_mesh<T>(rank: usize, peers: &[Option<T>]) -> io::Result<()> {
    let invalid = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    if rank >= peers.len() {
        return invalid(format!("rank {rank} is not in a world of {}", peers.len()));
    }
    match peers.iter().enumerate().find(|(peer, link)| link.is_some() == (*peer == rank)) {
        Some((peer, _)) => {
            invalid(format!("rank {rank} needs one connection to each other rank; see rank {peer}"))
        }
        None => Ok(()),
    }
}

/// Whether both ends have the same address.
fn is_on_this_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(here), Ok(there)) => here.ip() == there.ip(),
        _ => false,
    }
}

/// The connection to one peer.
pub struct Socket(TcpStream);

impl Socket {
    /// The stream must carry only frames from now on.
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if is_on_this_host(&stream) {
            disable_pacing(&stream);
        }
        Ok(Socket(stream))
    }

    /// Descriptor and events to poll: the interest, and the end of the peer's stream.
    pub(super) fn poll_fd(&self, interest: Interest) -> PollFd<'_> {
        PollFd::new(self.0.as_fd(), events(interest))
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.read_vectored(buffers)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Socket {
    fn unread(&mut self) -> io::Result<Vec<u8>> {
        hangup::unread(&self.0)
    }

    fn shutdown_write(&mut self) {
        // Fails only if the connection is closed already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// The connections of one rank.
pub struct Sockets {
    links: Vec<Option<Socket>>,
    spin_policy: SpinPolicy,
}

impl LinkSet for Sockets {
    type Link = Socket;

    fn links(&mut self) -> &mut [Option<Socket>] {
        &mut self.links
    }

    fn wait(
        &mut self,
        interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        let poll_fd = |peer: usize, link| Socket::poll_fd(link, interests[peer]);
        poll_peers(&self.links, watched, poll_fd, None, timeout, hung_up)
    }

    fn spin_policy(&self) -> SpinPolicy {
        self.spin_policy
    }
}

fn events(interest: Interest) -> PollFlags {
    let mut events = hangup::WATCH;
    events.set(PollFlags::POLLIN, interest.read);
    events.set(PollFlags::POLLOUT, interest.write);
    events
}
