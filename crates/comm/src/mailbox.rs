//! Asynchronous messages of any length between single ranks, for gossip.
//!
//! A [`Mailbox`] holds the messages in flight from and to each rank and advances them in [`Mailbox::progress`]. Messages
//! between two ranks arrive in the order in which they were sent. Messages and collectives share the connections, so all
//! ranks must [`Mailbox::drain`] before a collective: afterwards no message is in flight, and received messages are still
//! in the mailbox.

use crate::transport::{
    Cause, Incoming, Interest, IoProgress, MatchMode, Outgoing, Tag, Transport, TransportError, WaitState,
};
use crate::wire::tensor;
use std::collections::VecDeque;
use std::time::Duration;

/// The operation number of messages; collectives never reach it.
pub(crate) const MESSAGES: u64 = u64::MAX;

/// Bytes of the frame that precedes a message: its kind and its length.
const MESSAGE_HEADER: usize = 12;

/// Maximum payload of a frame; longer messages are fragmented.
const FRAGMENT: usize = 64 << 20;

/// The kind of the message that [`Mailbox::drain`] sends last: no more follow before the drain ends.
const END: u32 = u32::MAX;

/// Messages that may be queued for one rank: further ones would only be outdated when it reads them.
const QUEUE_LIMIT: usize = 4;

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub from: usize,
    /// Chosen by the sender.
    pub kind: u32,
    pub bytes: Vec<u8>,
}

/// All messages from and to a rank.
pub struct Mailbox {
    tag: Tag,
    /// The longest message that is accepted, in bytes.
    limit: usize,
    outgoing: Vec<VecDeque<OutgoingMessage>>,
    incoming: Vec<IncomingMessage>,
    received: VecDeque<Message>,
    /// By rank: whether its [`END`] has arrived.
    ended: Vec<bool>,
}

struct OutgoingMessage {
    header: [u8; MESSAGE_HEADER],
    header_sent: bool,
    bytes: Vec<u8>,
    /// Bytes sent.
    position: usize,
}

#[derive(Default)]
struct IncomingMessage {
    header: [u8; MESSAGE_HEADER],
    /// Kind and buffer, once the header has arrived.
    body: Option<(u32, Vec<u8>)>,
    /// Bytes received.
    position: usize,
}

/// The fragment of a message that begins at `position`: its chunk index (the header is 0) and its range.
fn fragment(position: usize, length: usize) -> (u32, std::ops::Range<usize>) {
    (1 + (position / FRAGMENT) as u32, position..length.min(position + FRAGMENT))
}

impl Mailbox {
    /// A message longer than `limit` bytes is an error of its sender.
    pub fn new(world: usize, generation: u32, limit: usize) -> Mailbox {
        Mailbox {
            // The name is part of the wire format.
            tag: Tag { generation, operation: MESSAGES, group: 0, tensor: tensor("letters") },
            limit,
            outgoing: (0..world).map(|_| VecDeque::new()).collect(),
            incoming: (0..world).map(|_| IncomingMessage::default()).collect(),
            received: VecDeque::new(),
            ended: vec![false; world],
        }
    }

    /// Whether the queue to that rank has room; it fills up if the rank does not read.
    pub fn has_room(&self, to: usize) -> bool {
        self.outgoing.get(to).is_some_and(|queue| queue.len() < QUEUE_LIMIT)
    }

