//! The messages to one peer.

use super::Message;
use super::record::{Announcement, Grant, RECORD, Record, cost};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// Maximum payload of a frame; longer messages are fragmented, so that a collective never waits for more of a message.
pub(super) const FRAGMENT: usize = 256 << 10;

/// The messages to one peer that it is not known to have received, in order.
pub(super) struct Outgoing {
    /// Sequence number of the first message in the queue.
    first: u64,
    queue: VecDeque<Queued>,
    /// Credit that all messages up to the first in the queue, and up to the last, have used.
    acknowledged: u64,
    end: u64,
    /// Messages of the queue sent in full in this generation.
    sent: usize,
    /// Of the message behind them: whether its announcement was sent, and bytes sent.
    announced: bool,
    position: usize,
    /// Messages announced in any generation: no more can have been received.
    begun: u64,
    /// The peer's last grant in this generation.
    granted: Option<Grant>,
    /// The largest limit that was granted.
    limit: u64,
    frame: Option<Frame>,
    /// The memory of messages that were acknowledged.
    delivered: Vec<Vec<u8>>,
}

struct Queued {
    message: Message,
    /// Credit used by the messages up to this one.
    end: u64,
    when: Duration,
}

/// The frame that is being sent.
#[derive(Clone, Copy)]
enum Frame {
    Grant(Grant, [u8; RECORD]),
    Announcement([u8; RECORD]),
    Fragment,
}

/// The chunk index and the range of the fragment of a message that begins at `position`; the index of records is 0.
pub(super) fn fragment(position: usize, length: usize) -> (u32, Range<usize>) {
    (1 + (position / FRAGMENT) as u32, position..length.min(position + FRAGMENT))
}

impl Outgoing {
    /// Before the first grant the peer is taken to have the window of this rank.
    pub fn new(window: u64) -> Outgoing {
        Outgoing {
            first: 0,
            queue: VecDeque::new(),
            acknowledged: 0,
            end: 0,
            sent: 0,
            announced: false,
            position: 0,
            begun: 0,
            granted: None,
            limit: window,
            frame: None,
            delivered: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether there is credit for a message of this length.
    pub fn has_room(&self, length: usize, window: u64) -> bool {
        // A peer cannot grant more than its window behind what it has received.
        let limit = self.limit.min(self.acknowledged.saturating_add(window));
        self.end.saturating_add(cost(length as u64)) <= limit
    }

    pub fn push(&mut self, message: Message, when: Duration) {
        self.end += cost(message.bytes.len() as u64);
        self.queue.push_back(Queued { message, end: self.end, when });
    }

    /// Takes a grant of the peer. `delivered` gets the time at which each message that it acknowledges was queued, without
    /// signals.
    pub fn on_grant(&mut self, grant: Grant, delivered: impl FnMut(Duration)) -> Result<(), String> {
        let Grant { received, limit } = grant;
        if received > self.begun {
            return Err(format!("it acknowledged {received} messages, of {} sent", self.begun));
        }
        self.granted = Some(grant);
        self.limit = self.limit.max(limit);
        self.drop_received(delivered);
        Ok(())
    }

    /// Drops the messages that the peer has. One of which a frame is being sent stays until that is complete.
    fn drop_received(&mut self, mut delivered: impl FnMut(Duration)) {
        let received = self.granted.map_or(0, |grant| grant.received);
        while self.first < received && (self.sent > 0 || self.frame.is_none()) {
            let Some(queued) = self.queue.pop_front() else { break };
            if !queued.message.bytes.is_empty() {
                delivered(queued.when);
            }
            (self.first, self.acknowledged) = (self.first + 1, queued.end);
            self.sent = self.sent.saturating_sub(1);
            self.delivered.push(queued.message.bytes);
        }
    }

    /// Takes the memory of messages that were acknowledged.
    pub fn take_delivered(&mut self) -> impl Iterator<Item = Vec<u8>> {
        self.delivered.drain(..)
    }

    /// The frame to send next: its chunk index and its bytes. `grant` is one that is due; without `may_begin` only a frame
    /// that was begun is continued.
    pub fn frame(&mut self, grant: &mut Option<Grant>, may_begin: bool) -> Option<(u32, &[u8])> {
        if self.frame.is_none() {
            self.frame = if may_begin { self.next_frame(grant) } else { None };
        }
        Some(match self.frame.as_ref()? {
            Frame::Grant(_, record) | Frame::Announcement(record) => (0, record),
            Frame::Fragment => {
                let bytes = &self.queue.get(self.sent)?.message.bytes;
                let (chunk, range) = fragment(self.position, bytes.len());
                (chunk, &bytes[range])
            }
        })
    }

    fn next_frame(&mut self, grant: &mut Option<Grant>) -> Option<Frame> {
        if self.announced {
            return Some(Frame::Fragment);
        }
        if let Some(grant) = grant.take() {
            return Some(Frame::Grant(grant, Record::Grant(grant).encode()));
        }
        let limit = self.granted?.limit;
        let Queued { message, .. } = self.queue.get(self.sent).filter(|queued| queued.end <= limit)?;
        let sequence = self.first + self.sent as u64;
        let Message { group, tag, ref bytes, .. } = *message;
        self.begun = self.begun.max(sequence + 1);
        let announcement = Announcement { group, tag, sequence, length: bytes.len() as u64 };
        Some(Frame::Announcement(Record::Message(announcement).encode()))
    }

    /// The frame has been sent; returns the grant that it was.
    pub fn on_sent(&mut self, delivered: impl FnMut(Duration)) -> Option<Grant> {
        let length = self.queue.get(self.sent).map_or(0, |queued| queued.message.bytes.len());
        let mut granted = None;
        match self.frame.take() {
            Some(Frame::Grant(grant, _)) => granted = Some(grant),
            Some(Frame::Announcement(_)) => (self.announced, self.position) = (true, 0),
            Some(Frame::Fragment) => self.position = fragment(self.position, length).1.end,
            None => {}
        }
        if self.announced && self.position == length {
            (self.announced, self.sent) = (false, self.sent + 1);
        }
        self.drop_received(delivered);
        granted
    }

    /// Whether a message is not sent in full.
    pub fn is_unsent(&self) -> bool {
        self.sent < self.queue.len()
    }

    /// Whether there is something to write to the link.
    pub fn wants_link(&self) -> bool {
        let limit = self.granted.map_or(0, |grant| grant.limit);
        let next = || self.queue.get(self.sent).is_some_and(|queued| queued.end <= limit);
        self.frame.is_some() || self.announced || next()
    }

    /// On a new connection: what the peer has not acknowledged is sent again, once its grant says what it has.
    pub fn resume(&mut self) {
        (self.sent, self.announced, self.position) = (0, false, 0);
        (self.granted, self.frame) = (None, None);
    }

    /// The messages that the peer is not known to have received.
    pub fn into_undelivered(self) -> impl Iterator<Item = Message> {
        self.queue.into_iter().map(|queued| queued.message)
    }
}
