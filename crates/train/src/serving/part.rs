//! A part: a pure handler of messages with a state, such as the shard of a parameter server or the centre of elastic
//! averaging. It takes a message in and puts answers out; it neither waits nor computes gradients. A rank of its own runs
//! it, or another rank in its waits.

use crate::context::Context;
use crate::roles::Roles;
use thalweg_cluster::{MessageTag, SendOutcome};
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
    answers: Vec<(usize, Vec<u8>)>,
}

impl Outbox {
    pub fn send(&mut self, member: usize, message: Vec<u8>) {
        self.answers.push((member, message));
    }

    /// Sends the answers. Those to members that are gone are dropped.
    pub fn deliver(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let members = cx.rank.member_ids();
        while let Some((member, message)) = self.answers.first() {
            if let Some(rank) = members.iter().position(|id| id == member) {
                send(cx, rank, ANSWER, message.clone())?;
            }
            self.answers.remove(0);
        }
        Ok(())
    }

    pub fn clear(&mut self) {
        self.answers.clear();
    }
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
/// floating-point operations. Once it is handled its effect stays, whatever happens to the answers.
pub fn serve(
    cx: &mut Context<'_>,
    part: &mut dyn Part,
    operations: u64,
    from: &[usize],
    outbox: &mut Outbox,
) -> Result<()> {
    outbox.deliver(cx)?;
    let message = cx.rank.world().receive_any_of(from, REQUEST)?;
    cx.rank.compute("a worker's request", operations, || {
        let handled = part.receive(message.member, &message.bytes, outbox);
        handled.map_err(|cause| invalid(message.member, cause))
    })?;
    // The next operation has the error, if there is one.
    let _ = outbox.deliver(cx);
    Ok(())
}

/// On a worker: sends a request to the server.
pub fn request(cx: &mut Context<'_>, message: Vec<u8>) -> Result<()> {
    let server = server(cx)?;
    send(cx, server, REQUEST, message)
}

/// On a worker: waits for the server's next answer.
pub fn await_answer(cx: &mut Context<'_>) -> Result<Vec<u8>> {
    let server = server(cx)?;
    Ok(cx.rank.world().receive(server, ANSWER)?.bytes)
}

/// The rank of the server.
pub fn server(cx: &Context<'_>) -> Result<usize> {
    let servers = Roles::of(cx.job).server_ranks(&cx.rank.member_ids());
    servers.first().copied().ok_or_else(|| Error::internal("no rank serves"))
}

fn send(cx: &mut Context<'_>, to: usize, tag: MessageTag, message: Vec<u8>) -> Result<()> {
    match cx.rank.world().send(to, tag, message)? {
        SendOutcome::Queued => Ok(()),
        SendOutcome::Full => {
            let member = cx.rank.member_id_at(to);
            Err(Error::internal(format!("rank {member} has not received earlier messages: {}", tag.name)))
        }
    }
}

/// A member broke the protocol.
pub fn invalid(member: usize, cause: String) -> Error {
    let culprit = Culprit { rank: member, cause: cause.clone(), ..Culprit::default() };
    Error::new(Kind::RankFailed, format!("rank {member} {cause}")).blame(culprit)
}
