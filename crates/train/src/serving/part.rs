//! A part: a pure handler of messages with a state, such as the shard of a parameter server or the centre of elastic
//! averaging. It takes a message in and puts answers out; it neither waits nor computes gradients. A rank of its own runs
//! it, or another rank in its waits.

use crate::context::Context;
use crate::envelope::{self, Place};
use crate::roles::Roles;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::Duration;
use thalweg_cluster::{Message, MessageTag, Rank, SendOutcome};
use thalweg_core::{Culprit, Error, Kind, Result};

/// Handles the messages of workers.
pub trait Part {
    /// Takes a message of the member with this id. An error says what that member did wrong.
    fn receive(
        &mut self,
        from: usize,
        message: &[u8],
        outbox: &mut Outbox,
    ) -> std::result::Result<(), String>;
}

/// Answers of a part, by member id. They are kept until they are sent: a change of the group may come between.
#[derive(Debug, Default)]
pub struct Outbox {
    answers: VecDeque<(usize, Answer)>,
    /// What all workers pull, under its version.
    published: (Vec<f32>, u64),
    /// The generation whose window has it.
    written: Option<u32>,
}

#[derive(Debug)]
enum Answer {
    /// With values of its own.
    Message(Vec<u8>),
    /// The header before the published values.
    Published(Vec<u8>),
    /// To another server.
    Request(Vec<u8>),
}

impl Outbox {
    pub fn send(&mut self, member: usize, message: Vec<u8>) {
        self.answers.push_back((member, Answer::Message(message)));
    }

    pub fn send_to_server(&mut self, member: usize, message: Vec<u8>) {
        self.answers.push_back((member, Answer::Request(message)));
    }

    /// From now on workers pull these values. Answers that refer to earlier ones get them, too.
    pub fn publish(&mut self, values: Vec<f32>, version: u64) {
        (self.published, self.written) = ((values, version), None);
    }

    /// Sends the bytes of a header with the published values.
    pub fn send_published(&mut self, member: usize, header: Vec<u8>) {
        self.answers.push_back((member, Answer::Published(header)));
    }

    /// Sends the answers. Those to members that are gone are dropped.
    pub fn deliver(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let members = cx.rank.member_ids();
        while let Some((member, answer)) = self.answers.front() {
            if let Some(rank) = members.iter().position(|id| id == member) {
                match answer {
                    Answer::Message(message) => send(cx.rank, rank, ANSWER, message.clone())?,
                    Answer::Published(header) => {
                        let message = published(cx, rank, header, &self.published, &mut self.written);
                        send(cx.rank, rank, ANSWER, message)?;
                    }
                    Answer::Request(message) => send(cx.rank, rank, REQUEST, message.clone())?,
                }
            }
            self.answers.pop_front();
        }
        Ok(())
    }

    pub fn clear(&mut self) {
        self.answers.clear();
    }
}

/// A message with published values: in this rank's window, if the receiver reads it.
fn published(
    cx: &mut Context<'_>,
    to: usize,
    header: &[u8],
    (values, version): &(Vec<f32>, u64),
    written: &mut Option<u32>,
) -> Vec<u8> {
    if !cx.windows.reaches(cx.rank, to, values.len()) {
        return envelope::assemble(Place::Message, header, values);
    }
    let generation = cx.rank.generation();
    if *written != Some(generation) {
        cx.windows.publish(cx.rank, 0, values, *version);
        *written = Some(generation);
    }
    let place = Place::Window { generation, start: 0, length: values.len() as u64 };
    envelope::assemble(place, header, &[])
}

const REQUEST: MessageTag = MessageTag { number: 1, name: "the workers' requests" };
const ANSWER: MessageTag = MessageTag { number: 2, name: "the server's answer" };

/// Messages that a worker and a part may have sent each other and that were not received: of this unit, and of units
/// that changes of the group interrupted.
const UNRECEIVED: usize = 4;

/// The window of messages between workers and parts, with so many values and so many bytes before them in each.
pub fn window(values: usize, header: usize) -> usize {
    UNRECEIVED * (4 * values + header)
}

/// On the rank of a part: waits for the next message, which one of these ranks is to send, and handles it in so many
/// floating-point operations per value. Once it is handled its effect stays, whatever happens to the answers.
pub fn serve(
    cx: &mut Context<'_>,
    part: &mut dyn Part,
    operations: u64,
    from: &[usize],
    outbox: &mut Outbox,
) -> Result<()> {
    outbox.deliver(cx)?;
    let (message, _) = receive(cx, REQUEST, None, |cx| cx.rank.world().receive_any_of(from, REQUEST))?;
    handle(cx, part, operations, message, outbox)
}

/// Messages that have arrived, of which the one with the least rank is handled first.
pub struct Queue {
    messages: Vec<Message>,
    rank: fn(&[u8]) -> u64,
}

impl Queue {
    pub fn by(rank: fn(&[u8]) -> u64) -> Queue {
        Queue { messages: Vec::new(), rank }
    }

    fn take_first(&mut self) -> Option<Message> {
        let rank = |index: &usize| (self.rank)(&self.messages[*index].bytes);
        let first = (0..self.messages.len()).min_by_key(rank)?;
        Some(self.messages.remove(first))
    }

    /// The ranks of the messages that wait.
    #[cfg(test)]
    pub fn ranks(&self) -> Vec<u64> {
        self.messages.iter().map(|message| (self.rank)(&message.bytes)).collect()
    }
}

