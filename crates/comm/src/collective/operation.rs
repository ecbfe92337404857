//! One collective in progress.
//!
//! The sends and receives of a schedule are divided into segments, one frame each. A segment does not wait for its step,
//! only for earlier transfers of this rank that touch the same elements: while one segment is added, the next one arrives
//! and the one before is sent on. Between two ranks the order of the schedule holds; contributions to an element are
//! combined in the order of the schedule, so that repeated runs give the same bits.
//!
//! [`Operation::progress`] never blocks: [`super::Executor`] runs one operation to completion, and several can run
//! concurrently if every rank starts them in the same order.

use super::operator::{Element, Operator};
use super::partition::Partition;
use super::schedule::{Action, ReceiveChunks, Schedule, SendChunks};
use crate::transport::{
    Cause, Incoming, Interest, IoProgress, MatchMode, Outgoing, Tag, Transport, TransportError,
};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

// Elements are sent as they are in memory, and frames are little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// Maximum bytes of a segment.
pub const SEGMENT: usize = 1 << 20;

/// Minimum bytes of a segment, except for the last.
const MIN_SEGMENT: usize = 512 << 10;

/// Elements per segment of a transfer of `length` elements of `width` bytes: a quarter, so that it overlaps with the
/// transfers before and after; long enough that headers, system calls and wake-ups are negligible (over loopback, 512 KiB
/// is a quarter faster than 128 KiB) and short enough to be in a cache when it is combined. Part of the wire protocol: both
/// ends divide alike.
fn segment_length(length: usize, width: usize) -> usize {
    let width = width.max(1);
    ((length / 4).saturating_mul(width).clamp(MIN_SEGMENT, SEGMENT) / width).max(1)
}

/// One collective in progress; reuses its memory for the next one.
#[derive(Default)]
pub struct Operation {
    tag: Option<Tag>,
    transfers: Vec<Transfer>,
    /// All transfers before this one are done.
    first_open: usize,
    /// By peer: the current send and receive.
    sending: Vec<Option<usize>>,
    receiving: Vec<Option<usize>>,
    wanted: Vec<Interest>,
    /// Received segments that are still to be combined, one per peer, and where each peer's begins.
    staging: Vec<CacheLine>,
    staging_offsets: Vec<usize>,
}

/// Memory aligned for any element.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

/// A send or a receive in progress.
struct Transfer {
    peer: usize,
    kind: Kind,
    range: Range<usize>,
    /// Elements per segment.
    segment: usize,
    /// The elements before it are done.
    position: usize,
    done: bool,
    /// Bytes of the current segment have moved.
    begun: bool,
    /// The current segment has been received and is still to be combined.
    staged: bool,
    /// Offset from an element here to the same element at the sender, modulo 2^64.
    sender_offset: usize,
    /// The next transfer with the same peer in the same direction.
    next: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Receive(Action),
}

/// The result of one nonblocking attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Done,
    /// Something moved; another attempt may succeed at once.
    Moved,
    /// Nothing moved: wait before the next attempt.
    Idle,
}

impl Operation {
    pub fn new() -> Operation {
        Operation::default()
    }

