//! Ranks of one host: how they tell that they are, how they meet, and what passes between them.
//!
//! Two ranks with the same [`host_identity`] can share memory. One opens a [`Doorway`], the other [`call`]s; what they
//! hold then is a [`Neighbour`]: a connection over which open files pass, and whose end is the other rank's end.

use crate::linux;
pub use crate::linux::{Bell, Doorway, Segment, Token, Writers, call, check_room, host_identity};
use nix::poll::PollFd;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A connection to another rank of this host.
#[derive(Clone, Debug)]
pub struct Neighbour(Arc<UnixStream>, Arc<Option<linux::Grip>>);

/// Neighbours by rank; nothing for this rank and for those on other hosts.
pub type Neighbours = Vec<Option<Neighbour>>;

impl Neighbour {
    /// A connection on which both sides have proven themselves.
    pub fn new(socket: UnixStream) -> Neighbour {
        // Without a grip (a kernel before 5.3) it cannot be ended, which is told when it must be.
        let grip = linux::Grip::on_peer(&socket).unwrap_or_default();
        Neighbour(Arc::new(socket), Arc::new(grip))
    }

    /// Ends the other's process and waits until the kernel confirms it, so that it writes to nothing any more; false if
    /// that is not to be had in time. One that is a thread of this process has nothing to be ended.
    pub fn end(&self, patience: Duration) -> bool {
        self.1.as_ref().as_ref().is_some_and(|grip| grip.end(patience))
    }

    /// Both ends of a connection, for ranks that are threads.
    pub fn pair() -> io::Result<(Neighbour, Neighbour)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Neighbour::new(one), Neighbour::new(other)))
    }

    /// Hands over open files, together.
    pub fn hand(&self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        linux::hand(&self.0, files)
    }

    /// Takes so many open files that were handed over together.
    pub fn take(&self, count: usize, patience: Duration) -> io::Result<Vec<OwnedFd>> {
        self.0.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        linux::take(&self.0, count)
    }

    /// What to poll to learn of the other's end.
    pub(crate) fn polled(&self) -> PollFd<'_> {
        PollFd::new(self.0.as_fd(), linux::hangup::WATCH)
    }

    /// Tells the other that this rank is gone.
    pub(crate) fn part(&self, how: Shutdown) {
        // Fails only if the other is gone already.
        let _ = self.0.shutdown(how);
    }
}

/// A connection to every other of so many threads: `[rank][peer]`.
pub fn threads(world: usize) -> io::Result<Vec<Neighbours>> {
    let mut all: Vec<Neighbours> = (0..world).map(|_| vec![None; world]).collect();
    for (one, other) in (0..world).flat_map(|one| (0..one).map(move |other| (one, other))) {
        let (here, there) = Neighbour::pair()?;
        all[one][other] = Some(here);
        all[other][one] = Some(there);
    }
    Ok(all)
}