    /// Queues a message; [`Mailbox::progress`] sends it.
    pub fn send(&mut self, to: usize, kind: u32, bytes: Vec<u8>) {
        let mut header = [0; MESSAGE_HEADER];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[4..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        if let Some(queue) = self.outgoing.get_mut(to) {
            queue.push_back(OutgoingMessage { header, header_sent: false, bytes, position: 0 });
        }
    }

    /// The next received message, in order of arrival.
    pub fn receive(&mut self) -> Option<Message> {
        self.received.pop_front()
    }

    /// Sends and receives what is possible without blocking; returns whether anything moved.
    pub fn progress(&mut self, transport: &mut dyn Transport) -> Result<bool, TransportError> {
        let mut moved = false;
        let rank = transport.rank();
        for peer in (0..transport.world()).filter(|&peer| peer != rank) {
            moved |= self.send_to(transport, peer)?;
            moved |= self.receive_from(transport, peer)?;
        }
        Ok(moved)
    }

    fn send_to(&mut self, transport: &mut dyn Transport, to: usize) -> Result<bool, TransportError> {
        let mut moved = false;
        while let Some(message) = self.outgoing[to].front_mut() {
            let (chunk, range) = fragment(message.position, message.bytes.len());
            let end = range.end;
            let (chunk, bytes) = match message.header_sent {
                false => (0, &message.header[..]),
                true => (chunk, &message.bytes[range]),
            };
            let progress = transport.send(self.tag, Outgoing { to, chunk, bytes })?;
            moved |= progress != IoProgress::Blocked;
            match (progress, message.header_sent) {
                (IoProgress::Complete, false) => message.header_sent = true,
                (IoProgress::Complete, true) => message.position = end,
                _ => break,
            }
            if chunk > 0 && message.position == message.bytes.len() {
                self.outgoing[to].pop_front();
            }
        }
        Ok(moved)
    }

    fn receive_from(&mut self, transport: &mut dyn Transport, from: usize) -> Result<bool, TransportError> {
        let mut moved = false;
        // The frames behind END belong to the next collective.
        while !self.ended[from] {
            let incoming = &mut self.incoming[from];
            let (chunk, bytes) = match &mut incoming.body {
                None => (0, &mut incoming.header[..]),
                Some((_, bytes)) => {
                    let (chunk, range) = fragment(incoming.position, bytes.len());
                    (chunk, &mut bytes[range])
                }
            };
            let length = bytes.len();
            let progress =
                transport.receive(self.tag, Incoming { from, chunk, bytes }, MatchMode::AnyOperation)?;
            moved |= progress != IoProgress::Blocked;
            if progress != IoProgress::Complete {
                break;
            }
            if let Some((_, bytes)) = &incoming.body {
                incoming.position += length;
                if incoming.position < bytes.len() {
                    continue;
                }
            }
            incoming.position = 0;
            match incoming.body.take() {
                None => self.incoming[from].body = Some(self.decode_header(from)?),
                Some((END, _)) => self.ended[from] = true,
                Some((kind, bytes)) => self.received.push_back(Message { from, kind, bytes }),
            }
        }
        Ok(moved)
    }

    /// The kind of, and a buffer for, the message whose header has arrived.
    fn decode_header(&self, from: usize) -> Result<(u32, Vec<u8>), TransportError> {
        let header = &self.incoming[from].header;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let length = u64::from(word(4)) | u64::from(word(8)) << 32;
        match usize::try_from(length).ok().filter(|length| *length <= self.limit) {
            Some(length) => Ok((word(0), vec![0; length])),
            None => {
                let what = format!("a message of {length} bytes, longer than the {} allowed", self.limit);
                Err(TransportError::new(from, Cause::Protocol(what)))
            }
        }
    }

    /// Waits until all messages of all ranks have arrived. A collective: every rank must call it at the same point.
    pub fn drain(&mut self, transport: &mut dyn Transport, deadline: Duration) -> Result<(), TransportError> {
        let (rank, world) = (transport.rank(), transport.world());
        let mut wait_state = WaitState::new(transport.now(), deadline);
        let mut wanted = vec![Interest::default(); world];
        for to in (0..world).filter(|&to| to != rank) {
            self.send(to, END, Vec::new());
        }
        loop {
            let moved = self.progress(transport)?;
            for (peer, interest) in wanted.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
                *interest = Interest { read: !self.ended[peer], write: !self.outgoing[peer].is_empty() };
            }
            if wanted.iter().all(|interest| *interest == Interest::default()) {
                self.ended.fill(false);
                return Ok(());
            }
            transport.wait(&mut wait_state, &wanted, moved)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Executor, Sum, ring};
    use crate::transport::sim::{Network, Simulation};
    use crate::transport::{Mem, mesh};

    const PLENTY: Duration = Duration::from_secs(60);

    /// Three rounds of messages between all ranks, each followed by an all-reduce.
    fn exchange_messages<T: Transport>(mut transport: T) {
        let (rank, world) = (transport.rank(), transport.world());
        let mut mailbox = Mailbox::new(world, 1, 200_000);
        for round in 0..3u32 {
            let others = || (0..world).filter(|&to| to != rank);
            for to in others() {
                mailbox.send(to, round, vec![rank as u8; 1000 * to]);
                mailbox.progress(&mut transport).unwrap();
                mailbox.send(to, round + 10, vec![rank as u8; 150_000]);
            }
            mailbox.drain(&mut transport, PLENTY).unwrap();
            let mut messages: Vec<Message> = std::iter::from_fn(|| mailbox.receive()).collect();
            messages.sort_by_key(|message| message.from);
            let short = |from: usize| Message { from, kind: round, bytes: vec![from as u8; 1000 * rank] };
            let long = |from: usize| Message { from, kind: round + 10, bytes: vec![from as u8; 150_000] };
            let expected: Vec<Message> = others().flat_map(|from| [short(from), long(from)]).collect();
            assert!(messages == expected, "round {round}: messages are missing or out of order");
            let (schedule, tag) = (ring::all_reduce(rank, world), Tag { operation: u64::from(round), ..TAG });
            let mut sum = vec![1.0; 500];
            Executor::new().run(&schedule, &mut transport, tag, &mut sum, &Sum, PLENTY).unwrap();
            assert_eq!(sum, vec![world as f32; 500]);
        }
        transport.close();
    }

    const TAG: Tag = Tag { generation: 1, operation: 0, group: 0, tensor: 0 };

    fn each<T: Transport + 'static>(ranks: Vec<T>, program: fn(T)) {
        std::thread::scope(|scope| {
            ranks.into_iter().for_each(|rank| drop(scope.spawn(move || program(rank))));
        });
    }

