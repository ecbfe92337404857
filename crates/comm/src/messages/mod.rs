//! Messages between single ranks, of any length and at any time: tasks beside collectives.
//!
//! A rank's [`Messages`] are all messages in flight from and to it. They are owned by a
//! [`NonblockingTransport`](crate::collective::NonblockingTransport), which advances them on every wait. Messages between
//! two members arrive in the order in which they were sent, and are handed over by group and tag.
//!
//! ```text
//! on each link    record | fragments of at most 256 KiB | record | ...       in frames of a group of their own
//! record          a message begins (group, tag, sequence number, length), or
//!                 a grant: messages received so far, and the credit of the other direction
//! ```
//!
//! - **Collectives first**: no fragment is begun on a link that a collective frame waits for. But collectives overtake messages
//!   only by what a receiver can buffer, as it may wait for one of them before it takes part
//!   ([`Transport::set_background`]).
//! - **Credit**: a receiver grants each sender a window of bytes, which it reserves for messages that the program has not
//!   taken yet. A message without credit is not queued ([`Messages::send`] returns false), and one that arrives without
//!   credit is an error of its sender.
//! - **Generations**: [`Messages::resume`] moves them to the connections of the next generation. A sender keeps a message
//!   until the receiver has acknowledged it. On a new connection each side first says which messages it has, and the rest
//!   is sent again: between members of both generations every message arrives once. Messages of a lost member that had
//!   arrived stay; those to it are [`Messages::take_undelivered`].

mod buffers;
mod incoming;
pub mod known_bugs;
mod outgoing;
mod record;
#[cfg(test)]
mod tests;

use crate::transport::{
    Cause, Incoming as IncomingFrame, Interest, IoProgress, MatchMode, Outgoing as OutgoingFrame, Tag,
    Transport, TransportError,
};
use crate::wire::{MESSAGES, tensor};
use buffers::Buffers;
use incoming::{Arrived, Incoming};
use outgoing::Outgoing;
use record::Record;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Attempts to move a frame from or to one peer before the next peer's turn.
const MAX_ATTEMPTS: usize = 16;

/// The smallest window: that of an empty message.
const MIN_WINDOW: usize = 64;

/// A message with its sender, or one that was not delivered with its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The member id of the other rank.
    pub member: usize,
    /// The id of the group.
    pub group: u32,
    /// Chosen by the sender.
    pub tag: u32,
    pub bytes: Vec<u8>,
}

/// Counts of a rank's messages. Empty messages are signals, which do not count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageCounts {
    pub sent: u64,
    /// Messages that were not sent because there was no credit for them, or because the program says so.
    pub skipped: u64,
    /// Messages of the program for which another one stood that was still to be sent.
    pub combined: u64,
    /// The longest time in which this rank did not move its messages, pauses left out.
    pub longest_gap: Duration,
}

/// All messages from and to a rank.
pub struct Messages {
    tag: Tag,
    window: u64,
    /// By rank. That of this rank itself is not used.
    peers: Vec<Peer>,
    /// Messages received in full, in the order of their arrival.
    received: VecDeque<Message>,
    undelivered: Vec<Message>,
    buffers: Buffers,
    counts: MessageCounts,
    /// From sending each message to its acknowledgement, until they are taken.
    delays: Vec<Duration>,
    /// When messages were last moved, or this rank last waited.
    attended: Option<Duration>,
    /// A peer broke the protocol.
    error: Option<TransportError>,
}

struct Peer {
    member: usize,
    outgoing: Outgoing,
    incoming: Incoming,
}

impl Peer {
    fn new(member: usize, window: u64) -> Peer {
        Peer { member, outgoing: Outgoing::new(window), incoming: Incoming::new() }
    }
}

impl Messages {
    /// Messages between the members of a generation, by rank. `window`: bytes that every other member may have sent to this
    /// rank and that were not taken yet, also the longest message. All members must choose the same.
    pub fn new(generation: u32, members: &[usize], window: usize) -> Messages {
        let window = window.max(MIN_WINDOW) as u64;
        Messages {
            tag: tag_of(generation),
            window,
            peers: members.iter().map(|member| Peer::new(*member, window)).collect(),
            received: VecDeque::new(),
            undelivered: Vec::new(),
            buffers: Buffers::default(),
            counts: MessageCounts::default(),
            delays: Vec::new(),
            attended: None,
            error: None,
        }
    }

