//! A bell that other processes ring to end somebody's sleep.

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::unistd::{read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Its owner sleeps on it; those who were given it ring it.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent one.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?.into()))
    }

    /// Somebody else's, as it was handed over.
    pub fn of(descriptor: OwnedFd) -> Bell {
        Bell(descriptor)
    }

    /// Ends the owner's sleep, now or when it next falls asleep.
    pub fn ring(&self) {
        // Fails only if it has been rung 2^64 times and nobody listens.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it silent again.
    pub fn hush(&self) -> io::Result<()> {
        match read(&self.0, &mut [0; 8]) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
