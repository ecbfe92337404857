//! A plain socket between the worker and the server: as many bytes, without any protocol.

use super::values::{fill_parameters, parameter_bits, sum_bits};
use crate::command::bench::ranks::DEADLINE;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;
use thalweg_cluster::{Rank, linux};
use thalweg_core::{Error, Result};

/// The operation of its lines.
pub(super) const OP: &str = "stream";

/// One end of the connection: the worker sends, the server receives into memory of the same length.
pub(super) struct Stream {
    socket: TcpStream,
    sends: bool,
    values: Vec<f32>,
}

impl Stream {
    /// Connects rank 0 to rank 1; `None` if they are on different hosts. A collective of the two.
    pub(super) fn open(rank: &mut Rank, length: usize) -> Result<Option<Stream>> {
        if rank.local_world() < rank.size() {
            return Ok(None);
        }
        let sends = rank.index() == 0;
        let listener = match sends {
            true => None,
            false => Some(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(broken)?),
        };
        let port = listener.as_ref().map(|listener| listener.local_addr().map(|address| address.port()));
        let port = port.transpose().map_err(broken)?.unwrap_or(0);
        let port = rank.world().broadcast("the port of a stream", 1, port.to_le_bytes().to_vec())?;
        let port = port.try_into().map(u16::from_le_bytes).map_err(|_| Error::internal("no port"))?;
        let connected = if sends { Some(TcpStream::connect((Ipv4Addr::LOCALHOST, port))) } else { None };
        let connected = connected.transpose().map_err(broken)?;
        // The connection is complete in the listener's queue before it is accepted.
        rank.world().barrier("the connection of a stream")?;
        let socket = match (connected, listener) {
            (Some(socket), _) => socket,
            (None, Some(listener)) => listener.accept().map_err(broken)?.0,
            (None, None) => return Ok(None),
        };
        socket.set_nodelay(true).map_err(broken)?;
        socket.set_read_timeout(Some(DEADLINE)).map_err(broken)?;
        socket.set_write_timeout(Some(DEADLINE)).map_err(broken)?;
        // As the connections between ranks of one host.
        linux::disable_pacing(&socket);
        Ok(Some(Stream { socket, sends, values: vec![0.0; length] }))
    }

    pub(super) fn fill(&mut self, round: u64) {
        if self.sends {
            fill_parameters(&mut self.values, 0, round);
        }
    }

    /// Moves the bytes once. Returns the sender's seconds until the receiver has them all.
    pub(super) fn run(&mut self, round: u64) -> Result<f64> {
        let begun = Instant::now();
        let bytes = bytemuck::cast_slice_mut(&mut self.values);
        if self.sends {
            self.socket.write_all(bytes).and_then(|()| self.socket.read_exact(&mut [0])).map_err(broken)?;
            return Ok(begun.elapsed().as_secs_f64());
        }
        self.socket.read_exact(bytes).and_then(|()| self.socket.write_all(&[0])).map_err(broken)?;
        match sum_bits(&self.values) == parameter_bits(self.values.len(), round) {
            true => Ok(0.0),
            false => Err(Error::internal("the bytes of the stream are not those that were sent")),
        }
    }
}

fn broken(error: io::Error) -> Error {
    Error::io("the stream broke", &error)
}
