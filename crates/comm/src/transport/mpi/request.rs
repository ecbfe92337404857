//! Nonblocking MPI requests, with the memory that MPI reads and writes meanwhile.
//!
//! The memory belongs to the [`PendingRequest`]: it is not accessed before the request is done. If the request is
//! dropped before, because the group failed, its memory is leaked.

use super::library::{MpiCommunicator, call};
use mpi::ffi;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

/// All messages between two ranks of a group form one stream.
const TAG: c_int = 0;

/// A request over memory on the heap, such as vectors.
pub(super) struct PendingRequest<M> {
    /// `Some` until it is taken or leaked.
    memory: Option<M>,
    request: ffi::MPI_Request,
    done: bool,
}

// SAFETY: the request is a handle of the library, which is initialized for use by any thread, one at a time; `call`
// ensures the latter. The memory is owned.
unsafe impl<M: Send> Send for PendingRequest<M> {}

/// Input and output of an all-reduce.
#[derive(Default)]
pub(super) struct SumBuffers {
    pub(super) input: Vec<f32>,
    pub(super) sum: Vec<f32>,
}

impl<M> PendingRequest<M> {
    /// Starts a request over `memory`, whose heap allocations stay in place when it is moved.
    fn begin(
        name: &str,
        mut memory: M,
        begin: impl FnOnce(&mut M, *mut ffi::MPI_Request) -> c_int,
    ) -> io::Result<PendingRequest<M>> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        call(name, || begin(&mut memory, &mut request))?;
        Ok(PendingRequest { memory: Some(memory), request, done: false })
    }

    /// Tests for completion, which also progresses all other operations of MPI.
    pub(super) fn is_done(&mut self) -> io::Result<bool> {
        if !self.done {
            let mut done = 0;
            // SAFETY: the request was started and is not done; its memory is still owned. No status is requested.
            call("MPI_Test", || unsafe {
                ffi::MPI_Test(&mut self.request, &mut done, ffi::RSMPI_STATUS_IGNORE)
            })?;
            self.done = done != 0;
        }
        Ok(self.done)
    }

    /// The memory, if the request is done.
    pub(super) fn take(mut self) -> Option<M> {
        if self.done { self.memory.take() } else { None }
    }
}

impl<M> Drop for PendingRequest<M> {
    fn drop(&mut self) {
        if !self.done {
            std::mem::forget(self.memory.take());
        }
    }
}

impl PendingRequest<Vec<u8>> {
    /// Sends bytes to a rank (synchronous mode): done when that rank has begun to receive them.
    pub(super) fn send(
        group: MpiCommunicator,
        to: usize,
        bytes: Vec<u8>,
    ) -> io::Result<PendingRequest<Vec<u8>>> {
        let (count, to) = (count(bytes.len())?, count(to)?);
        // SAFETY: the vector has `count` bytes, and they stay in place, unchanged, until the request is done.
        PendingRequest::begin("MPI_Issend", bytes, |bytes, request| unsafe {
            let from = bytes.as_ptr().cast();
            ffi::MPI_Issend(from, count, ffi::RSMPI_UINT8_T, to, TAG, group.handle(), request)
        })
    }

    /// Receives the next message of a rank into `memory`; `None` if none has arrived.
    pub(super) fn receive(
        group: MpiCommunicator,
        from: usize,
        memory: &mut Vec<u8>,
    ) -> io::Result<Option<PendingRequest<Vec<u8>>>> {
        let from = count(from)?;
        let (mut found, mut length) = (0, 0);
        // SAFETY: a constant of the library.
        let mut message = unsafe { ffi::RSMPI_MESSAGE_NULL };
        let mut status = MaybeUninit::uninit();
        // SAFETY: all outputs are local; the status is read only if the library has written it.
        call("MPI_Improbe", || unsafe {
            let (message, status) = (&mut message, status.as_mut_ptr());
            match ffi::MPI_Improbe(from, TAG, group.handle(), &mut found, message, status) {
                0 if found != 0 => ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut length),
                code => code,
            }
        })?;
        if found == 0 {
            return Ok(None);
        }
        let mut bytes = std::mem::take(memory);
        bytes.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        // SAFETY: the vector has the `length` bytes of the message that was found, and they stay in place, untouched,
        // until the request is done.
        let request = PendingRequest::begin("MPI_Imrecv", bytes, |bytes, request| unsafe {
            let to = bytes.as_mut_ptr().cast();
            ffi::MPI_Imrecv(to, length, ffi::RSMPI_UINT8_T, &mut message, request)
        })?;
        Ok(Some(request))
    }
}

impl PendingRequest<SumBuffers> {
    /// Sums the inputs of all ranks of the group, element by element.
    pub(super) fn sum(
        group: MpiCommunicator,
        mut buffers: SumBuffers,
    ) -> io::Result<PendingRequest<SumBuffers>> {
        buffers.sum.resize(buffers.input.len(), 0.0);
        let count = count(buffers.input.len())?;
        // SAFETY: both vectors have `count` elements, and they stay in place, untouched, until the request is done.
        PendingRequest::begin("MPI_Iallreduce", buffers, |buffers, request| unsafe {
            let (input, sum) = (buffers.input.as_ptr().cast(), buffers.sum.as_mut_ptr().cast());
            let (float, add) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
            ffi::MPI_Iallreduce(input, sum, count, float, add, group.handle(), request)
        })
    }
}

/// A count as MPI's `int`.
fn count(number: usize) -> io::Result<c_int> {
    c_int::try_from(number).map_err(io::Error::other)
}
