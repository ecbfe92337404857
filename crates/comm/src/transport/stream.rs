//! A transport over nonblocking byte streams, one to each peer.
//!
//! [`StreamTransport`] moves frames; when none moves, it checks for closed streams, then waits (`stream/waiting.rs`).
//! What differs between threads, sockets and shared memory is behind [`Link`] (one stream) and [`LinkSet`] (all of them,
//! and how to wait). What a closed stream means for the other ranks is decided in `peer_state`.

mod waiting;

use super::early_frames;
use super::inbox::{Inbox, ReadError};
use super::link::{Link, LinkSet, close_link};
use super::outbox::Outbox;
use super::peer_activity::{PeerActivity, timeout_error};
use super::peer_state::{PeerState, PeerTable};
use super::wait_state::{Interest, WaitState};
use super::{
    Abort, Cause, Incoming, IoProgress, LinkFault, MatchMode, Outgoing, ProgressCounters, Tag, Traffic,
    Transport, TransportError,
};
use crate::wire::{CloseReason, HEADER, Header, MAX_PAYLOAD, MESSAGES};
use std::io::Write;
use std::time::Duration;

/// How long [`Transport::close`] tries to send its close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A transport over the links `L`.
pub struct StreamTransport<L: LinkSet> {
    rank: usize,
    links: L,
    peers: PeerTable,
    outboxes: Vec<Outbox>,
    inboxes: Vec<Inbox>,
    /// Empty; kept to avoid an allocation per wait.
    hung_up: Vec<usize>,
    /// What ends waits besides what is wanted; see [`Transport::set_background`].
    background: Vec<Interest>,
    /// Frames that overtook messages, by peer.
    overtaking: Vec<Overtaking>,
    peer_activity: Vec<PeerActivity>,
    traffic: Traffic,
    abort: Abort,
    counters: ProgressCounters,
    generation: u32,
    /// Peers to which all bytes are dropped: an injected fault.
    muted: Vec<usize>,
    error: Option<TransportError>,
    closed: bool,
}

/// Frames of operations begun to a peer while messages to it are unsent.
#[derive(Clone, Copy, Default)]
struct Overtaking {
    unsent: bool,
    bytes: usize,
    /// Whether the next one was blocked.
    held: bool,
}

impl Overtaking {
    /// Whether a frame of this length may begin: no more than the peer can buffer while it waits for one of the messages.
    fn may_begin(&mut self, length: usize) -> bool {
        let bytes = self.bytes + HEADER + length;
        self.held = bytes > early_frames::CAPACITY;
        if !self.held {
            self.bytes = bytes;
        }
        !self.held
    }
}

impl<L: LinkSet> StreamTransport<L> {
    /// Rank `rank` of a group, with a link to every other rank.
    pub(super) fn over(rank: usize, mut links: L) -> StreamTransport<L> {
        let world = links.links().len();
        StreamTransport {
            rank,
            links,
            peers: PeerTable::new(world),
            outboxes: (0..world).map(|_| Outbox::new()).collect(),
            inboxes: (0..world).map(|_| Inbox::new()).collect(),
            hung_up: Vec::new(),
            background: Vec::new(),
            overtaking: vec![Overtaking::default(); world],
            peer_activity: vec![PeerActivity::default(); world],
            traffic: Traffic::default(),
            abort: Abort::default(),
            counters: ProgressCounters::default(),
            generation: 0,
            muted: Vec::new(),
            error: None,
            closed: false,
        }
    }

    pub(super) fn link_set(&self) -> &L {
        &self.links
    }

    #[cfg(feature = "mpi")]
    pub(super) fn link_set_mut(&mut self) -> &mut L {
        &mut self.links
    }

    fn other_ranks(&self) -> impl Iterator<Item = usize> + use<L> {
        let rank = self.rank;
        (0..self.peers.world()).filter(move |&peer| peer != rank)
    }