    /// Widens the window; a smaller one has no effect.
    pub fn widen(&mut self, window: usize) {
        if window as u64 > self.window {
            self.window = window as u64;
            self.peers.iter_mut().for_each(|peer| peer.incoming.on_widened());
        }
    }

    /// The longest message.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// The same messages in the next generation, between these members.
    pub fn resume(mut self, generation: u32, members: &[usize]) -> Messages {
        let mut before: BTreeMap<usize, Peer> =
            self.peers.into_iter().map(|peer| (peer.member, peer)).collect();
        for peer in before.values_mut() {
            peer.outgoing.resume();
            peer.incoming.resume();
        }
        let window = self.window;
        let peer = |member: &usize| before.remove(member).unwrap_or_else(|| Peer::new(*member, window));
        self.peers = members.iter().map(peer).collect();
        let lost = before.into_values().flat_map(|peer| peer.outgoing.into_undelivered());
        self.undelivered.extend(lost);
        (self.tag, self.attended, self.error) = (tag_of(generation), None, None);
        self
    }

    /// The messages to members that are gone which these are not known to have received, with their bytes.
    pub fn take_undelivered(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.undelivered)
    }

    /// Whether there is credit for a message of this length to a rank.
    pub fn has_room(&self, to: usize, length: usize) -> bool {
        self.peers.get(to).is_some_and(|peer| peer.outgoing.has_room(length, self.window))
    }

    /// Queues a message to a rank; false without credit for it: the rank has not taken enough of those before.
    pub fn send(&mut self, to: usize, group: u32, tag: u32, bytes: Vec<u8>, now: Duration) -> bool {
        let (has_room, counts) = (self.has_room(to, bytes.len()), u64::from(!bytes.is_empty()));
        match self.peers.get_mut(to).filter(|_| has_room) {
            Some(peer) => {
                peer.outgoing.push(Message { member: peer.member, group, tag, bytes }, now);
                self.counts.sent += counts;
            }
            None => self.counts.skipped += counts,
        }
        has_room
    }

    /// Counts a message that the program does not send because there was no credit for what goes before it.
    pub fn count_skipped(&mut self) {
        self.counts.skipped += 1;
    }

    /// Counts a message for which another one stands that the program has still to send.
    pub fn count_combined(&mut self) {
        self.counts.combined += 1;
    }

    /// The first message with this group and tag, from this member or from any.
    pub fn take(&mut self, from: Option<usize>, group: u32, tag: u32) -> Option<Message> {
        let matches = |message: &Message| {
            (message.group, message.tag) == (group, tag) && from.is_none_or(|from| message.member == from)
        };
        let message = self.received.remove(self.received.iter().position(matches)?)?;
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.member == message.member) {
            peer.incoming.on_taken(message.bytes.len());
        }
        Some(message)
    }

    /// A buffer for a message: empty, with the memory of an earlier one if there is some.
    pub fn buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = self.buffers.take(length);
        buffer.clear();
        buffer
    }

    /// Gives back the memory of a message that is not needed any more.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.buffers.put(buffer);
    }

    /// What is missing until a rank is known to have received everything that was sent to it, and knows the same of this
    /// rank.
    pub fn pending(&self, to: usize) -> Interest {
        self.peers.get(to).map_or(Interest::default(), |peer| Interest {
            read: !peer.outgoing.is_empty(),
            write: !peer.incoming.is_confirmed(),
        })
    }

    /// When bytes of the message arrived that a rank is sending, if it is sending one.
    pub(crate) fn is_arriving(&self, from: usize) -> Option<Duration> {
        let incoming = &self.peers.get(from)?.incoming;
        incoming.is_arriving().then_some(incoming.heard)
    }

    pub fn counts(&self) -> &MessageCounts {
        &self.counts
    }

    /// For every message delivered since the last [`Messages::take_delays`], signals apart, the time from sending it to its
    /// acknowledgement.
    pub fn delays(&self) -> &[Duration] {
        &self.delays
    }

    pub fn take_delays(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.delays)
    }

    /// Sends and receives what is possible without blocking; returns whether anything moved. No frame is begun on a link
    /// that collectives want to write to, unless these have overtaken messages by as much as they may.
    pub fn advance(
        &mut self,
        transport: &mut dyn Transport,
        wanted: &[Interest],
    ) -> Result<bool, TransportError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let (rank, now) = (transport.rank(), transport.now());
        if let Some(attended) = self.attended.replace(now) {
            self.counts.longest_gap = self.counts.longest_gap.max(now.saturating_sub(attended));
        }
        let mut moved = false;
        for peer in (0..self.peers.len()).filter(|&peer| peer != rank) {
            let is_wanted = wanted.get(peer).is_some_and(|interest| interest.write);
            let may_begin = !is_wanted || transport.is_held(peer);
            moved |= self.receive_from(transport, peer, now).inspect_err(|error| {
                if error.peer == Some(peer) && matches!(error.cause, Cause::Protocol(_)) {
                    self.error = Some(error.clone());
                }
            })?;
            moved |= self.send_to(transport, peer, may_begin, now)?;
        }
        Ok(moved)
    }

    /// Until now the rank did not train: the time since messages were last moved is no gap.
    pub fn leave_out_gap(&mut self, now: Duration) {
        self.on_waited(now);
    }

    /// The rank has waited: until now every event would have ended its wait.
    pub(crate) fn on_waited(&mut self, now: Duration) {
        self.attended = self.attended.map(|attended| attended.max(now));
    }

    /// What moves messages, by rank: frames of all, and room on links to those that can be sent more.
    pub(crate) fn interests(&self, rank: usize) -> impl Iterator<Item = Interest> {
        self.peers.iter().enumerate().map(move |(index, peer)| match index == rank {
            true => Interest::default(),
            false => Interest { read: true, write: peer.outgoing.wants_link() },
        })
    }

    /// By rank, whether messages to it are unsent.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = bool> {
        self.peers.iter().map(|peer| peer.outgoing.is_unsent())
    }

    fn send_to(
        &mut self,
        transport: &mut dyn Transport,
        to: usize,
        may_begin: bool,
        now: Duration,
    ) -> Result<bool, TransportError> {
        let Messages { tag, window, peers, delays, buffers, .. } = self;
        let Peer { outgoing, incoming, .. } = &mut peers[to];
        outgoing.take_delivered().for_each(|buffer| buffers.put(buffer));
        let mut moved = false;
        for _ in 0..MAX_ATTEMPTS {
            let mut due = incoming.due_grant(*window);
            let was_due = due.is_some();
            let Some((chunk, bytes)) = outgoing.frame(&mut due, may_begin) else { break };
            let progress = transport.send(*tag, OutgoingFrame { to, chunk, bytes })?;
            if was_due && due.is_none() {
                incoming.on_grant_begun();
            }
            if progress == IoProgress::Blocked {
                break;
            }
            moved = true;
            if progress == IoProgress::Complete {
                let sent = outgoing.on_sent(|queued| delays.push(now.saturating_sub(queued)));
                sent.into_iter().for_each(|grant| incoming.on_granted(grant));
            }
        }
        Ok(moved)
    }

    fn receive_from(
        &mut self,
        transport: &mut dyn Transport,
        from: usize,
        now: Duration,
    ) -> Result<bool, TransportError> {
        let Messages { tag, window, peers, received, delays, buffers, .. } = self;
        let Peer { member, outgoing, incoming } = &mut peers[from];
        let invalid = |what: String| TransportError::new(from, Cause::Protocol(what));
        let mut moved = false;
        for _ in 0..MAX_ATTEMPTS {
            let (chunk, bytes) = incoming.frame();
            let progress =
                transport.receive(*tag, IncomingFrame { from, chunk, bytes }, MatchMode::AnyOperation)?;
            if progress == IoProgress::Blocked {
                break;
            }
            (moved, incoming.heard) = (true, now);
            if progress != IoProgress::Complete {
                continue;
            }
            match incoming.on_received() {
                Arrived::Fragment => {}
                Arrived::Message(message) => received.push_back(message),
                Arrived::Record(record) => match Record::decode(&record).map_err(invalid)? {
                    Record::Grant(grant) => outgoing
                        .on_grant(grant, |queued| delays.push(now.saturating_sub(queued)))
                        .map_err(invalid)?,
                    Record::Message(announcement) => {
                        received.extend(
                            incoming.begin(announcement, *member, *window, buffers).map_err(invalid)?,
                        );
                    }
                },
            }
        }
        Ok(moved)
    }
}

fn tag_of(generation: u32) -> Tag {
    Tag { generation, operation: 0, group: MESSAGES, tensor: tensor("messages") }
}
