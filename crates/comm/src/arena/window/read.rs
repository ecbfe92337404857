//! The reader's side of a window.

use super::region::{BLOCK, blocks};
use super::{Versions, Window};
use crate::protocol::Counter;
use crate::transport::{Interest, Transport, TransportError, WaitState};
use std::ops::Range;
use std::time::Duration;

/// Attempts to copy a block that is being written before the reader gives up its core: a few microseconds.
const ATTEMPTS: usize = 100;

/// A read in progress: which elements of which rank are still to be read, and the versions of the others.
#[derive(Clone, Debug)]
pub struct WindowRead {
    pub from: usize,
    pub rest: Range<usize>,
    pub versions: Versions,
}

impl WindowRead {
    pub fn new(from: usize, range: Range<usize>) -> WindowRead {
        WindowRead { from, rest: range, versions: Versions::default() }
    }
}

impl Window {
    /// Copies a range of another rank's region; `into` has its length. Waits for blocks that are being written, at most until
    /// the deadline. After an error a part is copied.
    pub fn read(
        &mut self,
        from: usize,
        start: usize,
        into: &mut [f32],
        transport: &mut dyn Transport,
        deadline: Duration,
    ) -> Result<Versions, TransportError> {
        let read = WindowRead::new(from, start..start + into.len());
        complete(read, transport, deadline, |read| self.try_read(read, start, into))
    }

    /// Shows each block of a range of another rank's region to `visit`: its range, its values and its version. Waits like
    /// [`Window::read`]. No block is shown twice.
    pub fn visit(
        &mut self,
        from: usize,
        range: Range<usize>,
        mut visit: impl FnMut(Range<usize>, &[f32], u64),
        transport: &mut dyn Transport,
        deadline: Duration,
    ) -> Result<Versions, TransportError> {
        let read = WindowRead::new(from, range);
        complete(read, transport, deadline, |read| self.try_visit(read, &mut visit))
    }

    /// Copies what can be copied without waiting. `into` has the elements from `start` on. Returns whether all is read.
    pub fn try_read(&mut self, read: &mut WindowRead, start: usize, into: &mut [f32]) -> bool {
        for (block, piece) in blocks(read.rest.clone()) {
            let target = &mut into[piece.start - start..piece.end - start];
            let Some(version) = self.copy_block(read.from, block, piece.start, target) else { return false };
            read.versions.add(version);
            read.rest.start = piece.end;
        }
        true
    }

    /// Shows the blocks that can be read without waiting. Returns whether all is read.
    pub fn try_visit(
        &mut self,
        read: &mut WindowRead,
        mut visit: impl FnMut(Range<usize>, &[f32], u64),
    ) -> bool {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(BLOCK, 0.0);
        for (block, piece) in blocks(read.rest.clone()) {
            let copy = &mut scratch[..piece.len()];
            let Some(version) = self.copy_block(read.from, block, piece.start, copy) else { break };
            read.versions.add(version);
            read.rest.start = piece.end;
            visit(piece, copy, version);
        }
        self.scratch = scratch;
        read.rest.is_empty()
    }

    /// Copies elements of one block and returns its version; `None` if its owner is writing it.
    fn copy_block(&self, from: usize, block: usize, start: usize, into: &mut [f32]) -> Option<u64> {
        let region = self.others.get(from).and_then(Option::as_ref);
        let region = region.unwrap_or_else(|| panic!("rank {from} shares no memory with rank {}", self.rank));
        for _ in 0..ATTEMPTS {
            let Some(sequence) = region.lock(block).begin_read() else {
                std::hint::spin_loop();
                continue;
            };
            let version = region.version(block).value();
            region.copy(start, into);
            if region.lock(block).is_unchanged(sequence) {
                let bytes = size_of_val(into) as u64;
                let total = self.own.bytes_read_from(from);
                total.release(total.value() + bytes);
                self.traffic.add_received(bytes);
                return Some(version);
            }
        }
        None
    }
}

/// Repeats an attempt until all is read, with waits in between.
fn complete(
    mut read: WindowRead,
    transport: &mut dyn Transport,
    deadline: Duration,
    mut attempt: impl FnMut(&mut WindowRead) -> bool,
) -> Result<Versions, TransportError> {
    let mut waiting = None;
    loop {
        let before = read.rest.start;
        if attempt(&mut read) {
            return Ok(read.versions);
        }
        let (wait_state, wanted) = waiting.get_or_insert_with(|| {
            let mut wanted = vec![Interest::default(); transport.world()];
            wanted[read.from].read = true;
            (WaitState::new(transport.now(), deadline), wanted)
        });
        transport.wait(wait_state, wanted, read.rest.start > before)?;
    }
}
