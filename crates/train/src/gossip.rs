//! The verbs of workers that write to each other.

#[cfg(test)]
mod weights;

use crate::rider::Rider;
use crate::worker::{Step, Worker, total_steps};
use thalweg_core::{Culprit, Error, Kind, Result};

/// The subject of letters with parameters.
const PARAMETERS: u32 = 1;

/// Bytes of the weight before the parameters.
const WEIGHT: usize = 8;

impl Worker<'_> {
    /// How many compute.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Accepts letters with a weight and parameters from now on.
    pub fn open_gossip(&mut self) {
        self.rank.open_mailbox(WEIGHT + 4 * self.parts.parameters.len());
    }

    /// With the job's probability another worker, drawn at random: the same on every repeat.
    pub fn draw_listener(&mut self, step: &Step) -> Option<usize> {
        let (rank, workers) = (self.rank.index(), self.workers);
        let mut random = self.rank.random("gossip", &[rank as u64, step.number]);
        let spoken = f64::from(random.uniform()) < self.job.exchange.probability;
        // Drawn from all others alike: a step of 1 to n - 1 around the circle.
        (spoken && workers > 1).then(|| (rank + 1 + random.below(workers as u64 - 1) as usize) % workers)
    }

    /// Sends `(w_i, weight)`; false if the other is too far behind with its letters to be sent more.
    pub fn tell(&mut self, other: usize, weight: f64) -> bool {
        let mut letter = Vec::with_capacity(WEIGHT + 4 * self.parts.parameters.len());
        letter.extend_from_slice(&weight.to_le_bytes());
        self.parts.parameters.iter().for_each(|value| letter.extend_from_slice(&value.to_le_bytes()));
        let sent = self.rank.send_message(other, PARAMETERS, letter);
        #[cfg(test)]
        if sent {
            weights::told(self.rank.index(), other, weight);
        }
        sent
    }

    /// The next `(w_j, weight)` that has arrived.
    pub fn hear(&mut self) -> Result<Option<(Vec<f32>, f64)>> {
        let Some(letter) = self.rank.try_receive_message()? else { return Ok(None) };
        let wrong = |cause: String| {
            Error::new(Kind::RankFailed, format!("rank {} sent {cause}", letter.from)).blame(Culprit {
                rank: letter.from,
                cause,
                ..Culprit::default()
            })
        };
        let (weight, values) = match letter.bytes.split_first_chunk::<WEIGHT>() {
            Some(parts) if parts.1.len() == 4 * self.parts.parameters.len() => parts,
            _ => return Err(wrong(format!("a letter of {} bytes", letter.bytes.len()))),
        };
        let weight = f64::from_le_bytes(*weight);
        let values: Vec<f32> = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if !(weight > 0.0 && weight <= 1.0) || values.iter().any(|value| !value.is_finite()) {
            return Err(wrong(format!("parameters that are not finite, or the weight {weight}")));
        }
        #[cfg(test)]
        weights::heard(self.rank.index(), letter.from, weight);
        Ok(Some((values, weight)))
    }

    /// `w = (1 - share) w + share * theirs`.
    pub fn blend(&mut self, theirs: &[f32], share: f64) {
        let share = share as f32;
        for (own, theirs) in self.parts.parameters.iter_mut().zip(theirs) {
            *own += share * (theirs - *own);
        }
    }

    /// Whether the workers look at their common model after this step.
    pub fn meets_after(&self, step: &Step) -> bool {
        let (next, every) = (step.number + 1, self.job.fault.checkpoint_every);
        step.index + 1 == self.sampler.steps_per_epoch()
            || every > 0 && next.is_multiple_of(every)
            || next >= total_steps(self.job, &self.sampler)
    }

    /// Waits until nothing is on its way any more. Others may be many steps behind: no step's deadline runs meanwhile.
    pub fn await_letters(&mut self) -> Result<()> {
        self.rank.begin_preparation("meeting the others");
        self.rank.drain_messages()
    }

    /// The weighted mean of all workers takes the place of this one's parameters, which are returned.
    pub fn take_mean(&mut self, weight: f64) -> Result<Vec<f32>> {
        #[cfg(test)]
        weights::meets(self.rank.index(), weight);
        let weights = self.rank.all_gather("weights", &weight.to_le_bytes())?;
        let total: f64 =
            weights.iter().filter_map(|bytes| Some(f64::from_le_bytes(*bytes.first_chunk()?))).sum();
        if (total - 1.0).abs() > 1e-9 {
            return Err(Error::internal(format!("the weights of all workers add up to {total}, not to 1")));
        }
        let own = self.parts.parameters.clone();
        let (sum, _) = self.buffer.split_at_mut(own.len());
        sum.iter_mut().zip(&own).for_each(|(sum, value)| *sum = weight as f32 * value);
        self.rank.all_reduce("parameters", &mut self.buffer)?;
        let (mean, riders) = self.buffer.split_at(own.len());
        self.parts.parameters.copy_from_slice(mean);
        self.rider.read(riders);
        Ok(own)
    }

    /// Back to this worker's own parameters, if there is anything left to do with them.
    pub fn go_on_with(&mut self, own: Vec<f32>) {
        if self.ended.is_none() && self.next < total_steps(self.job, &self.sampler) {
            self.parts.parameters = own;
        }
    }

    /// A step that nobody else knows of: what it tells of all is estimated from this worker's share.
    pub fn finish_alone(&mut self, step: &Step) -> Result<()> {
        self.rider.read(&self.buffer[self.parts.parameters.len()..]);
        let Rider { loss, stopping, checkpointing, .. } = &mut self.rider;
        *loss *= self.workers as f64;
        // What this worker was asked for is heard by all when they meet.
        stopping.clear();
        *checkpointing = false;
        self.finish(step)
    }
}
