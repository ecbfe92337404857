//! The MPI library in this process: initialization, finalization, groups, errors.
//!
//! All calls go through [`call`], one at a time, as MPI is initialized with `MPI_THREAD_SERIALIZED`. In a job one
//! thread makes all of them, and the lock is never contended.

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::topology::{Color, Communicator, SimpleCommunicator};
use mpi::traits::AsRaw;
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

/// Held during every call.
static CALL_LOCK: Mutex<()> = Mutex::new(());

/// Longer than the error messages of any MPI.
const MAX_ERROR_MESSAGE: usize = 4096;

/// Makes one call of the library at a time; a failure becomes an error with MPI's message.
pub(super) fn call(name: &str, function: impl FnOnce() -> c_int) -> io::Result<()> {
    let _guard = CALL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    match function() {
        0 => Ok(()),
        code => Err(io::Error::other(format!("{name}: {}", error_message(code)))),
    }
}

fn error_message(code: c_int) -> String {
    let mut text: [c_char; MAX_ERROR_MESSAGE] = [0; MAX_ERROR_MESSAGE];
    let mut length = 0;
    // SAFETY: MPI writes a message with its closing zero, which is shorter than the array, and its length.
    unsafe {
        ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut length);
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}

/// The initialized library. A process can initialize it once.
pub struct Library {
    /// Finalization waits for all ranks, so it never happens in a drop.
    universe: ManuallyDrop<Universe>,
}

impl Library {
    /// Initializes the library. Collective over all ranks that MPI's launcher started.
    pub fn init() -> io::Result<Library> {
        let _guard = CALL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((universe, level)) = mpi::initialize_with_threading(Threading::Serialized) else {
            return Err(io::Error::other("MPI was initialized before in this process"));
        };
        let universe = ManuallyDrop::new(universe);
        if level < Threading::Serialized {
            let what = format!("this MPI supports thread level {level:?} only, Serialized is required");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(Library { universe })
    }

    /// This process's rank, and the number of ranks that MPI's launcher started.
    pub fn rank_and_size(&self) -> (usize, usize) {
        let world = self.universe.world();
        (world.rank() as usize, world.size() as usize)
    }

    /// A group of the first `count` ranks; `None` on the other ranks. Collective over all ranks.
    pub fn split_group(&self, count: usize) -> io::Result<Option<MpiCommunicator>> {
        let world = self.universe.world();
        let inside = (world.rank() as usize) < count;
        let guard = CALL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let color = if inside { Color::with_value(1) } else { Color::undefined() };
        let communicator = world.split_by_color(color);
        drop(guard);
        communicator.map(MpiCommunicator::new).transpose()
    }

    /// Finalizes the library. Collective over all ranks.
    pub fn finalize(self) {
        let _guard = CALL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        drop(ManuallyDrop::into_inner(self.universe));
    }
}

/// An MPI communicator.
#[derive(Clone, Copy)]
pub struct MpiCommunicator {
    handle: ffi::MPI_Comm,
    rank: usize,
    world: usize,
}

// SAFETY: the handle belongs to the library, which is initialized for use by any thread, one at a time; `call`
// ensures the latter.
unsafe impl Send for MpiCommunicator {}

impl MpiCommunicator {
    fn new(communicator: SimpleCommunicator) -> io::Result<MpiCommunicator> {
        let (rank, world) = (communicator.rank() as usize, communicator.size() as usize);
        let handle = communicator.as_raw();
        // Freeing it is collective, and some of its ranks may be lost by then.
        std::mem::forget(communicator);
        // SAFETY: the handle is that of a communicator which is never freed.
        call("MPI_Comm_set_errhandler", || unsafe {
            ffi::MPI_Comm_set_errhandler(handle, ffi::RSMPI_ERRORS_RETURN)
        })?;
        Ok(MpiCommunicator { handle, rank, world })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world(&self) -> usize {
        self.world
    }

    pub(super) fn handle(&self) -> ffi::MPI_Comm {
        self.handle
    }
}