    /// Fails if the group is unusable.
    fn check_group(&mut self, tag: Tag) -> Result<(), TransportError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.closed {
            return Err(TransportError::new(self.rank, Cause::Left));
        }
        self.generation = tag.generation;
        Ok(())
    }

    /// Fails if the group is unusable, or if a frame of this length with this peer is impossible.
    fn check_frame(&mut self, tag: Tag, peer: usize, length: usize) -> Result<(), TransportError> {
        self.check_group(tag)?;
        if peer == self.rank || peer >= self.peers.world() || length > MAX_PAYLOAD {
            let what = format!("rank {} cannot exchange {length} bytes with rank {peer}", self.rank);
            return Err(self.fail(TransportError::new(self.rank, Cause::Protocol(what))));
        }
        Ok(())
    }

    /// Makes the group unusable for this rank and sends the peers the reason.
    fn fail(&mut self, error: TransportError) -> TransportError {
        self.error = Some(error.clone());
        self.send_close_frames(error.close_reason(), Duration::ZERO);
        error
    }

    /// Handles the outcome of a read from a peer: `None` if its stream has ended.
    fn on_read<R>(
        &mut self,
        peer: usize,
        outcome: Result<R, ReadError>,
    ) -> Result<Option<R>, TransportError> {
        match outcome {
            Ok(outcome) => return Ok(Some(outcome)),
            Err(ReadError::Invalid(cause)) => return Err(self.fail(TransportError::new(peer, cause))),
            Err(ReadError::Closed(reason)) => {
                // A close frame stays in the inbox and is read by every operation: only the first read is a change.
                self.peers.set(peer, PeerState::Left(reason));
            }
            Err(ReadError::Stream) => self.on_hang_up(peer),
        }
        Ok(None)
    }

    /// Determines the state of a peer that ended its stream.
    fn on_hang_up(&mut self, peer: usize) {
        if !self.peers.is_connected(peer) {
            return;
        }
        let Some(link) = &mut self.links.links()[peer] else { return };
        self.peers.set(peer, PeerState::after_end(link.unread()));
    }

    /// Sends a close frame to all connected peers, except on streams in the middle of another frame.
    fn send_close_frames(&mut self, reason: CloseReason, timeout: Duration) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let start = self.links.now();
        let frame = Header::close(self.generation, reason).encode();
        for peer in self.other_ranks() {
            let in_frame = !L::Link::CLOSE_OUT_OF_BAND && self.outboxes[peer].is_partial();
            if !in_frame && self.peers.is_connected(peer) && !self.muted.contains(&peer) {
                let remaining = timeout.saturating_sub(self.links.now() - start);
                self.traffic.total_sent += close_link(&mut self.links, peer, &frame, remaining) as u64;
            }
        }
    }
}

