//! Sockets between processes and hosts.
//!
//! A full mesh of connected, already authenticated streams. One `poll(2)` serves all sends and receives of a
//! transfer in both directions, without threads, and watches every peer of the group for a hang-up, so that a death
//! is noticed by those who exchange nothing with the dead.

use super::links::{Link, Wires};
use super::polling::poll_peers;
use super::stream::Streamed;
use super::vigil::Interest;
use crate::linux::{hangup, send_at_once};
use crate::wait::Patience;
use nix::poll::{PollFd, PollFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// A transport over TCP connections.
pub type Tcp = Streamed<Sockets>;

impl Tcp {
    /// Rank `rank` of a group of `peers.len()`, connected to each of the others; `peers[rank]` is `None`.
    ///
    /// The streams must be fresh: nothing but frames may be on them any more.
    pub fn new(rank: usize, peers: Vec<Option<TcpStream>>) -> io::Result<Tcp> {
        check_mesh(rank, &peers)?;
        let neighbours = peers.iter().flatten().filter(|stream| is_on_this_host(stream)).count();
        let patience = Patience::among(neighbours + 1);
        let links: io::Result<Vec<Option<Socket>>> =
            peers.into_iter().map(|stream| stream.map(Socket::new).transpose()).collect();
        Ok(Streamed::over(rank, Sockets { links: links?, patience }))
    }
}

/// Whether there is one connection to each other rank and none to itself.
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
    /// Nothing but frames may be on the stream any more.
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        if is_on_this_host(&stream) {
            send_at_once(&stream);
        }
        Ok(Socket(stream))
    }

    /// What to poll to wait for this, and to learn of the other's end.
    pub(super) fn polled(&self, interest: Interest) -> PollFd<'_> {
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
    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        hangup::unread(&self.0)
    }

    fn finish(&mut self) {
        // Fails only if the connection is gone already.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// The connections of one rank.
pub struct Sockets {
    links: Vec<Option<Socket>>,
    patience: Patience,
}

impl Wires for Sockets {
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
        let polled = |peer: usize, link| Socket::polled(link, interests[peer]);
        poll_peers(&self.links, watched, polled, None, timeout, hung_up)
    }

    fn patience(&self) -> Patience {
        self.patience
    }
}

fn events(interest: Interest) -> PollFlags {
    let mut events = hangup::WATCH;
    events.set(PollFlags::POLLIN, interest.read);
    events.set(PollFlags::POLLOUT, interest.write);
    events
}
