//! Another server than the first: it stages pushes and applies tickets. Pure.

use super::super::part::{Outbox, Part};
use super::shard::Shard;
use super::ticket::Ticket;
use super::{Content, Request};
use crate::envelope;

/// What it knows of the group.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// The member id of the first server.
    pub(super) first: usize,
    pub(super) generation: u32,
    /// All workers have been called to a meeting.
    pub(super) meets: bool,
}

/// The server for one message.
pub(super) struct Handler<'a> {
    pub(super) follower: &'a mut Follower,
    pub(super) shard: &'a mut Shard,
}

impl Part for Handler<'_> {
    fn receive(
        &mut self,
        from: usize,
        message: &[u8],
        outbox: &mut Outbox,
    ) -> std::result::Result<(), String> {
        let (request, values) = envelope::decode::<Request>(message)?;
        match request {
            Request::Push(done) if done.of.worker.member == from => {
                self.shard.stage(&done, values)?;
                let notice = envelope::encode(&Request::Staged(done.of), &[]);
                outbox.send_to_server(self.follower.first, notice.map_err(|error| error.message)?);
                Ok(())
            }
            Request::Tickets(tickets) if from == self.follower.first => {
                for ticket in tickets {
                    if let Ticket::Meet { generation } = ticket {
                        self.follower.meets |= generation == self.follower.generation;
                    }
                    self.shard.execute(ticket, Content::Part, outbox)?;
                }
                Ok(())
            }
            other => Err(format!("sent a server what is not for it: {other:?}")),
        }
    }
}
