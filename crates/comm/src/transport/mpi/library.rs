//! The library of MPI in this process: entering and leaving it, its groups, its errors.
//!
//! All calls go through [`call`], one at a time: that is the level of threading MPI is asked for, and it holds whoever owns
//! the lanes. In a job one thread makes them all, and the lock is never contended.

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
static TURN: Mutex<()> = Mutex::new(());

/// More than any MPI's longest error message.
const LONGEST_MESSAGE: usize = 4096;

/// Makes one call of the library at a time; an answer that is not success becomes an error in MPI's words.
pub(super) fn call(name: &str, function: impl FnOnce() -> c_int) -> io::Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match function() {
        0 => Ok(()),
        code => Err(io::Error::other(format!("{name}: {}", words(code)))),
    }
}

fn words(code: c_int) -> String {
    let mut text: [c_char; LONGEST_MESSAGE] = [0; LONGEST_MESSAGE];
    let mut length = 0;
    // SAFETY: MPI writes a message with its closing zero, which is shorter than the array, and its length.
    unsafe {
        ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut length);
        CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
    }
}

/// The library, entered. A process enters it once.
pub struct Library {
    /// Leaving waits for all ranks: it is never done in passing.
    universe: ManuallyDrop<Universe>,
}

impl Library {
    /// Enters the library. Every rank that MPI's launcher started must do so, at about the same time: it waits for them.
    pub fn enter() -> io::Result<Library> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((universe, level)) = mpi::initialize_with_threading(Threading::Serialized) else {
            return Err(io::Error::other("MPI was entered before in this process"));
        };
        let universe = ManuallyDrop::new(universe);
        if level < Threading::Serialized {
            let what = format!("this MPI allows threads only as {level:?}, Serialized is needed");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        Ok(Library { universe })
    }

    /// This process's number, and how many MPI's launcher started.
    pub fn place(&self) -> (usize, usize) {
        let world = self.universe.world();
        (world.rank() as usize, world.size() as usize)
    }

    /// The first `count` ranks as a group of its own. All ranks must ask at the same time; those that are not in it get
    /// nothing.
    pub fn group(&self, count: usize) -> io::Result<Option<Group>> {
        let world = self.universe.world();
        let inside = (world.rank() as usize) < count;
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let color = if inside { Color::with_value(1) } else { Color::undefined() };
        let communicator = world.split_by_color(color);
        drop(turn);
        communicator.map(Group::of).transpose()
    }

    /// Leaves the library, together with all other ranks.
    pub fn finalize(self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        drop(ManuallyDrop::into_inner(self.universe));
    }
}

/// Ranks that exchange with each other, apart from all other groups.
#[derive(Clone, Copy)]
pub struct Group {
    handle: ffi::MPI_Comm,
    rank: usize,
    world: usize,
}

// SAFETY: the handle is only a name for something of the library, which is asked to be used by any thread, one at a time;
// `call` sees to the latter.
unsafe impl Send for Group {}

impl Group {
    fn of(communicator: SimpleCommunicator) -> io::Result<Group> {
        let (rank, world) = (communicator.rank() as usize, communicator.size() as usize);
        let handle = communicator.as_raw();
        // Giving it back needs all its ranks, and some may be lost by then.
        std::mem::forget(communicator);
        // SAFETY: the handle is that of a communicator which is never given back.
        call("MPI_Comm_set_errhandler", || unsafe {
            ffi::MPI_Comm_set_errhandler(handle, ffi::RSMPI_ERRORS_RETURN)
        })?;
        Ok(Group { handle, rank, world })
    }

    /// This process's number in it.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn world(&self) -> usize {
        self.world
    }

    pub(super) fn handle(&self) -> ffi::MPI_Comm {
        self.handle
    }
}
