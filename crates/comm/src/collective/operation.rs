//! One collective in progress.
//!
//! A schedule's sends and receives are cut into segments, each a frame of its own, and every segment moves as soon as
//! it may: it does not wait for its step, only for those earlier ones of its rank that touch the same elements. So while
//! one segment is added, the next arrives and the one before travels on. Between two ranks the order of the schedule
//! holds; contributions to an element are combined in the order of the schedule, so that a repeat gives the same bits.
//!
//! [`Operation::progress`] never blocks: [`super::Executor`] drives one operation to its end, and several can be driven
//! side by side as long as every rank starts them in the same order.

use super::operator::{Element, Operator};
use super::partition::Partition;
use super::schedule::{Action, ReceiveChunks, Schedule, SendChunks};
use crate::transport::{Cause, Company, Fault, Incoming, Interest, Moved, Outgoing, Tag, Transport};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

// Elements travel as they lie in memory, and frames are little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// Most bytes of a segment.
pub const SEGMENT: usize = 1 << 20;

/// Least bytes of a segment, except for the last.
const SHORTEST: usize = 512 << 10;

/// Elements of the segments of a transfer of `length` elements of `width` bytes: a quarter of it, so that it overlaps
/// with what comes before and after, but large enough that headers, system calls and wake-ups do not count (over
/// loopback, half a MiB is a quarter faster than an eighth) and small enough to be near when it is combined. Part of the
/// protocol: both ends cut alike.
fn segment_length(length: usize, width: usize) -> usize {
    let width = width.max(1);
    ((length / 4).saturating_mul(width).clamp(SHORTEST, SEGMENT) / width).max(1)
}

/// One collective in progress; keeps its memory for the next one.
#[derive(Default)]
pub struct Operation {
    tag: Option<Tag>,
    transfers: Vec<Transfer>,
    /// All before this one are done.
    first_open: usize,
    /// Per peer the send and the receive at hand.
    sending: Vec<Option<usize>>,
    receiving: Vec<Option<usize>>,
    wanted: Vec<Interest>,
    /// One place per peer for a segment that is to be combined.
    staging: Vec<Line>,
    places: Vec<usize>,
}

/// Memory aligned for any element.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A send or a receive on its way.
struct Transfer {
    peer: usize,
    kind: Kind,
    /// All its elements.
    range: Range<usize>,
    /// Elements of its segments.
    segment: usize,
    /// Up to where it is done.
    position: usize,
    done: bool,
    /// Its segment at hand is under way.
    begun: bool,
    /// Its segment at hand has arrived and waits to be combined.
    staged: bool,
    /// How far the sender's elements are ahead of these.
    ahead: usize,
    /// The next one with the same peer in the same direction.
    next: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Receive(Action),
}

/// How far an operation has come in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is complete.
    Done,
    /// Something moved; there may be more at once.
    Moved,
    /// Nothing moved: wait.
    Idle,
}

impl Operation {
    /// No operation yet.
    pub fn new() -> Operation {
        Operation::default()
    }

