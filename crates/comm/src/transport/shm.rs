//! Processes of one host, and those of other hosts beside them.
//!
//! A rank reaches its neighbours through shared memory ([`Ring`]) and all others over TCP; which way it takes to whom
//! is fixed when the group is made, and programs see one transport. While a rank waits it looks; only when that would
//! take a core from somebody does it sleep, on one `poll(2)` for all: its bell, which neighbours ring if they see that
//! it sleeps, the connections to neighbours, whose end is theirs, and the sockets to other hosts.

use super::links::{Link, Wires};
use super::polling::poll_peers;
use super::ring::Ring;
use super::stream::Streamed;
use super::tcp::{Socket, check_mesh};
use super::vigil::Interest;
use crate::host::Bell;
use crate::wait::Patience;
use nix::poll::{PollFd, PollFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// A transport through shared memory where there is any, over TCP elsewhere.
pub type Shm = Streamed<Ways>;

impl Shm {
    /// Rank `rank` of a group of `ways.len()`, with a way to each of the others; `bell` is the one its neighbours have.
    pub fn new(rank: usize, ways: Vec<Option<Way>>, bell: Bell) -> io::Result<Shm> {
        check_mesh(rank, &ways)?;
        let neighbours = ways.iter().flatten().filter(|way| matches!(way, Way::Ring(_))).count();
        let patience = Patience::in_memory(neighbours + 1);
        Ok(Streamed::over(rank, Ways { ways, bell, patience, dozing: false }))
    }
}

/// The way to one peer.
pub enum Way {
    /// Through memory.
    Ring(Ring),
    /// Over the network.
    Socket(Socket),
}

impl Way {
    /// What to poll to wait for this, and to learn of the other's end; what comes through memory rings a bell.
    fn polled(&self, interest: Interest) -> PollFd<'_> {
        match self {
            Way::Ring(ring) => ring.neighbour().polled(),
            Way::Socket(socket) => socket.polled(interest),
        }
    }
}

impl Read for Way {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Way::Ring(ring) => ring.read(buffer),
            Way::Socket(socket) => socket.read(buffer),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Way::Ring(ring) => ring.read_vectored(buffers),
            Way::Socket(socket) => socket.read_vectored(buffers),
        }
    }
}

impl Write for Way {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Way::Ring(ring) => ring.write(bytes),
            Way::Socket(socket) => socket.write(bytes),
        }
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Way::Ring(ring) => ring.write_vectored(buffers),
            Way::Socket(socket) => socket.write_vectored(buffers),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Way {
    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        match self {
            Way::Ring(ring) => ring.last_words(),
            Way::Socket(socket) => socket.last_words(),
        }
    }

    fn finish(&mut self) {
        match self {
            Way::Ring(ring) => ring.finish(),
            Way::Socket(socket) => socket.finish(),
        }
    }
}

/// The ways of one rank.
pub struct Ways {
    ways: Vec<Option<Way>>,
    bell: Bell,
    patience: Patience,
    /// The neighbours have been asked to ring.
    dozing: bool,
}

impl Ways {
    fn rings(&self) -> impl Iterator<Item = &Ring> {
        self.ways.iter().flatten().filter_map(|way| match way {
            Way::Ring(ring) => Some(ring),
            Way::Socket(_) => None,
        })
    }
}

impl Wires for Ways {
    type Link = Way;

    fn links(&mut self) -> &mut [Option<Way>] {
        &mut self.ways
    }

    /// The first wait only asks the neighbours to ring and returns: what they did before they were asked is seen by
    /// looking once more, what they do after it rings, and so the second may sleep.
    fn wait(
        &mut self,
        interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        let first = !std::mem::replace(&mut self.dozing, true);
        if first {
            self.rings().for_each(Ring::doze);
        }
        let timeout = if first { Duration::ZERO } else { timeout };
        let polled = |peer: usize, way| Way::polled(way, interests[peer]);
        let bell = PollFd::new(self.bell.as_fd(), PollFlags::POLLIN);
        poll_peers(&self.ways, watched, polled, Some(bell), timeout, hung_up)?;
        if !first {
            self.awake();
        }
        Ok(())
    }

    fn awake(&mut self) {
        if std::mem::replace(&mut self.dozing, false) {
            self.rings().for_each(Ring::awake);
            // A bell that cannot be silenced only costs sleep.
            let _ = self.bell.hush();
        }
    }

    fn nudge(&mut self) {
        // Who has something to tell is awake.
        self.awake();
        Ring::nudge(self.rings());
    }

    fn patience(&self) -> Patience {
        self.patience
    }
}
