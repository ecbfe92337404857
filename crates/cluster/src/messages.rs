//! Messages between members of a group: sent at any time, received by sender and tag, in the order of sending.
//!
//! They move in every wait, in [`Rank::poll_messages`] and while the rank sleeps as a slower one, and outlive changes of the
//! group: between members that stay, every message arrives once. Not collective: only sender and receiver take part.

#[cfg(test)]
mod tests;

use crate::group::Group;
use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::messages::{self, Messages};
use thalweg_comm::transport::{Transport, TransportError, WaitState};
use thalweg_core::report::MessageReport;
use thalweg_core::{Error, Result};

/// Shortest time between two polls: each costs a system call per peer.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The kind of a message, by which it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageTag {
    pub number: u32,
    /// Its name in errors and heartbeats.
    pub name: &'static str,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's rank in the group; `None` if it is no member any more.
    pub from: Option<usize>,
    /// The sender's member id.
    pub member: usize,
    pub bytes: Vec<u8>,
}

/// A message to a lost member, which it is not known to have received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// The member id of the receiver.
    pub member: usize,
    /// [`MessageTag::number`].
    pub tag: u32,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message may not be sent"]
pub enum SendOutcome {
    Queued,
    /// The receiver has not taken enough of the messages before: this one is dropped, and counted as skipped.
    Full,
}

impl Rank {
    /// Opens messages. `window`: the most bytes that another rank may have sent to this one and that were not received by
    /// the program yet; no message may be longer, and each counts at least 64. All ranks must call it with the same window between the same two
    /// collectives, and again in a generation with new members. A wider window replaces the last one.
    pub fn open_messages(&mut self, window: usize) {
        let (generation, members) = (self.generation(), self.member_ids());
        self.parts.transport.open_messages(generation, &members, window);
    }

    pub fn has_messages(&self) -> bool {
        self.parts.transport.messages().is_some()
    }

    /// Moves messages between two pieces of computation, unless that was done just before.
    pub fn poll_messages(&mut self) -> Result<()> {
        if self.has_messages() && self.now().saturating_sub(self.last_poll) >= POLL_INTERVAL {
            self.move_messages("messages of the others")?;
            self.last_poll = self.now();
        }
        Ok(())
    }

    /// The same in a pause of the training, such as an evaluation: the longest gap of the report leaves it out.
    pub fn poll_messages_in_pause(&mut self) -> Result<()> {
        let now = self.now();
        self.parts.transport.messages_mut().into_iter().for_each(|messages| messages.leave_out_gap(now));
        self.poll_messages()
    }

    /// Counts a message that the program does not send because there was no room for what goes before it.
    pub fn count_skipped_message(&mut self) {
        self.parts.transport.messages_mut().into_iter().for_each(Messages::count_skipped);
    }

    /// Counts a message for which another one stands that the program has still to send.
    pub fn count_combined_message(&mut self) {
        self.parts.transport.messages_mut().into_iter().for_each(Messages::count_combined);
    }

    /// Takes the messages to lost members that these are not known to have received.
    pub fn take_undelivered(&mut self) -> Vec<Undelivered> {
        let all = self.parts.transport.messages_mut().map(Messages::take_undelivered).unwrap_or_default();
        let undelivered = |messages::Message { member, tag, bytes, .. }| Undelivered { member, tag, bytes };
        all.into_iter().map(undelivered).collect()
    }

    /// A buffer for the bytes of a message to send: empty, with the memory of an earlier message if there is some.
    pub fn message_buffer(&mut self, length: usize) -> Vec<u8> {
        match self.parts.transport.messages_mut() {
            Some(messages) => messages.buffer(length),
            None => Vec::with_capacity(length),
        }
    }

    /// Gives back the bytes of a received message, as memory for the next ones.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        if let Some(messages) = self.parts.transport.messages_mut() {
            messages.recycle(bytes);
        }
    }

    fn move_messages(&mut self, title: &str) -> Result<()> {
        let moved = self.parts.transport.advance();
        moved.map(drop).map_err(|fault| self.explain(&fault, title))
    }

    /// The counts for the account; `None` before messages were opened.
    pub(crate) fn message_report(&self) -> Option<MessageReport> {
        let messages = self.parts.transport.messages()?;
        let mut delays = self.message_delays.clone();
        messages.delays().iter().for_each(|delay| delays.add(delay.as_secs_f32() * 1e3));
        let counts = messages.counts();
        Some(MessageReport {
            sent: counts.sent,
            skipped: counts.skipped,
            combined: counts.combined,
            median_delay_s: delays.spread().median / 1e3,
            longest_gap_s: counts.longest_gap.as_secs_f64(),
        })
    }
}