    /// Starts a schedule for a buffer of `length` elements of type `T`.
    pub fn start<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &dyn Transport,
        tag: Tag,
        length: usize,
    ) -> Result<(), TransportError> {
        self.start_ragged::<T>(schedule, transport, tag, Partition::Even(length))
    }

    /// As [`Operation::start`], for chunks of any lengths; all ranks must divide alike.
    pub(super) fn start_ragged<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &dyn Transport,
        tag: Tag,
        partition: Partition<'_>,
    ) -> Result<(), TransportError> {
        let (rank, world) = (transport.rank(), transport.world());
        let is_valid = |step: &super::Step| {
            step.is_valid(rank, world, schedule.chunks) && step.overwritten_chunks().is_none()
        };
        if !schedule.steps.iter().all(is_valid) {
            return Err(misuse(rank, "the schedule overwrites a chunk in use or contains an unknown one"));
        }
        // Frames have 32 bits for the index of an element.
        if !partition.fits(schedule.chunks) || u32::try_from(partition.length()).is_err() {
            return Err(misuse(rank, "the chunks do not fit the schedule or exceed 2^32 - 1 elements"));
        }
        self.tag = Some(tag);
        self.first_open = 0;
        self.transfers.clear();
        for list in [&mut self.sending, &mut self.receiving] {
            list.clear();
            list.resize(world, None);
        }
        self.wanted.clear();
        self.wanted.resize(world, Interest::default());
        for step in &schedule.steps {
            for SendChunks { to, chunks } in &step.sends {
                let range = partition.elements(*chunks, schedule.chunks);
                self.transfers.push(Transfer::new::<T>(*to, Kind::Send, range, 0));
            }
            for ReceiveChunks { from, sent, chunks, action } in &step.receives {
                let range = partition.elements(*chunks, schedule.chunks);
                let at_sender = partition.elements_sent(*sent, *chunks, schedule.chunks);
                if at_sender.len() != range.len() {
                    let what =
                        "exchanged chunks must have the same length: use all_to_all for different lengths";
                    return Err(misuse(rank, what));
                }
                let sender_offset = at_sender.start.wrapping_sub(range.start);
                self.transfers.push(Transfer::new::<T>(*from, Kind::Receive(*action), range, sender_offset));
            }
        }
        self.chain_transfers();
        self.allocate_staging::<T>();
        Ok(())
    }

    /// Chains the transfers of each peer and direction.
    fn chain_transfers(&mut self) {
        for index in (0..self.transfers.len()).rev() {
            let transfer = &mut self.transfers[index];
            let heads = match transfer.kind {
                Kind::Send => &mut self.sending,
                Kind::Receive(_) => &mut self.receiving,
            };
            transfer.next = heads[transfer.peer].replace(index);
        }
    }

    /// Reserves staging memory for each peer whose chunks are combined.
    fn allocate_staging<T: Element>(&mut self) {
        // The longest segment of each peer first, then where it begins.
        self.staging_offsets.clear();
        self.staging_offsets.resize(self.receiving.len(), 0);
        for transfer in self.transfers.iter().filter(|transfer| transfer.is_staged()) {
            let longest = &mut self.staging_offsets[transfer.peer];
            *longest = (*longest).max(transfer.range.len().min(transfer.segment));
        }
        let mut lines = 0;
        for offset in &mut self.staging_offsets {
            let longest = std::mem::replace(offset, lines);
            lines += (longest * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        }
        if self.staging.len() < lines {
            self.staging.resize(lines, CacheLine::zeroed());
        }
    }

    /// Advances as far as possible without blocking. Called with the same buffer until it is done.
    ///
    /// After an error the buffer's contents are unspecified.
    pub fn progress<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        mode: MatchMode,
    ) -> Result<Progress, TransportError> {
        let mut moved = false;
        for peer in 0..self.receiving.len() {
            if let Some(index) = self.receiving[peer] {
                moved |= self.receive(index, transport, buffer, operator, mode)?;
            }
        }
        for peer in 0..self.sending.len() {
            if let Some(index) = self.sending[peer] {
                moved |= self.send(index, transport, buffer)?;
            }
        }
        match (self.first_open == self.transfers.len(), moved) {
            (true, _) => Ok(Progress::Done),
            (false, true) => Ok(Progress::Moved),
            (false, false) => Ok(Progress::Idle),
        }
    }

    /// What the operation waits for, by peer.
    pub fn wanted(&mut self) -> &[Interest] {
        for (peer, interest) in self.wanted.iter_mut().enumerate() {
            // A staged segment has arrived already, and its sender may have left since.
            interest.read = self.receiving[peer].is_some_and(|index| !self.transfers[index].staged);
            interest.write = self.sending[peer].is_some_and(|index| {
                let transfer = &self.transfers[index];
                transfer.begun
                    || !is_blocked(
                        &self.transfers[self.first_open..],
                        index - self.first_open,
                        transfer.current_segment(),
                    )
            });
        }
        &self.wanted
    }

    fn send<T: Element>(
        &mut self,
        index: usize,
        transport: &mut dyn Transport,
        buffer: &[T],
    ) -> Result<bool, TransportError> {
        let transfer = &self.transfers[index];
        let range = transfer.current_segment();
        if !transfer.begun && self.is_blocked(index, &range) {
            return Ok(false);
        }
        let Some(tag) = self.tag else { return Ok(false) };
        let bytes =
            bytemuck::cast_slice(buffer.get(range.clone()).ok_or_else(|| too_short(transport.rank()))?);
        let moved = transport.send(tag, Outgoing { to: transfer.peer, chunk: range.start as u32, bytes })?;
        self.transfers[index].begun |= moved != IoProgress::Blocked;
        if moved == IoProgress::Complete {
            self.complete(index, range.end);
        }
        Ok(moved != IoProgress::Blocked)
    }

    fn receive<T: Element>(
        &mut self,
        index: usize,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        mode: MatchMode,
    ) -> Result<bool, TransportError> {
        let transfer = &self.transfers[index];
        let range = transfer.current_segment();
        if transfer.staged {
            return Ok(self.apply(index, buffer, operator));
        }
        if !transfer.begun && !transfer.is_staged() && self.is_blocked(index, &range) {
            return Ok(false);
        }
        let Some(tag) = self.tag else { return Ok(false) };
        let (from, chunk) = (transfer.peer, range.start.wrapping_add(transfer.sender_offset) as u32);
        let bytes = if transfer.is_staged() {
            &mut bytemuck::cast_slice_mut(&mut self.staging[self.staging_offsets[from]..])
                [..range.len() * size_of::<T>()]
        } else {
            bytemuck::cast_slice_mut(
                buffer.get_mut(range.clone()).ok_or_else(|| too_short(transport.rank()))?,
            )
        };
        let moved = transport.receive(tag, Incoming { from, chunk, bytes }, mode)?;
        let transfer = &mut self.transfers[index];
        transfer.begun |= moved != IoProgress::Blocked;
        if moved == IoProgress::Complete {
            transfer.staged = transfer.is_staged();
            match transfer.staged {
                true => drop(self.apply(index, buffer, operator)),
                false => self.complete(index, range.end),
            }
        }
        Ok(moved != IoProgress::Blocked)
    }

    /// Combines a staged segment with the buffer unless it is blocked; returns whether it did.
    fn apply<T: Element>(&mut self, index: usize, buffer: &mut [T], operator: &dyn Operator<T>) -> bool {
        let transfer = &self.transfers[index];
        let range = transfer.current_segment();
        if self.is_blocked(index, &range) {
            return false;
        }
        let bytes: &[u8] = bytemuck::cast_slice(&self.staging[self.staging_offsets[transfer.peer]..]);
        let arrived: &[T] = bytemuck::cast_slice(&bytes[..range.len() * size_of::<T>()]);
        if let Some(mine) = buffer.get_mut(range.clone()) {
            match transfer.kind {
                Kind::Receive(Action::Reduce) => operator.combine(mine, arrived),
                _ => mine.copy_from_slice(arrived),
            }
        }
        self.complete(index, range.end);
        true
    }

    /// Whether an earlier transfer still has to read or write these elements.
    fn is_blocked(&self, index: usize, range: &Range<usize>) -> bool {
        is_blocked(&self.transfers[self.first_open..], index - self.first_open, range.clone())
    }

    /// Marks the current segment, up to `position`, as done.
    fn complete(&mut self, index: usize, position: usize) {
        let transfer = &mut self.transfers[index];
        (transfer.position, transfer.begun, transfer.staged) = (position, false, false);
        transfer.done = position == transfer.range.end;
        if transfer.done {
            let heads = match transfer.kind {
                Kind::Send => &mut self.sending,
                Kind::Receive(_) => &mut self.receiving,
            };
            heads[transfer.peer] = transfer.next;
        }
        let done = self.transfers[self.first_open..].iter().take_while(|transfer| transfer.done);
        self.first_open += done.count();
    }
}

