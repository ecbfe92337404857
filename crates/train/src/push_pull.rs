//! The verbs between workers and a parameter server.

use crate::rider::{Rider, Word};
use crate::worker::Worker;
use thalweg_core::Result;

/// The rank that serves.
pub(crate) const SERVER: usize = 0;

impl Worker<'_> {
    /// Whether this rank holds the parameters for the others.
    pub fn is_server(&self) -> bool {
        self.place.is_none()
    }

    fn clients(&self) -> std::ops::Range<usize> {
        SERVER + 1..SERVER + 1 + self.workers
    }

    /// A worker sends its `g_i` to the server.
    pub fn push_gradient(&mut self) -> Result<()> {
        self.rank.exchange("push", "gradients", &[(SERVER, &self.buffer)], &mut [])?;
        Ok(())
    }

    /// The server adds up the gradients of all workers, in the order of ranks.
    pub fn gather_gradients(&mut self) -> Result<()> {
        let length = self.buffer.len();
        self.pushed.resize(length * self.workers, 0.0);
        let mut receives: Vec<(usize, &mut [f32])> =
            self.clients().zip(self.pushed.chunks_exact_mut(length)).collect();
        let took = self.rank.exchange("push", "gradients", &[], &mut receives)?;
        self.buffer.fill(0.0);
        for pushed in self.pushed.chunks_exact(length) {
            self.buffer.iter_mut().zip(pushed).for_each(|(sum, part)| *sum += part);
        }
        self.consumed.clear();
        let riders = &mut self.buffer[self.parts.parameters.len()..];
        Rider::write_wishes(Word::of_wishes(self.rank), SERVER, riders);
        self.take_sum(took)
    }

    /// The server hands out `w`, and what rode along with the gradients.
    pub fn serve_parameters(&mut self) -> Result<()> {
        let (parameters, riders) = (&self.parts.parameters, &self.buffer[self.parts.parameters.len()..]);
        let sends: Vec<(usize, &[f32])> =
            self.clients().flat_map(|client| [(client, parameters.as_slice()), (client, riders)]).collect();
        self.rank.exchange("pull", "parameters", &sends, &mut [])?;
        Ok(())
    }

    /// A worker takes over the server's `w`.
    pub fn pull_parameters(&mut self) -> Result<()> {
        let parameters = &mut self.parts.parameters;
        let riders = &mut self.buffer[parameters.len()..];
        self.rank.exchange("pull", "parameters", &[], &mut [(SERVER, parameters), (SERVER, riders)])?;
        self.rider.read(&self.buffer[self.parts.parameters.len()..]);
        Ok(())
    }
}