    #[test]
    fn messages_arrive_in_order_and_alternate_with_collectives() {
        for world in [1, 2, 5] {
            each(mesh(world), exchange_messages);
            each(Simulation::new(Network::ordinary(world, 3), &[]).ranks(), exchange_messages);
        }
    }

    #[test]
    fn long_messages_are_fragmented() {
        assert_eq!(fragment(0, 0), (1, 0..0));
        assert_eq!(fragment(0, FRAGMENT + 3), (1, 0..FRAGMENT));
        assert_eq!(fragment(FRAGMENT, FRAGMENT + 3), (2, FRAGMENT..FRAGMENT + 3));
        each(mesh(2), |mut transport: Mem| {
            let mut mailbox = Mailbox::new(2, 1, FRAGMENT + 3);
            if transport.rank() == 1 {
                mailbox.send(0, 7, vec![5; FRAGMENT + 3]);
            }
            mailbox.drain(&mut transport, PLENTY).unwrap();
            let message = mailbox.receive();
            assert!(
                transport.rank() == 1
                    || message.is_some_and(|message| message.bytes == vec![5; FRAGMENT + 3])
            );
            transport.close();
        });
    }

    proptest::proptest! {
        /// Any header is either valid or an error of its sender.
        #[test]
        fn any_header_is_decoded_or_refused(header: [u8; MESSAGE_HEADER], long: bool) {
            let mut mailbox = Mailbox::new(2, 1, 1000);
            mailbox.incoming[1].header = header;
            if !long {
                mailbox.incoming[1].header[6..].fill(0);
            }
            match mailbox.decode_header(1) {
                Ok((_, memory)) => assert!(memory.len() <= 1000),
                Err(error) => assert!(matches!(error, TransportError { peer: Some(1), cause: Cause::Protocol(_), .. }), "{error}"),
            }
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error_of_its_sender() {
        each(mesh(2), |mut transport: Mem| {
            let mut mailbox = Mailbox::new(2, 1, if transport.rank() == 0 { 10 } else { 100 });
            if transport.rank() == 1 {
                mailbox.send(0, 7, vec![0; 11]);
            }
            let error = mailbox.drain(&mut transport, PLENTY).unwrap_err();
            match transport.rank() {
                0 => assert!(
                    matches!(error, TransportError { peer: Some(1), cause: Cause::Protocol(_), .. }),
                    "{error}"
                ),
                _ => assert_eq!(error.peer, Some(0), "{error}"),
            }
        });
    }

    #[test]
    fn a_rank_that_does_not_drain_is_named() {
        let mut ranks = mesh(3);
        let _idle = ranks.pop();
        each(ranks, |mut transport: Mem| {
            let mut mailbox = Mailbox::new(3, 1, 10);
            let error = mailbox.drain(&mut transport, Duration::from_millis(100)).unwrap_err();
            assert_eq!(error.peer, Some(2), "{error}");
        });
    }
}