impl Transfer {
    fn new<T: Element>(peer: usize, kind: Kind, range: Range<usize>, sender_offset: usize) -> Transfer {
        let (position, segment) = (range.start, segment_length(range.len(), size_of::<T>()));
        Transfer {
            peer,
            kind,
            range,
            segment,
            position,
            done: false,
            begun: false,
            staged: false,
            sender_offset,
            next: None,
        }
    }

    /// Whether segments are received into the staging memory.
    fn is_staged(&self) -> bool {
        matches!(self.kind, Kind::Receive(Action::Reduce | Action::Exchange))
    }

    fn current_segment(&self) -> Range<usize> {
        self.position..self.range.end.min(self.position + self.segment)
    }
}

/// Whether a transfer before `index` still has to access these elements first: a write waits for earlier reads and
/// writes, a read for earlier writes.
fn is_blocked(transfers: &[Transfer], index: usize, range: Range<usize>) -> bool {
    let reads = transfers[index].kind == Kind::Send;
    transfers[..index].iter().any(|earlier| {
        let harmless = earlier.done || reads && earlier.kind == Kind::Send;
        !harmless && earlier.position < range.end && range.start < earlier.range.end
    })
}

fn misuse(rank: usize, what: &str) -> TransportError {
    TransportError::new(rank, Cause::Protocol(what.into()))
}

fn too_short(rank: usize) -> TransportError {
    misuse(rank, "the buffer is shorter than when the operation was started")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_quarters_within_bounds() {
        assert_eq!(
            [0, 100, 3 << 20, 4 << 20, 1 << 30].map(|length| segment_length(length, 1)),
            [MIN_SEGMENT, MIN_SEGMENT, 768 << 10, SEGMENT, SEGMENT]
        );
        assert_eq!(segment_length(1 << 20, 4), SEGMENT / 4);
        assert_eq!(segment_length(9, SEGMENT * 2), 1);
    }
}