impl<L: LinkSet> Transport for StreamTransport<L> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.peers.world()
    }

    fn now(&self) -> Duration {
        self.links.now()
    }

    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<IoProgress, TransportError> {
        let peer = frame.to;
        self.check_frame(tag, peer, frame.bytes.len())?;
        if self.muted.contains(&peer) {
            return Ok(IoProgress::Complete);
        }
        let Some(link) = &mut self.links.links()[peer] else { return Ok(IoProgress::Blocked) };
        if !self.peers.is_connected(peer) && !self.outboxes[peer].is_written() {
            return Ok(IoProgress::Blocked);
        }
        let overtakes = tag.group != MESSAGES && self.overtaking[peer].unsent;
        if overtakes && self.outboxes[peer].is_idle() && !self.overtaking[peer].may_begin(frame.bytes.len()) {
            return Ok(IoProgress::Blocked);
        }
        match self.outboxes[peer].send(link, tag, frame, &mut self.traffic) {
            Ok(progress) => {
                if progress != IoProgress::Blocked {
                    self.counters.count_move();
                    self.peer_activity[peer].on_send();
                }
                Ok(progress)
            }
            Err(_) => {
                self.on_hang_up(peer);
                Ok(IoProgress::Blocked)
            }
        }
    }

    fn receive(
        &mut self,
        tag: Tag,
        frame: Incoming<'_>,
        mode: MatchMode,
    ) -> Result<IoProgress, TransportError> {
        let peer = frame.from;
        self.check_frame(tag, peer, frame.bytes.len())?;
        let Some(link) = &mut self.links.links()[peer] else { return Ok(IoProgress::Blocked) };
        let outcome = self.inboxes[peer].receive(link, tag, frame, mode, &mut self.traffic);
        let progress = self.on_read(peer, outcome)?.unwrap_or(IoProgress::Blocked);
        if progress != IoProgress::Blocked {
            self.counters.count_move();
        }
        let arrived = match progress {
            IoProgress::Blocked => false,
            // Not if only the header of another operation's frame was read.
            IoProgress::Partial => self.inboxes[peer].has_accepted(tag),
            IoProgress::Complete => true,
        };
        self.peer_activity[peer].on_receive(tag, arrived);
        Ok(progress)
    }

    fn wait(&mut self, wait: &mut WaitState, wanted: &[Interest], moved: bool) -> Result<(), TransportError> {
        let outcome = self.wait_or_fail(wait, wanted, moved);
        self.links.mark();
        outcome.map_err(|error| self.fail(error))?;
        self.peer_activity.iter_mut().for_each(PeerActivity::clear_awaited);
        self.inboxes.iter_mut().for_each(Inbox::clear_behind);
        Ok(())
    }

    fn timeout_error(&self, wait: &WaitState, pending: Vec<usize>) -> TransportError {
        timeout_error(&self.peer_activity, pending, self.links.now(), wait.waited())
    }

    fn set_background(&mut self, interests: &[Interest], unsent: &[bool]) {
        self.background.clear();
        self.background.extend_from_slice(interests);
        for (overtaking, unsent) in self.overtaking.iter_mut().zip(unsent) {
            *overtaking =
                if *unsent { Overtaking { unsent: true, ..*overtaking } } else { Overtaking::default() };
        }
    }

    fn is_held(&self, peer: usize) -> bool {
        self.overtaking.get(peer).is_some_and(|overtaking| overtaking.held)
    }

    fn poll(&mut self, timeout: Duration) -> Result<(), TransportError> {
        let outcome = self.poll_or_fail(timeout);
        self.links.mark();
        outcome.map_err(|error| self.fail(error))
    }

    fn wake_peers(&mut self) {
        self.links.wake_peers();
    }

    fn admit_groups(&mut self) {
        self.inboxes.iter_mut().for_each(Inbox::admit_groups);
    }

    fn has_native_all_reduce(&self) -> bool {
        self.links.has_native_all_reduce()
    }

    fn native_all_reduce(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<IoProgress, TransportError> {
        self.check_group(tag)?;
        let outcome = self.links.native_all_reduce(buffer);
        if outcome.as_ref().is_ok_and(|progress| *progress != IoProgress::Blocked) {
            self.counters.count_move();
        }
        if outcome.as_ref().is_ok_and(|progress| *progress == IoProgress::Complete) {
            self.traffic.add_sum(size_of_val(buffer), self.peers.world());
        }
        outcome.map_err(|error| self.fail(TransportError::new(self.rank, Cause::Protocol(error.to_string()))))
    }

    fn inject(&mut self, peer: usize, fault: LinkFault) {
        let Some(Some(link)) = self.links.links().get_mut(peer) else { return };
        match fault {
            LinkFault::Cut => link.shutdown_write(),
            LinkFault::CutOneWay => self.muted.push(peer),
            _ => drop(link.write(&fault.bytes())),
        }
        self.links.wake_peers();
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    fn progress_counters(&self) -> &ProgressCounters {
        &self.counters
    }

    fn close(&mut self) {
        if !self.closed {
            self.send_close_frames(CloseReason::Done, CLOSE_TIMEOUT);
            self.links.on_close();
        }
    }
}