/// The same with the first of all messages that have arrived; the others wait in the queue.
pub fn serve_first(
    cx: &mut Context<'_>,
    part: &mut dyn Part,
    operations: u64,
    from: &[usize],
    outbox: &mut Outbox,
    queue: &mut Queue,
) -> Result<()> {
    outbox.deliver(cx)?;
    if queue.messages.is_empty() {
        queue.messages.push(cx.rank.world().receive_any_of(from, REQUEST)?);
    }
    while let Some(message) = cx.rank.world().try_receive_any(REQUEST)? {
        queue.messages.push(message);
    }
    let Some(mut message) = queue.take_first() else { return Ok(()) };
    if let Err(error) = append_values(cx, &mut message) {
        queue.messages.push(message);
        return Err(error);
    }
    handle(cx, part, operations, message, outbox)
}

fn handle(
    cx: &mut Context<'_>,
    part: &mut dyn Part,
    operations: u64,
    Message { member, bytes, .. }: Message,
    outbox: &mut Outbox,
) -> Result<()> {
    let operations = operations * (bytes.len() / size_of::<f32>()) as u64;
    cx.rank.compute("a worker's request", operations, || {
        part.receive(member, &bytes, outbox).map_err(|cause| invalid(member, cause))
    })?;
    cx.rank.recycle(bytes);
    // The next operation has the error, if there is one.
    let _ = outbox.deliver(cx);
    Ok(())
}

/// Receives a message, with its values. It is received only once: if the group ends while its values are read, it is the
/// next message again. `from` is the member id, if it matters.
fn receive(
    cx: &mut Context<'_>,
    tag: MessageTag,
    from: Option<usize>,
    next: impl FnOnce(&mut Context<'_>) -> Result<Message>,
) -> Result<(Message, Option<u64>)> {
    let mut message = match cx.windows.take_unread(tag, from) {
        Some(message) => message,
        None => next(cx)?,
    };
    match append_values(cx, &mut message) {
        Ok(version) => Ok((message, version)),
        Err(error) => {
            cx.windows.keep_unread(tag, message);
            Err(error)
        }
    }
}

/// Appends the values of a message that are in the sender's window; returns the least version of them. A message without
/// them remains, if it refers to a window that is not mapped any more.
fn append_values(cx: &mut Context<'_>, Message { member, bytes, .. }: &mut Message) -> Result<Option<u64>> {
    let Place::Window { generation, start, length } = envelope::place(bytes) else { return Ok(None) };
    let element = |index: u64| usize::try_from(index).unwrap_or(usize::MAX);
    let range = element(start)..element(start.saturating_add(length));
    let header = bytes.len();
    let read = cx.windows.read(cx.rank, (generation, *member), range, bytes);
    read.inspect_err(|_| bytes.truncate(header))
}

/// On a worker: sends values to a server: as those from `start` on in this rank's window, if the server reads it.
pub fn push(
    cx: &mut Context<'_>,
    server: usize,
    header: &impl Serialize,
    start: usize,
    values: &[f32],
) -> Result<()> {
    if values.is_empty() || !cx.windows.reaches(cx.rank, server, start + values.len()) {
        return request_of(cx.rank, server, envelope::encode(header, values)?);
    }
    cx.windows.publish(cx.rank, start, values, 0);
    let generation = cx.rank.generation();
    let place = Place::Window { generation, start: start as u64, length: values.len() as u64 };
    request_of(cx.rank, server, envelope::assemble(place, &envelope::header_bytes(header)?, &[]))
}

/// On a worker: sends a message to the server with this rank.
pub fn request_of(rank: &mut Rank, server: usize, message: Vec<u8>) -> Result<()> {
    send(rank, server, REQUEST, message)
}

/// On a worker: waits for a server's next answer. Also returns the least version of published values.
pub fn await_answer(cx: &mut Context<'_>, server: usize) -> Result<(Vec<u8>, Option<u64>)> {
    let member = cx.rank.member_id_at(server);
    let (message, version) = receive(cx, ANSWER, Some(member), |cx| cx.rank.world().receive(server, ANSWER))?;
    Ok((message.bytes, version))
}

/// On a worker that computes: sleeps as a slower one does, at most until a server's next answer.
pub fn slow_down_until_answer(rank: &mut Rank, rest: Duration, server: usize) -> Result<Option<Message>> {
    rank.world().slow_down_until(rest, server, ANSWER)
}

/// The rank of the first server, which owns the clocks and the leases.
pub fn server(cx: &Context<'_>) -> Result<usize> {
    Ok(servers(cx)?[0])
}

/// The ranks of all servers.
pub fn servers(cx: &Context<'_>) -> Result<Vec<usize>> {
    let servers = Roles::of(cx.job).server_ranks(&cx.rank.member_ids());
    match servers.is_empty() {
        true => Err(Error::internal("no rank serves")),
        false => Ok(servers),
    }
}

pub(super) fn send(rank: &mut Rank, to: usize, tag: MessageTag, message: Vec<u8>) -> Result<()> {
    match rank.world().send(to, tag, message)? {
        SendOutcome::Queued => Ok(()),
        SendOutcome::Full => {
            let member = rank.member_id_at(to);
            Err(Error::internal(format!("rank {member} has not received earlier messages: {}", tag.name)))
        }
    }
}

/// A member broke the protocol.
pub fn invalid(member: usize, cause: String) -> Error {
    let culprit = Culprit { rank: member, cause: cause.clone(), ..Culprit::default() };
    Error::new(Kind::RankFailed, format!("rank {member} {cause}")).blame(culprit)
}
