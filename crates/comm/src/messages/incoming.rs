//! The messages from one peer.

use super::Message;
use super::buffers::Buffers;
use super::known_bugs;
use super::outgoing::fragment;
use super::record::{Announcement, Grant, RECORD, cost};
use std::time::Duration;

/// What one peer sends: the message that is arriving, and the account of its credit.
pub(super) struct Incoming {
    /// Sequence number of the next message.
    next: u64,
    /// Credit used by all messages received in full, and by those that the program has taken.
    received: u64,
    taken: u64,
    /// Whether the peer is to be told.
    grant_is_due: bool,
    /// Messages of which the peer was told on this connection that they were received.
    confirmed: u64,
    record: [u8; RECORD],
    arriving: Option<Arriving>,
    /// When bytes of a message last arrived.
    pub(super) heard: Duration,
}

struct Arriving {
    message: Message,
    position: usize,
}

/// What has arrived.
pub(super) enum Arrived {
    /// The memory for a record is filled.
    Record([u8; RECORD]),
    Fragment,
    Message(Message),
}

impl Incoming {
    pub fn new() -> Incoming {
        Incoming {
            next: 0,
            received: 0,
            taken: 0,
            grant_is_due: true,
            confirmed: 0,
            record: [0; RECORD],
            arriving: None,
            heard: Duration::ZERO,
        }
    }

    /// Chunk index and memory of the next frame.
    pub fn frame(&mut self) -> (u32, &mut [u8]) {
        match &mut self.arriving {
            None => (0, &mut self.record),
            Some(Arriving { message, position }) => {
                let (chunk, range) = fragment(*position, message.bytes.len());
                (chunk, &mut message.bytes[range])
            }
        }
    }

    /// The frame has arrived.
    pub fn on_received(&mut self) -> Arrived {
        let Some(mut arriving) = self.arriving.take() else { return Arrived::Record(self.record) };
        let length = arriving.message.bytes.len();
        arriving.position = fragment(arriving.position, length).1.end;
        match arriving.position < length {
            true => {
                self.arriving = Some(arriving);
                Arrived::Fragment
            }
            false => Arrived::Message(self.complete(arriving.message)),
        }
    }

    /// Reserves memory for a message of the member `from`; an empty one is here already. The error says why it is refused.
    pub fn begin(
        &mut self,
        announcement: Announcement,
        from: usize,
        window: u64,
        buffers: &mut Buffers,
    ) -> Result<Option<Message>, String> {
        let Announcement { group, tag, sequence, length } = announcement;
        if known_bugs::repeats_messages() {
            self.next = sequence;
        }
        if sequence != self.next {
            return Err(format!("message {sequence} came where number {} was expected", self.next));
        }
        if length > window {
            return Err(format!("a message of {length} bytes, longer than the window of {window}"));
        }
        let over = (self.received + cost(length)).saturating_sub(self.taken + window);
        if over > 0 {
            return Err(format!("a message of {length} bytes, {over} more than its credit"));
        }
        let message = Message { member: from, group, tag, bytes: buffers.take(length as usize) };
        if length == 0 {
            return Ok(Some(self.complete(message)));
        }
        self.arriving = Some(Arriving { message, position: 0 });
        Ok(None)
    }

    fn complete(&mut self, message: Message) -> Message {
        self.next += 1;
        self.received += cost(message.bytes.len() as u64);
        self.grant_is_due = true;
        message
    }

    /// The program has taken a message: its memory is free.
    pub fn on_taken(&mut self, length: usize) {
        self.taken += cost(length as u64);
        self.grant_is_due = true;
    }

    /// The window is wider now.
    pub fn on_widened(&mut self) {
        self.grant_is_due = true;
    }

    pub fn is_arriving(&self) -> bool {
        self.arriving.is_some()
    }

    /// The grant to send, if the last one is outdated.
    pub fn due_grant(&self, window: u64) -> Option<Grant> {
        self.grant_is_due.then(|| Grant { received: self.next, limit: self.taken + window })
    }

    /// The grant is being sent: the next one is due when something changes.
    pub fn on_grant_begun(&mut self) {
        self.grant_is_due = false;
    }

    pub fn on_granted(&mut self, grant: Grant) {
        self.confirmed = grant.received;
    }

    /// Whether the peer was told of all messages that were received.
    pub fn is_confirmed(&self) -> bool {
        self.confirmed == self.next
    }

    /// On a new connection: a message of which only a part arrived comes again.
    pub fn resume(&mut self) {
        (self.arriving, self.confirmed) = (None, 0);
        self.grant_is_due = true;
        if known_bugs::repeats_messages() {
            self.next = 0;
        }
    }
}