    /// Takes up a schedule for a buffer of `length` elements of type `T`, as one rank of the transport's group.
    pub fn start<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &dyn Transport,
        tag: Tag,
        length: usize,
    ) -> Result<(), Fault> {
        self.start_ragged::<T>(schedule, transport, tag, Partition::Even(length))
    }

    /// The same for chunks of any lengths; all ranks must divide alike.
    pub fn start_ragged<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &dyn Transport,
        tag: Tag,
        partition: Partition<'_>,
    ) -> Result<(), Fault> {
        let (rank, world) = (transport.rank(), transport.world());
        let sound =
            |step: &super::Step| step.is_within(rank, world, schedule.chunks) && step.overwritten().is_none();
        if !schedule.steps.iter().all(sound) {
            return Err(misuse(
                rank,
                "the schedule overwrites a chunk in use or names one that does not exist",
            ));
        }
        // Frames number their elements with 32 bits.
        if !partition.fits(schedule.chunks) || u32::try_from(partition.length()).is_err() {
            return Err(misuse(
                rank,
                "the chunks do not fit the schedule, or the buffer has 2^32 elements or more",
            ));
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
                let theirs = partition.elements_sent(*sent, *chunks, schedule.chunks);
                if theirs.len() != range.len() {
                    let what =
                        "chunks that change places must have the same length: use all_to_all for others";
                    return Err(misuse(rank, what));
                }
                let ahead = theirs.start.wrapping_sub(range.start);
                self.transfers.push(Transfer::new::<T>(*from, Kind::Receive(*action), range, ahead));
            }
        }
        self.link();
        self.make_room::<T>();
        Ok(())
    }

    /// Chains the transfers of each peer and direction.
    fn link(&mut self) {
        for index in (0..self.transfers.len()).rev() {
            let transfer = &mut self.transfers[index];
            let heads = match transfer.kind {
                Kind::Send => &mut self.sending,
                Kind::Receive(_) => &mut self.receiving,
            };
            transfer.next = heads[transfer.peer].replace(index);
        }
    }

    /// Gives each peer whose chunks are combined a place in the staging area.
    fn make_room<T: Element>(&mut self) {
        let mut lines = 0;
        self.places.clear();
        self.places.resize(self.receiving.len(), 0);
        for (peer, place) in self.places.iter_mut().enumerate() {
            let staged =
                self.transfers.iter().filter(|transfer| transfer.peer == peer && transfer.is_staged());
            let longest =
                staged.map(|transfer| transfer.range.len().min(transfer.segment)).max().unwrap_or(0);
            *place = lines;
            lines += (longest * size_of::<T>()).div_ceil(size_of::<Line>());
        }
        if self.staging.len() < lines {
            self.staging.resize(lines, Line::zeroed());
        }
    }

    /// Moves what can be moved without waiting. Called with the same buffer until it is done.
    ///
    /// After a fault the buffer's contents are unspecified.
    pub fn progress<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        company: Company,
    ) -> Result<Progress, Fault> {
        let mut moved = false;
        for peer in 0..self.receiving.len() {
            if let Some(index) = self.receiving[peer] {
                moved |= self.receive(index, transport, buffer, operator, company)?;
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

    /// By peer, what the operation waits for.
    pub fn wanted(&mut self) -> &[Interest] {
        for (peer, interest) in self.wanted.iter_mut().enumerate() {
            // What has arrived and only waits for its turn is owed by nobody: its sender may have left since.
            interest.read = self.receiving[peer].is_some_and(|index| !self.transfers[index].staged);
            interest.write = self.sending[peer].is_some_and(|index| {
                let transfer = &self.transfers[index];
                transfer.begun
                    || !is_held_up(
                        &self.transfers[self.first_open..],
                        index - self.first_open,
                        transfer.at_hand(),
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
    ) -> Result<bool, Fault> {
        let transfer = &self.transfers[index];
        let range = transfer.at_hand();
        if !transfer.begun && self.is_held_up(index, &range) {
            return Ok(false);
        }
        let Some(tag) = self.tag else { return Ok(false) };
        let bytes = bytemuck::cast_slice(buffer.get(range.clone()).ok_or_else(|| shrunk(transport.rank()))?);
        let moved = transport.send(tag, Outgoing { to: transfer.peer, chunk: range.start as u32, bytes })?;
        self.transfers[index].begun |= moved != Moved::Nothing;
        if moved == Moved::Whole {
            self.complete(index, range.end);
        }
        Ok(moved != Moved::Nothing)
    }

    fn receive<T: Element>(
        &mut self,
        index: usize,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        company: Company,
    ) -> Result<bool, Fault> {
        let transfer = &self.transfers[index];
        let range = transfer.at_hand();
        if transfer.staged {
            return Ok(self.apply(index, buffer, operator));
        }
        if !transfer.begun && !transfer.is_staged() && self.is_held_up(index, &range) {
            return Ok(false);
        }
        let Some(tag) = self.tag else { return Ok(false) };
        let (from, chunk) = (transfer.peer, range.start.wrapping_add(transfer.ahead) as u32);
        let bytes = if transfer.is_staged() {
            &mut bytemuck::cast_slice_mut(&mut self.staging[self.places[from]..])
                [..range.len() * size_of::<T>()]
        } else {
            bytemuck::cast_slice_mut(buffer.get_mut(range.clone()).ok_or_else(|| shrunk(transport.rank()))?)
        };
        let moved = transport.receive(tag, Incoming { from, chunk, bytes }, company)?;
        let transfer = &mut self.transfers[index];
        transfer.begun |= moved != Moved::Nothing;
        if moved == Moved::Whole {
            transfer.staged = transfer.is_staged();
            match transfer.staged {
                true => drop(self.apply(index, buffer, operator)),
                false => self.complete(index, range.end),
            }
        }
        Ok(moved != Moved::Nothing)
    }

    /// Combines a segment that has arrived with the buffer, if it is its turn.
    fn apply<T: Element>(&mut self, index: usize, buffer: &mut [T], operator: &dyn Operator<T>) -> bool {
        let transfer = &self.transfers[index];
        let range = transfer.at_hand();
        if self.is_held_up(index, &range) {
            return false;
        }
        let bytes: &[u8] = bytemuck::cast_slice(&self.staging[self.places[transfer.peer]..]);
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
    fn is_held_up(&self, index: usize, range: &Range<usize>) -> bool {
        is_held_up(&self.transfers[self.first_open..], index - self.first_open, range.clone())
    }

    /// The segment at hand is done, up to `position`.
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
    fn new<T: Element>(peer: usize, kind: Kind, range: Range<usize>, ahead: usize) -> Transfer {
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
            ahead,
            next: None,
        }
    }

    /// Whether what arrives is put aside first.
    fn is_staged(&self) -> bool {
        matches!(self.kind, Kind::Receive(Action::Reduce | Action::Exchange))
    }

    /// The elements of the segment at hand.
    fn at_hand(&self) -> Range<usize> {
        self.position..self.range.end.min(self.position + self.segment)
    }
}

/// Whether one of the transfers before `index` has yet to touch these elements in a way that must come first: whoever
/// writes waits for earlier readers and writers, whoever reads for earlier writers.
fn is_held_up(transfers: &[Transfer], index: usize, range: Range<usize>) -> bool {
    let reads = transfers[index].kind == Kind::Send;
    transfers[..index].iter().any(|earlier| {
        let harmless = earlier.done || reads && earlier.kind == Kind::Send;
        !harmless && earlier.position < range.end && range.start < earlier.range.end
    })
}

fn misuse(rank: usize, what: &str) -> Fault {
    Fault::of(rank, Cause::Protocol(what.into()))
}

fn shrunk(rank: usize) -> Fault {
    misuse(rank, "the buffer is shorter than when the operation began")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_quarters_within_bounds() {
        assert_eq!(
            [0, 100, 3 << 20, 4 << 20, 1 << 30].map(|length| segment_length(length, 1)),
            [SHORTEST, SHORTEST, 768 << 10, SEGMENT, SEGMENT]
        );
        assert_eq!(segment_length(1 << 20, 4), SEGMENT / 4);
        assert_eq!(segment_length(9, SEGMENT * 2), 1);
    }
}