impl Group<'_> {
    /// Queues a message to a member and returns at once; it is dropped if the queue to that member is full. An empty message
    /// is a signal: the report does not count it.
    pub fn send(&mut self, to: usize, tag: MessageTag, bytes: Vec<u8>) -> Result<SendOutcome> {
        self.check()?;
        self.rank.check()?;
        let (to, title) = (self.other_rank(to, tag)?, self.title("sending", tag));
        let group = self.state().members.id();
        let messages = self.messages(tag)?;
        let (length, window) = (bytes.len(), messages.window());
        if length > window {
            let message = format!("{title}: {length} bytes are more than the window of {window}");
            return Err(Error::internal(message));
        }
        if !messages.has_room(to, length) {
            // The credit may have arrived.
            self.rank.move_messages(&title)?;
        }
        let now = self.rank.parts.transport.now();
        let messages = self.messages(tag)?;
        let queued = messages.send(to, group, tag.number, bytes, now);
        let delays = messages.take_delays();
        delays.iter().for_each(|delay| self.rank.message_delays.add(delay.as_secs_f32() * 1e3));
        if !queued {
            return Ok(SendOutcome::Full);
        }
        // Once queued, the message outlives the generation. An error is that of the next operation.
        let _ = self.rank.parts.transport.advance();
        Ok(SendOutcome::Queued)
    }

    /// The same, but waits while the queue is full, until the receiver's program has taken enough of the messages before. Two
    /// members that do so to each other, and neither receives, wait until their deadlines.
    pub fn send_waiting(&mut self, to: usize, tag: MessageTag, bytes: Vec<u8>) -> Result<()> {
        let (rank, length) = (self.other_rank(to, tag)?, bytes.len());
        if !self.messages(tag)?.has_room(rank, length) && length <= self.messages(tag)?.window() {
            self.check()?;
            let title = self.title("sending", tag);
            let wait = |own: &mut Rank, deadline| -> Result<(), TransportError> {
                let transport = &mut own.parts.transport;
                let wait = WaitState::new(transport.now(), deadline);
                let has_room = |messages: &mut Messages| messages.has_room(rank, length).then_some(());
                transport.wait_for_message(wait, &[rank], has_room)
            };
            self.rank.await_operation(&title, wait)?;
        }
        match self.send(to, tag, bytes)? {
            SendOutcome::Queued => Ok(()),
            SendOutcome::Full => Err(Error::internal("a queue that was not full is full")),
        }
    }

    /// Waits for the next message with this tag from a member.
    pub fn receive(&mut self, from: usize, tag: MessageTag) -> Result<Message> {
        let rank = self.other_rank(from, tag)?;
        let member = self.rank.member_id_at(rank);
        self.wait_for_message(tag, &[rank], Some(member))
    }

    /// Waits for the next message with this tag, of whichever member. Also those of lost members are received.
    pub fn receive_any(&mut self, tag: MessageTag) -> Result<Message> {
        let all: Vec<usize> = (0..self.size()).collect();
        self.receive_any_of(&all, tag)
    }

    /// The same, where a message is expected from one of these members: the wait is for them. A message of another one is
    /// received too.
    pub fn receive_any_of(&mut self, members: &[usize], tag: MessageTag) -> Result<Message> {
        let (own, ranks) = (self.rank.index(), self.ranks());
        let others: Vec<usize> = members
            .iter()
            .filter_map(|member| ranks.get(*member).copied())
            .filter(|rank| *rank != own)
            .collect();
        if others.is_empty() {
            let title = self.title("receive", tag);
            return Err(Error::internal(format!("{title}: no other rank can send one")));
        }
        self.wait_for_message(tag, &others, None)
    }

    /// The next message with this tag from a member, if one has arrived. Also notices lost ranks, as no wait does.
    pub fn try_receive(&mut self, from: usize, tag: MessageTag) -> Result<Option<Message>> {
        let rank = self.other_rank(from, tag)?;
        let member = self.rank.member_id_at(rank);
        self.try_take(tag, Some(member))
    }

    /// Sleeps as [`Rank::slow_down`] does, at most until the next message with this tag from a member is here. Without time to
    /// sleep it moves no messages.
    pub fn slow_down_until(
        &mut self,
        rest: Duration,
        from: usize,
        tag: MessageTag,
    ) -> Result<Option<Message>> {
        let rank = self.other_rank(from, tag)?;
        self.messages(tag)?;
        let (member, group) = (self.rank.member_id_at(rank), self.state().members.id());
        let message =
            self.rank.slow_down_until(rest, |messages| messages.take(Some(member), group, tag.number))?;
        Ok(message.map(|message| self.received(message)))
    }

    /// The next message with this tag that has arrived from any member. Also notices lost ranks, as no wait does.
    pub fn try_receive_any(&mut self, tag: MessageTag) -> Result<Option<Message>> {
        self.try_take(tag, None)
    }

    /// Waits until all other members have received every message to them. Before a rank leaves it must do so: what is in
    /// flight would be lost. With a barrier behind it, all messages of all members have arrived.
    pub fn flush_messages(&mut self) -> Result<()> {
        self.check()?;
        let (own, mut title) = (self.rank.index(), String::from("delivery of messages"));
        self.state().add_name(&mut title);
        let others: Vec<usize> = self.ranks().iter().copied().filter(|rank| *rank != own).collect();
        let flush = |rank: &mut Rank, deadline| rank.parts.transport.flush_messages(&others, deadline);
        self.rank.await_operation(&title, flush).map(drop)
    }

    fn wait_for_message(
        &mut self,
        tag: MessageTag,
        from: &[usize],
        member: Option<usize>,
    ) -> Result<Message> {
        self.check()?;
        self.messages(tag)?;
        let (group, title) = (self.state().members.id(), self.title("receive", tag));
        let receive = |rank: &mut Rank, deadline| -> Result<messages::Message, TransportError> {
            let transport = &mut rank.parts.transport;
            let wait = WaitState::new(transport.now(), deadline);
            let wait = if member.is_none() { wait.for_any() } else { wait };
            transport.wait_for_message(wait, from, |messages| messages.take(member, group, tag.number))
        };
        let (message, _) = self.rank.await_operation(&title, receive)?;
        Ok(self.received(message))
    }

    fn try_take(&mut self, tag: MessageTag, member: Option<usize>) -> Result<Option<Message>> {
        self.check()?;
        self.rank.check()?;
        let (group, title) = (self.state().members.id(), self.title("receive", tag));
        let mut message = self.messages(tag)?.take(member, group, tag.number);
        if message.is_none() {
            let polled = self.rank.parts.transport.poll(Duration::ZERO);
            polled.map_err(|fault| self.rank.explain(&fault, &title))?;
            message = self.messages(tag)?.take(member, group, tag.number);
        }
        Ok(message.map(|message| self.received(message)))
    }

    fn received(&self, message: messages::Message) -> Message {
        let messages::Message { member, bytes, .. } = message;
        let from = self.ranks().iter().position(|rank| self.rank.member_id_at(*rank) == member);
        Message { from, member, bytes }
    }

    /// The world rank of another member.
    fn other_rank(&self, member: usize, tag: MessageTag) -> Result<usize> {
        let rank = self.ranks().get(member).copied().filter(|rank| *rank != self.rank.index());
        rank.ok_or_else(|| {
            let (title, size) = (self.title("a message", tag), self.size());
            Error::internal(format!("{title}: rank {member} is no other rank of a group of {size}"))
        })
    }

    fn messages(&mut self, tag: MessageTag) -> Result<&mut Messages> {
        let title = self.title("a message", tag);
        let closed = || Error::internal(format!("{title}: messages are not open"));
        self.rank.parts.transport.messages_mut().ok_or_else(closed)
    }

    /// The name of an operation in errors.
    fn title(&self, kind: &str, tag: MessageTag) -> String {
        let mut title = format!("{kind} of {}", tag.name);
        self.state().add_name(&mut title);
        title
    }
}
