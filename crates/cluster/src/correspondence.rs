//! What passes between single ranks: agreed transfers, and letters that nobody waits for.

use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::post::{Letter, Post};
use thalweg_comm::transport::{Incoming, Outgoing};
use thalweg_core::Result;

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
        // The k-th piece to a rank is the k-th piece from this one there.
        let place = |peers: &[usize], index: usize| {
            peers[..index].iter().filter(|&&peer| peer == peers[index]).count() as u32
        };
        let to: Vec<usize> = sends.iter().map(|(to, _)| *to).collect();
        let from: Vec<usize> = receives.iter().map(|(from, _)| *from).collect();
        self.operate(kind, name, |rank, tag, deadline| {
            let outgoing = sends.iter().enumerate().map(|(index, (peer, values))| Outgoing {
                to: *peer,
                chunk: place(&to, index),
                bytes: bytemuck::cast_slice(values),
            });
            let incoming = receives.iter_mut().enumerate().map(|(index, (peer, values))| Incoming {
                from: *peer,
                chunk: place(&from, index),
                bytes: bytemuck::cast_slice_mut(values),
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

    /// The next letter that has arrived, if any.
    pub fn next_letter(&mut self) -> Result<Option<Letter>> {
        self.check()?;
        let Some(mut post) = self.post.take() else { return Ok(None) };
        let moved = post.progress(self.parts.transport.as_mut());
        let letter = post.take();
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
