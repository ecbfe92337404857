//! A byte stream to one other rank, in MPI's messages, and the sentinel beside it.

use super::flight::Flight;
use super::library::Group;
use crate::transport::links::Link;
use crate::transport::tcp::Socket;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

/// The most bytes of one message: what fits a core's cache, so that copying them costs little.
const PIECE: usize = 256 << 10;

/// Messages that may be under way to one rank.
const UNDER_WAY: usize = 4;

/// A stream to and from one rank.
pub struct Lane {
    group: Group,
    peer: usize,
    outgoing: VecDeque<Flight<Vec<u8>>>,
    incoming: Option<Flight<Vec<u8>>>,
    /// The message that is being read, and how far.
    arrived: Vec<u8>,
    taken: usize,
    /// Memory of messages that are done.
    spare: Vec<Vec<u8>>,
    sentinel: Socket,
}

impl Lane {
    pub(super) fn new(group: Group, peer: usize, sentinel: TcpStream) -> io::Result<Lane> {
        Ok(Lane {
            group,
            peer,
            outgoing: VecDeque::new(),
            incoming: None,
            arrived: Vec::new(),
            taken: 0,
            spare: Vec::new(),
            sentinel: Socket::new(sentinel)?,
        })
    }

    pub(super) fn sentinel(&self) -> &Socket {
        &self.sentinel
    }

    /// Takes back the memory of messages that are done. They are in order: so are their ends.
    fn reap(&mut self) -> io::Result<()> {
        while let Some(flight) = self.outgoing.front_mut() {
            if !flight.is_done()? {
                break;
            }
            self.spare.extend(self.outgoing.pop_front().and_then(Flight::take));
        }
        Ok(())
    }

    /// Whether there is something to read; fetches the next message if it has come.
    fn fetch(&mut self) -> io::Result<bool> {
        if self.taken < self.arrived.len() {
            return Ok(true);
        }
        if self.incoming.is_none() {
            self.incoming = Flight::receive(self.group, self.peer, &mut self.arrived)?;
            self.taken = 0;
            self.arrived.clear();
        }
        let Some(flight) = &mut self.incoming else { return Ok(false) };
        if !flight.is_done()? {
            return Ok(false);
        }
        self.arrived = self.incoming.take().and_then(Flight::take).unwrap_or_default();
        Ok(!self.arrived.is_empty())
    }
}

impl Read for Lane {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if !self.fetch()? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = (&self.arrived[self.taken..]).read_vectored(buffers)?;
        self.taken += count;
        Ok(count)
    }
}

impl Write for Lane {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.reap()?;
        if self.outgoing.len() == UNDER_WAY {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut piece = self.spare.pop().unwrap_or_default();
        piece.clear();
        for buffer in buffers {
            piece.extend_from_slice(&buffer[..buffer.len().min(PIECE - piece.len())]);
        }
        let count = piece.len();
        if count > 0 {
            self.outgoing.push_back(Flight::send(self.group, self.peer, piece)?);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Lane {
    /// A farewell does not follow the bytes: it is told even to a rank that has not taken them all.
    const FAREWELL_APART: bool = true;

    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        self.sentinel.last_words()
    }

    fn is_drained(&mut self) -> bool {
        // What cannot be asked for has not been taken.
        self.reap().is_ok() && self.outgoing.is_empty()
    }

    fn bid_farewell(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sentinel.write(bytes)
    }

    fn finish(&mut self) {
        self.sentinel.finish();
    }
}
