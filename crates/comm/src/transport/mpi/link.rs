//! A byte stream to one peer, in MPI messages, and its sentinel connection.

use super::library::MpiCommunicator;
use super::request::PendingRequest;
use crate::transport::link::Link;
use crate::transport::tcp::Socket;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

/// The most bytes of one message: what fits a core's cache, so that copying is cheap.
const MAX_MESSAGE: usize = 256 << 10;

/// Messages in flight to one rank.
const MAX_IN_FLIGHT: usize = 4;

/// A stream to and from one peer.
pub struct MpiLink {
    group: MpiCommunicator,
    peer: usize,
    outgoing: VecDeque<PendingRequest<Vec<u8>>>,
    incoming: Option<PendingRequest<Vec<u8>>>,
    /// The message that is being read, and the bytes read of it.
    arrived: Vec<u8>,
    read: usize,
    /// Buffers of completed messages.
    spare: Vec<Vec<u8>>,
    sentinel: Socket,
}

impl MpiLink {
    pub(super) fn new(group: MpiCommunicator, peer: usize, sentinel: TcpStream) -> io::Result<MpiLink> {
        Ok(MpiLink {
            group,
            peer,
            outgoing: VecDeque::new(),
            incoming: None,
            arrived: Vec::new(),
            read: 0,
            spare: Vec::new(),
            sentinel: Socket::new(sentinel)?,
        })
    }

    pub(super) fn sentinel(&self) -> &Socket {
        &self.sentinel
    }

    /// Recovers the buffers of completed messages. Messages complete in order.
    fn reap(&mut self) -> io::Result<()> {
        while let Some(request) = self.outgoing.front_mut() {
            if !request.is_done()? {
                break;
            }
            self.spare.extend(self.outgoing.pop_front().and_then(PendingRequest::take));
        }
        Ok(())
    }

    /// Whether there are bytes to read; receives the next message if it has arrived.
    fn fetch(&mut self) -> io::Result<bool> {
        if self.read < self.arrived.len() {
            return Ok(true);
        }
        if self.incoming.is_none() {
            self.incoming = PendingRequest::receive(self.group, self.peer, &mut self.arrived)?;
            self.read = 0;
            self.arrived.clear();
        }
        let Some(request) = &mut self.incoming else { return Ok(false) };
        if !request.is_done()? {
            return Ok(false);
        }
        self.arrived = self.incoming.take().and_then(PendingRequest::take).unwrap_or_default();
        Ok(!self.arrived.is_empty())
    }
}

impl Read for MpiLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if !self.fetch()? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = (&self.arrived[self.read..]).read_vectored(buffers)?;
        self.read += count;
        Ok(count)
    }
}

impl Write for MpiLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        self.reap()?;
        if self.outgoing.len() == MAX_IN_FLIGHT {
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut message = self.spare.pop().unwrap_or_default();
        message.clear();
        for buffer in buffers {
            message.extend_from_slice(&buffer[..buffer.len().min(MAX_MESSAGE - message.len())]);
        }
        let count = message.len();
        if count > 0 {
            self.outgoing.push_back(PendingRequest::send(self.group, self.peer, message)?);
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for MpiLink {
    /// The close frame travels on the sentinel: it reaches even a peer that has not received all messages.
    const CLOSE_OUT_OF_BAND: bool = true;

    fn unread(&mut self) -> io::Result<Vec<u8>> {
        self.sentinel.unread()
    }

    fn is_drained(&mut self) -> bool {
        // A message whose state is unknown counts as in flight.
        self.reap().is_ok() && self.outgoing.is_empty()
    }

    fn write_close_frame(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sentinel.write(bytes)
    }

    fn shutdown_write(&mut self) {
        self.sentinel.shutdown_write();
    }
}
