//! MPI's own all-reduce, in chunks.
//!
//! MPI may still read and write the memory of an operation after this rank has failed and stopped waiting, so it must
//! not be the caller's. Each chunk is copied into memory of its own, reduced there, and copied back. Two chunks are
//! in flight at a time, each long enough that MPI is as fast as on the whole buffer, and short enough to stay in
//! cache while it is copied.

use super::library::MpiCommunicator;
use super::request::{PendingRequest, SumBuffers};
use crate::transport::IoProgress;
use std::collections::VecDeque;
use std::io;

/// Elements of a chunk.
const CHUNK: usize = 1 << 20;

/// Chunks in flight at a time.
const MAX_IN_FLIGHT: usize = 2;

/// The all-reduce in progress, if any; keeps its memory for the next.
pub(super) struct NativeAllReduce {
    group: MpiCommunicator,
    in_flight: VecDeque<PendingRequest<SumBuffers>>,
    spare: Vec<SumBuffers>,
    /// Elements started, and elements copied back.
    started: usize,
    done: usize,
}

impl NativeAllReduce {
    pub(super) fn new(group: MpiCommunicator) -> NativeAllReduce {
        NativeAllReduce { group, in_flight: VecDeque::new(), spare: Vec::new(), started: 0, done: 0 }
    }

    /// Advances the all-reduce of this buffer as far as possible without blocking.
    pub(super) fn progress(&mut self, buffer: &mut [f32]) -> io::Result<IoProgress> {
        let before = (self.started, self.done);
        while self.started < buffer.len() && self.in_flight.len() < MAX_IN_FLIGHT {
            let end = buffer.len().min(self.started + CHUNK);
            let mut buffers = self.spare.pop().unwrap_or_default();
            buffers.input.clear();
            buffers.input.extend_from_slice(&buffer[self.started..end]);
            self.in_flight.push_back(PendingRequest::sum(self.group, buffers)?);
            self.started = end;
        }
        while let Some(first) = self.in_flight.front_mut() {
            if !first.is_done()? {
                break;
            }
            let Some(buffers) = self.in_flight.pop_front().and_then(PendingRequest::take) else { break };
            let target = buffer.get_mut(self.done..self.done + buffers.sum.len());
            target.ok_or_else(shrunk)?.copy_from_slice(&buffers.sum);
            self.done += buffers.sum.len();
            self.spare.push(buffers);
        }
        if self.done == buffer.len() {
            (self.started, self.done) = (0, 0);
            return Ok(IoProgress::Complete);
        }
        Ok(if (self.started, self.done) == before { IoProgress::Blocked } else { IoProgress::Partial })
    }
}

fn shrunk() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the buffer is shorter than when the all-reduce started")
}
