//! What passes between single ranks: agreed transfers, and letters that nobody waits for.

use crate::rank::Rank;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_comm::post::{Letter, Post};
use thalweg_comm::transport::{Incoming, Outgoing, Transport};
use thalweg_core::Result;

/// Most numbers of a frame: a longer piece travels in several.
const PIECE: usize = 16 << 20;

impl Rank {
    /// Sends and receives numbers, all at once: `push` of `gradients`, for instance. Every rank takes part, if only with
    /// empty lists, as it is one operation for all.
    pub fn exchange(
        &mut self,
        kind: &str,
        name: &str,
        sends: &[(usize, &[f32])],
        receives: &mut [(usize, &mut [f32])],
    ) -> Result<Duration> {
        let outgoing: Vec<(usize, &[f32])> =
            sends.iter().flat_map(|(to, values)| values.chunks(PIECE).map(|piece| (*to, piece))).collect();
        let incoming: Vec<(usize, &mut [f32])> = receives
            .iter_mut()
            .flat_map(|(from, values)| values.chunks_mut(PIECE).map(|piece| (*from, piece)))
            .collect();
        // The k-th piece to a rank is the k-th piece from this one there.
        let (to, from) =
            (places(outgoing.iter().map(|(to, _)| *to)), places(incoming.iter().map(|(from, _)| *from)));
        self.operate(kind, name, |rank, tag, deadline| {
            let outgoing = outgoing.iter().zip(to).map(|((to, piece), chunk)| Outgoing {
                to: *to,
                chunk,
                bytes: bytemuck::cast_slice(piece),
            });
            let incoming = incoming.into_iter().zip(from).map(|((from, piece), chunk)| Incoming {
                from,
                chunk,
                bytes: bytemuck::cast_slice_mut(piece),
            });
            let (outgoing, mut incoming): (Vec<_>, Vec<_>) = (outgoing.collect(), incoming.collect());
            rank.parts.transport.transfer(tag, &outgoing, &mut incoming, deadline)
        })
    }

    /// From now on letters of up to so many bytes are accepted.
    pub fn open_post(&mut self, limit: usize) {
        self.post = Some(Post::new(self.world(), self.parts.generation, limit));
    }

    /// Puts a letter on its way and goes on. A rank that is behind with its letters gets no more: false.
    pub fn send_letter(&mut self, to: usize, subject: u32, bytes: Vec<u8>) -> bool {
        match &mut self.post {
            Some(post) if post.has_room(to) => {
                post.send(to, subject, bytes);
                true
            }
            _ => false,
        }
    }

    /// The next letter that has arrived, if any. That a rank was lost is seen here, too, though nobody waits for it.
    pub fn next_letter(&mut self) -> Result<Option<Letter>> {
        self.check()?;
        let Some(mut post) = self.post.take() else { return Ok(None) };
        let transport = self.parts.transport.as_mut();
        let moved = post.progress(transport);
        let letter = post.take();
        let moved = match letter {
            None => moved.and_then(|_| transport.glance()),
            Some(_) => moved.map(drop),
        };
        self.post = Some(post);
        moved.map_err(|fault| self.explain(&fault, "letters", "the others"))?;
        Ok(letter)
    }

    /// Waits until all letters of all ranks have arrived. Before any operation with all others everybody must do so.
    pub fn collect_letters(&mut self) -> Result<()> {
        let Some(mut post) = self.post.take() else { return Ok(()) };
        let drained = self.operate("collection", "letters", |rank, _, deadline| {
            post.drain(rank.parts.transport.as_mut(), deadline)
        });
        self.post = Some(post);
        drained.map(|_| ())
    }
}

/// How many pieces with the same peer come before each.
fn places(peers: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    let mut place = |peer: usize| {
        let count = counts.entry(peer).or_insert(0u32);
        *count += 1;
        *count - 1
    };
    peers.map(&mut place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads;
    use std::time::Instant;
    use thalweg_comm::transport::sim::{Kind, Mishap, Network};
    use thalweg_core::Error;

    /// A rank that writes letters and never meets the others; its own end comes after step 20.
    fn gossip(rank: &mut Rank, dies: bool) -> Result<()> {
        rank.open_post(100);
        let (start, world) = (Instant::now(), rank.world());
        for step in 0.. {
            rank.begin_step(step);
            rank.send_letter((rank.index() + 1) % world, 1, vec![7; 100]);
            while rank.next_letter()?.is_some() {}
            rank.sleep(Duration::from_millis(1));
            if dies && step == 20 {
                return Err(Error::internal("an end"));
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nobody noticed");
        }
        Ok(())
    }

    #[test]
    fn a_death_between_meetings_is_seen_at_once() {
        let network = Network::ordinary(3, 1);
        let kill = Mishap::at(Duration::from_millis(40), Kind::Kill { rank: 1 });
        let (ended, _) =
            threads::simulate(network, &[kill], Duration::from_secs(5), |rank| gossip(rank, false));
        let named = |result: &Result<()>| {
            let error = result.as_ref().unwrap_err();
            let culprit = error.culprit.as_ref().unwrap();
            assert_eq!(
                (culprit.rank, culprit.operation.as_deref()),
                (1, Some("letters of the others")),
                "{error}"
            );
            culprit.step.unwrap()
        };
        for rank in [0, 2] {
            // A step takes a millisecond, so it is the one of its end or the next.
            assert!((39..=42).contains(&named(&ended[rank].result)), "{:?}", ended[rank].result);
        }
        let ended = threads::run(3, 0, |rank| gossip(rank, rank.index() == 1));
        assert!([0, 2].iter().all(|rank| named(&ended[*rank].result) < 10_000));
    }

    #[test]
    fn pieces_are_counted_by_peer() {
        assert_eq!(places([3, 1, 3, 3, 1].into_iter()), [0, 0, 1, 2, 1]);
    }
}
