//! A window: a region of shared memory per rank, which its owner rewrites at any time and the others read.
//!
//! Unlike a [`SharedArena`](super::SharedArena), a window has no phases and no collectives but its opening. Its owner
//! publishes blocks of [`Window::BLOCK`] elements under versions of its choice; readers take what is there, each block as it was
//! between two publications. So a parameter server's window has parameters and a worker's its gradient, and a small
//! message says that there is something new.
//!
//! - **Never torn.** Every block has a [sequence lock](crate::protocol::sequence_lock): a reader that copied a block while
//!   it was written copies it again. An owner never waits for readers, and a reader waits for the owner only while it
//!   writes the very block: until its deadline, and the error names the owner.
//! - **A rank can only hurt itself.** The others map its region read-only. What an owner writes to its own counters can make
//!   readers wait until their deadline, or give them wrong numbers, as any message of it could.
//! - **One generation.** The next one opens windows anew, so that a rank that was declared lost writes to nothing that is
//!   still read.

mod open;
mod racing_copy;
mod read;
mod region;
mod traffic;

pub use read::WindowRead;
pub use traffic::WindowTraffic;

use crate::protocol::Counter;
use region::{BLOCK, Region, blocks};
use std::ops::Range;
use std::sync::Arc;

/// The regions of a rank and of those that it shares memory with; see the module.
pub struct Window {
    rank: usize,
    generation: u32,
    own: Region,
    /// By rank; `None` for this rank, and for those that share no memory with it.
    others: Vec<Option<Region>>,
    /// A copy of one block.
    scratch: Vec<f32>,
    traffic: Arc<WindowTraffic>,
}

/// The versions of the blocks that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions(Option<(u64, u64)>);

impl Versions {
    /// The version of all blocks, if they have the same; `None` also if none was read.
    pub fn agreed(self) -> Option<u64> {
        self.0.filter(|(oldest, newest)| oldest == newest).map(|(oldest, _)| oldest)
    }

    /// The least version of a block; `None` if none was read.
    pub fn oldest(self) -> Option<u64> {
        self.0.map(|(oldest, _)| oldest)
    }

    /// The largest version of a block; `None` if none was read.
    pub fn newest(self) -> Option<u64> {
        self.0.map(|(_, newest)| newest)
    }

    fn add(&mut self, version: u64) {
        let (oldest, newest) = self.0.unwrap_or((version, version));
        self.0 = Some((oldest.min(version), newest.max(version)));
    }
}

impl Window {
    /// Elements that are published under one version; blocks begin at the multiples of it.
    pub const BLOCK: usize = BLOCK;

    /// The generation of the group in which it was opened.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether this rank and another one, not itself, read each other's region.
    pub fn shares_with(&self, rank: usize) -> bool {
        self.others.get(rank).is_some_and(Option::is_some)
    }

    /// Elements of a rank's region; `None` if it shares no memory with this one.
    pub fn length_of(&self, rank: usize) -> Option<usize> {
        match rank == self.rank {
            true => Some(self.own.len()),
            false => self.others.get(rank)?.as_ref().map(Region::len),
        }
    }

    /// This rank's own elements.
    pub fn own(&self) -> &[f32] {
        self.own.own(0..self.own.len())
    }

    /// Publishes values from this index on. A block that they cover in part keeps its other values and gets the version.
    pub fn publish(&mut self, start: usize, values: &[f32], version: u64) {
        let range = start..start + values.len();
        self.write_blocks(range, version, |piece, elements| {
            elements.copy_from_slice(&values[piece.start - start..piece.end - start]);
        });
    }

    /// Publishes what `write` makes of each block of a range, given its range and its elements. Readers wait for one block at
    /// a time.
    pub fn write_blocks(
        &mut self,
        range: Range<usize>,
        version: u64,
        mut write: impl FnMut(Range<usize>, &mut [f32]),
    ) {
        for (_, piece) in blocks(range) {
            self.write(piece.clone(), version, |elements| write(piece, elements));
        }
    }

    /// Publishes what `write` makes of a range as a whole: until it returns, readers of these blocks wait.
    pub fn write<T>(&mut self, range: Range<usize>, version: u64, write: impl FnOnce(&mut [f32]) -> T) -> T {
        blocks(range.clone()).for_each(|(block, _)| self.own.lock(block).begin_write());
        let result = write(self.own.own_mut(range.clone()));
        for (block, _) in blocks(range) {
            self.own.version(block).release(version);
            self.own.lock(block).end_write();
        }
        self.update_traffic();
        result
    }

    /// The bytes that this rank has read from others (received) and they from it (sent), for a holder that may outlive the
    /// window.
    pub fn traffic(&self) -> Arc<WindowTraffic> {
        Arc::clone(&self.traffic)
    }

    fn update_traffic(&self) {
        let sent = self.others.iter().flatten().map(|other| other.bytes_read_from(self.rank).value());
        self.traffic.set_sent(sent.fold(0, u64::wrapping_add));
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.update_traffic();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_agree_if_all_are_equal() {
        let of = |versions: &[u64]| {
            let mut all = Versions::default();
            versions.iter().for_each(|version| all.add(*version));
            (all.agreed(), all.oldest(), all.newest())
        };
        assert_eq!(of(&[]), (None, None, None));
        assert_eq!(of(&[7, 7]), (Some(7), Some(7), Some(7)));
        assert_eq!(of(&[7, 9, 3]), (None, Some(3), Some(9)));
    }
}
