//! What MPI has been asked to do and may not have done yet, with the memory it reads and writes meanwhile.
//!
//! The memory belongs to the [`Flight`]: nobody else touches it before MPI is done with it, and if it is given up before
//! that, when the group is at its end, it is never given back to the system.

use super::library::{Group, call};
use mpi::ffi;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

/// All messages between two ranks of a group belong to one stream.
const TAG: c_int = 0;

/// Something under way over memory that lies on the heap, such as vectors.
pub(super) struct Flight<M> {
    /// Always there, except while it is taken or forgotten.
    memory: Option<M>,
    request: ffi::MPI_Request,
    done: bool,
}

// SAFETY: the request is only a name for something of the library, which is asked to be used by any thread, one at a time;
// `call` sees to the latter. The memory is owned.
unsafe impl<M: Send> Send for Flight<M> {}

/// What one rank brings to a sum, and the memory for the result.
#[derive(Default)]
pub(super) struct Terms {
    pub(super) mine: Vec<f32>,
    pub(super) sum: Vec<f32>,
}

impl<M> Flight<M> {
    /// Begins something with `memory`, whose parts on the heap stay where they are when it is moved.
    fn begin(
        name: &str,
        mut memory: M,
        begin: impl FnOnce(&mut M, *mut ffi::MPI_Request) -> c_int,
    ) -> io::Result<Flight<M>> {
        // SAFETY: a constant of the library.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        call(name, || begin(&mut memory, &mut request))?;
        Ok(Flight { memory: Some(memory), request, done: false })
    }

    /// Whether MPI is done with it; to ask also moves on everything else that MPI has to do.
    pub(super) fn is_done(&mut self) -> io::Result<bool> {
        if !self.done {
            let mut done = 0;
            // SAFETY: the request was begun and is not done; its memory is still here. No status is wanted.
            call("MPI_Test", || unsafe {
                ffi::MPI_Test(&mut self.request, &mut done, ffi::RSMPI_STATUS_IGNORE)
            })?;
            self.done = done != 0;
        }
        Ok(self.done)
    }

    /// The memory, if MPI is done with it.
    pub(super) fn take(mut self) -> Option<M> {
        if self.done { self.memory.take() } else { None }
    }
}

impl<M> Drop for Flight<M> {
    fn drop(&mut self) {
        if !self.done {
            std::mem::forget(self.memory.take());
        }
    }
}

impl Flight<Vec<u8>> {
    /// Sends bytes to a rank. It is done when that rank has begun to take them, and they may be overwritten.
    pub(super) fn send(group: Group, to: usize, bytes: Vec<u8>) -> io::Result<Flight<Vec<u8>>> {
        let (count, to) = (count(bytes.len())?, count(to)?);
        // SAFETY: the vector has `count` bytes, and they stay in place, unchanged, until the request is done.
        Flight::begin("MPI_Issend", bytes, |bytes, request| unsafe {
            let from = bytes.as_ptr().cast();
            ffi::MPI_Issend(from, count, ffi::RSMPI_UINT8_T, to, TAG, group.handle(), request)
        })
    }

    /// Receives the next message of a rank, if one has come; `memory` is used for it.
    pub(super) fn receive(
        group: Group,
        from: usize,
        memory: &mut Vec<u8>,
    ) -> io::Result<Option<Flight<Vec<u8>>>> {
        let from = count(from)?;
        let (mut found, mut length) = (0, 0);
        // SAFETY: a constant of the library.
        let mut message = unsafe { ffi::RSMPI_MESSAGE_NULL };
        let mut status = MaybeUninit::uninit();
        // SAFETY: everything written to is here; the status is read only if the library says that it has written it.
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
        // SAFETY: the vector has the `length` bytes of the message that was found, and they stay in place, untouched, until
        // the request is done.
        let flight = Flight::begin("MPI_Imrecv", bytes, |bytes, request| unsafe {
            let to = bytes.as_mut_ptr().cast();
            ffi::MPI_Imrecv(to, length, ffi::RSMPI_UINT8_T, &mut message, request)
        })?;
        Ok(Some(flight))
    }
}

impl Flight<Terms> {
    /// Adds up what every rank of the group brings, element by element.
    pub(super) fn sum(group: Group, mut terms: Terms) -> io::Result<Flight<Terms>> {
        terms.sum.resize(terms.mine.len(), 0.0);
        let count = count(terms.mine.len())?;
        // SAFETY: both vectors have `count` elements, and they stay in place, untouched, until the request is done.
        Flight::begin("MPI_Iallreduce", terms, |terms, request| unsafe {
            let (mine, sum) = (terms.mine.as_ptr().cast(), terms.sum.as_mut_ptr().cast());
            let (float, add) = (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM);
            ffi::MPI_Iallreduce(mine, sum, count, float, add, group.handle(), request)
        })
    }
}

/// A number as MPI takes it.
fn count(number: usize) -> io::Result<c_int> {
    c_int::try_from(number).map_err(io::Error::other)
}
