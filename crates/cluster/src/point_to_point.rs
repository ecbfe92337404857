//! Point-to-point communication: transfers that all ranks take part in, and one-sided messages through a mailbox.

use crate::group::{Group, Operation};
use crate::rank::Rank;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_comm::mailbox::{Mailbox, Message};
use thalweg_comm::transport::{Incoming, Outgoing, Transport};
use thalweg_core::{Error, Result};

/// Largest number of values in a frame; longer transfers are split.
const MAX_FRAME_VALUES: usize = 16 << 20;

impl Group<'_> {
    /// Sends and receives values to and from any members at once. It is one operation of the group: every member must
    /// call it, with empty lists if need be.
    pub fn exchange(
        &mut self,
        kind: &str,
        name: &str,
        sends: &[(usize, &[f32])],
        receives: &mut [(usize, &mut [f32])],
    ) -> Result<Duration> {
        let size = self.size();
        let mut peers = sends.iter().map(|(to, _)| *to).chain(receives.iter().map(|(from, _)| *from));
        if let Some(unknown) = peers.find(|peer| *peer >= size) {
            let what = format!("{kind} of {name}: there is no rank {unknown} in a group of {size}");
            return Err(Error::internal(what));
        }
        let outgoing: Vec<(usize, &[f32])> = sends
            .iter()
            .flat_map(|(to, values)| values.chunks(MAX_FRAME_VALUES).map(|piece| (*to, piece)))
            .collect();
        let incoming: Vec<(usize, &mut [f32])> = receives
            .iter_mut()
            .flat_map(|(from, values)| values.chunks_mut(MAX_FRAME_VALUES).map(|piece| (*from, piece)))
            .collect();
        // The k-th piece sent to a rank is the k-th piece that rank receives from this one.
        let (to, from) = (
            sequence_numbers(outgoing.iter().map(|(to, _)| *to)),
            sequence_numbers(incoming.iter().map(|(from, _)| *from)),
        );
        let ((), took) = self.operate(kind, name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            let ranks = group.ranks();
            let outgoing = outgoing.iter().zip(to).map(|((to, piece), chunk)| Outgoing {
                to: ranks[*to],
                chunk,
                bytes: bytemuck::cast_slice(piece),
            });
            let incoming = incoming.into_iter().zip(from).map(|((from, piece), chunk)| Incoming {
                from: ranks[from],
                chunk,
                bytes: bytemuck::cast_slice_mut(piece),
            });
            let (outgoing, mut incoming): (Vec<_>, Vec<_>) = (outgoing.collect(), incoming.collect());
            parts.transport.transfer(tag, &outgoing, &mut incoming, deadline)
        })?;
        Ok(took)
    }
}

impl Rank {
    /// Opens the mailbox for messages of up to `limit` bytes.
    pub fn open_mailbox(&mut self, limit: usize) {
        self.mailbox = Some(Mailbox::new(self.size(), self.parts.generation, limit));
    }

    /// Queues a message and returns at once; false if the queue to that rank is full.
    pub fn send_message(&mut self, to: usize, subject: u32, bytes: Vec<u8>) -> bool {
        match &mut self.mailbox {
            Some(mailbox) if mailbox.has_room(to) => {
                mailbox.send(to, subject, bytes);
                true
            }
            _ => false,
        }
    }

    /// Returns the next message that has arrived, if any. Also polls for lost ranks, which no blocking operation would
    /// notice.
    pub fn try_receive_message(&mut self) -> Result<Option<Message>> {
        self.check()?;
        let Some(mut mailbox) = self.mailbox.take() else { return Ok(None) };
        let transport = self.parts.transport.as_mut();
        let moved = mailbox.progress(transport);
        let message = mailbox.receive();
        let moved = match message {
            None => moved.and_then(|_| transport.poll()),
            Some(_) => moved.map(drop),
        };
        self.mailbox = Some(mailbox);
        moved.map_err(|fault| self.explain(&fault, "messages of the others"))?;
        Ok(message)
    }

    /// Waits until all messages of all ranks have arrived. All ranks must call it, and before any collective.
    pub fn drain_messages(&mut self) -> Result<()> {
        let Some(mut mailbox) = self.mailbox.take() else { return Ok(()) };
        let drained = self.world().operate("drain", "messages", |operation| {
            mailbox.drain(operation.parts.transport.as_mut(), operation.deadline)
        });
        self.mailbox = Some(mailbox);
        drained.map(|_| ())
    }
}

/// For each piece the number of earlier pieces of the same peer.
fn sequence_numbers(peers: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    let mut next = |peer: usize| {
        let count = counts.entry(peer).or_insert(0u32);
        *count += 1;
        *count - 1
    };
    peers.map(&mut next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads::{self, simulated_links};
    use std::time::Instant;
    use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};

    /// A rank that only sends messages and runs no collective; with `dies` it fails after step 20.
    fn gossip(rank: &mut Rank, dies: bool) -> Result<()> {
        rank.open_mailbox(100);
        let (start, world) = (Instant::now(), rank.size());
        for step in 0.. {
            rank.begin_step(step);
            rank.send_message((rank.index() + 1) % world, 1, vec![7; 100]);
            while rank.try_receive_message()?.is_some() {}
            rank.sleep(Duration::from_millis(1));
            if dies && step == 20 {
                return Err(Error::internal("an end"));
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the loss was not noticed");
        }
        Ok(())
    }

    #[test]
    fn a_death_without_collectives_is_noticed_at_once() {
        let network = Network::ordinary(3, 1);
        let kill = SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank: 1 });
        let ended =
            simulated_links::run(network, &[kill], Duration::from_secs(5), |rank| gossip(rank, false));
        let named = |result: &Result<()>| {
            let error = result.as_ref().unwrap_err();
            let culprit = error.culprit.as_ref().unwrap();
            assert_eq!(
                (culprit.rank, culprit.operation.as_deref()),
                (1, Some("messages of the others")),
                "{error}"
            );
            culprit.step.unwrap()
        };
        for rank in [0, 2] {
            // A step takes a millisecond: the step of the kill or the next one.
            assert!((39..=42).contains(&named(&ended[rank])), "{:?}", ended[rank]);
        }
        let ended = threads::run(3, 0, |rank| gossip(rank, rank.index() == 1));
        assert!([0, 2].iter().all(|rank| named(&ended[*rank].result) < 10_000));
    }

    #[test]
    fn pieces_are_numbered_by_peer() {
        assert_eq!(sequence_numbers([3, 1, 3, 3, 1].into_iter()), [0, 0, 1, 2, 1]);
    }
}
