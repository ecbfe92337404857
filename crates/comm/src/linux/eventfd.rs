//! An eventfd by which other processes end a rank's sleep.

use nix::errno::Errno;
use nix::sys::eventfd::{self, EfdFlags};
use nix::unistd::{read, write};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Its owner polls it; processes that received the descriptor notify it.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<EventFd> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(EventFd(eventfd::EventFd::from_flags(flags)?.into()))
    }

    /// The eventfd of another process, by its received descriptor.
    pub fn from_fd(descriptor: OwnedFd) -> EventFd {
        EventFd(descriptor)
    }

    /// Ends the owner's current or next sleep.
    pub fn notify(&self) {
        // Fails only after 2^64 notifications without a clear.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    pub fn clear(&self) -> io::Result<()> {
        match read(&self.0, &mut [0; 8]) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
