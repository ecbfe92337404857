//! Buckets of the gradient that are sent while back-propagation goes on (wait-free back-propagation): to be summed by all
//! ranks, or to a server.
//!
//! The model writes its gradient into memory of its own. Tensors that it announces are copied to the buffer of the
//! exchange; a bucket is sent when all its tensors are there, and polled between the operators of the rest of the pass.
//! Tensors that were not announced are copied and sent after the pass, with the report.

use super::bucket_plan::BucketPlan;
use super::overlap_estimate::ExposedTimeProbe;
use crate::compute::Pass;
use crate::finite;
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::{BucketsInFlight, Rank};
use thalweg_core::{Error, Gradient, Layout, Result};

/// Buckets that leave one after the other, in their order.
pub(crate) trait InFlight {
    /// Begins a step: none has left.
    fn begin(&mut self, rank: &mut Rank, step: u64) -> Result<()>;

    /// Buckets that have left in this step.
    fn started(&self) -> usize;

    /// Sends the next bucket of the buffer.
    fn start_next(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<()>;

    /// Progresses what is in flight, between two pieces of computation.
    fn poll(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<()>;

    /// Sums values over all workers, in the middle of the computation `work`.
    fn sum(
        &mut self,
        rank: &mut Rank,
        buffer: &mut [f32],
        work: &str,
        name: &str,
        values: &mut [f32],
    ) -> Result<Duration>;

    /// Sends the remaining buckets, and waits if the buffer is to hold their sums.
    fn finish(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<Duration>;

    /// Time spent in this step on sending during the computation.
    fn progress_time(&self) -> Duration;

    /// Computation time of this step during which buckets in flight may have made progress.
    fn overlapped_time(&self) -> Duration;
}

impl InFlight for BucketsInFlight {
    fn begin(&mut self, rank: &mut Rank, _: u64) -> Result<()> {
        rank.world().begin_bucket_step(self)
    }

    fn started(&self) -> usize {
        BucketsInFlight::started(self)
    }

    fn start_next(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<()> {
        rank.world().start_next_bucket(self, buffer)
    }

    fn poll(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<()> {
        rank.world().poll_buckets(self, buffer)
    }

    fn sum(
        &mut self,
        rank: &mut Rank,
        buffer: &mut [f32],
        work: &str,
        name: &str,
        values: &mut [f32],
    ) -> Result<Duration> {
        rank.world().all_reduce_with_buckets_in_flight(self, buffer, work, name, values)
    }

    fn finish(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<Duration> {
        rank.world().finish_buckets(self, buffer)
    }

    fn progress_time(&self) -> Duration {
        BucketsInFlight::progress_time(self)
    }

    fn overlapped_time(&self) -> Duration {
        BucketsInFlight::overlapped_time(self)
    }
}

/// The buckets of a step in flight.
pub(crate) struct Overlap {
    in_flight: Box<dyn InFlight>,
    layout: Layout,
    /// The tensors of each bucket.
    buckets: Vec<Range<usize>>,
    /// The model's memory.
    gradient: Vec<f32>,
    /// Which tensors of this step are in the buffer of the exchange.
    copied: Vec<bool>,
    probe: ExposedTimeProbe,
}

impl Overlap {
    /// Sums the buckets of a plan that has several; None for others.
    pub(crate) fn new(rank: &mut Rank, plan: &BucketPlan, layout: &Layout, length: usize) -> Option<Overlap> {
        Overlap::of(plan, layout, || Box::new(rank.world().buckets_in_flight(plan.buckets(layout, length))))
    }

    /// Of a plan of several buckets; None for others.
    pub(crate) fn of(
        plan: &BucketPlan,
        layout: &Layout,
        in_flight: impl FnOnce() -> Box<dyn InFlight>,
    ) -> Option<Overlap> {
        (plan.len() > 1).then(|| Overlap {
            in_flight: in_flight(),
            layout: layout.clone(),
            buckets: plan.tensors().cloned().collect(),
            gradient: vec![0.0; layout.len()],
            copied: vec![false; layout.tensors().len()],
            probe: ExposedTimeProbe::default(),
        })
    }

    /// Begins a step and returns the model's memory.
    pub(crate) fn begin(&mut self, rank: &mut Rank, step: u64) -> Result<Vec<f32>> {
        self.in_flight.begin(rank, step)?;
        self.copied.fill(false);
        let mut gradient = std::mem::take(&mut self.gradient);
        gradient.resize(self.layout.len(), 0.0);
        Ok(gradient)
    }

    /// Takes the model's memory back. Returns the time spent on the exchange during the pass.
    pub(crate) fn give_back(&mut self, gradient: Vec<f32>) -> Duration {
        self.gradient = gradient;
        self.in_flight.progress_time()
    }

    /// After the pass: copies tensors that were not announced, and checks all that was not sent yet.
    pub(crate) fn complete(
        &mut self,
        pass: &Pass<'_>,
        loss: f64,
        gradient: &[f32],
        buffer: &mut [f32],
    ) -> Result<()> {
        self.copy_rest(gradient, buffer);
        let first = self.start_of(self.in_flight.started());
        pass.check(loss, &buffer[first..], first)
    }

    fn copy_rest(&mut self, gradient: &[f32], buffer: &mut [f32]) {
        for (tensor, copied) in self.layout.tensors().iter().zip(&mut self.copied) {
            if !std::mem::replace(copied, true) {
                buffer[tensor.range()].copy_from_slice(&gradient[tensor.range()]);
            }
        }
    }

    /// Sends the remaining buckets, and waits for all if the buffer is to hold their sums.
    pub(crate) fn finish(&mut self, rank: &mut Rank, buffer: &mut [f32]) -> Result<Duration> {
        self.in_flight.finish(rank, buffer)
    }

    /// Books the overlap of a step that waited `exposed` seconds for the exchange after the pass.
    pub(crate) fn book(&mut self, rank: &mut Rank, exposed: f64) {
        let exposed = exposed + self.in_flight.progress_time().as_secs_f64();
        let hidden = self.probe.note(exposed, self.in_flight.overlapped_time().as_secs_f64());
        rank.book_hidden(hidden);
    }

    /// Sends buckets during the pass from the first step on, without measuring the exchange alone.
    pub(crate) fn skip_probe(&mut self) {
        self.probe = ExposedTimeProbe::skipped();
    }

    /// Where a bucket begins in the buffer.
    fn start_of(&self, bucket: usize) -> usize {
        let tensor = self.buckets.get(bucket).and_then(|tensors| self.layout.tensors().get(tensors.start));
        tensor.map_or(self.layout.len(), |tensor| tensor.offset)
    }
}

/// Takes the tensors that the last pass of a step completes.
pub(crate) struct BucketSender<'a> {
    pub(crate) overlap: &'a mut Overlap,
    /// The buffer of the exchange.
    pub(crate) buffer: &'a mut [f32],
    /// The sum of the step's earlier parts; empty if there are none.
    pub(crate) earlier: &'a [f32],
    pub(crate) step: u64,
}

impl BucketSender<'_> {
    /// Copies a piece, and sends the buckets that it completes.
    pub(crate) fn take(&mut self, rank: &mut Rank, piece: Gradient<'_>) -> Result<()> {
        if let Some(tensor) = self.copy(piece)? {
            self.overlap.copied[tensor] = true;
            self.send_complete(rank)?;
        }
        Ok(())
    }

    /// Progresses buckets between two operators.
    pub(crate) fn poll(&mut self, rank: &mut Rank) -> Result<()> {
        self.overlap.in_flight.poll(rank, self.buffer)
    }

    /// Sums values over all workers while buckets are in flight.
    pub(crate) fn reduce(
        &mut self,
        rank: &mut Rank,
        work: &str,
        name: &str,
        values: &mut [f32],
    ) -> Result<Duration> {
        self.overlap.in_flight.sum(rank, self.buffer, work, name, values)
    }

    /// Copies a piece into the buffer, added to the earlier parts of the step. Factors are left for later: their product
    /// is in the model's memory when the pass is over.
    fn copy(&mut self, piece: Gradient<'_>) -> Result<Option<usize>> {
        let tensor = match piece {
            Gradient::Dense { tensor, .. } | Gradient::Rows { tensor, .. } => tensor,
            Gradient::Factors { .. } => return Ok(None),
        };
        let Some(described) = self.overlap.layout.tensors().get(tensor) else {
            return Err(wrong(format!("the gradient of tensor {tensor}, which it does not have")));
        };
        if self.overlap.copied[tensor] {
            return Err(wrong(format!("the gradient of `{}` twice in one pass", described.name)));
        }
        let misfit = || wrong(format!("a gradient of `{}` that does not fit its shape", described.name));
        let target = &mut self.buffer[described.range()];
        let earlier = self.earlier.get(described.range());
        match (piece, earlier) {
            (Gradient::Dense { values, .. }, _) if values.len() != target.len() => return Err(misfit()),
            (Gradient::Dense { values, .. }, None) => target.copy_from_slice(values),
            (_, None) => target.fill(0.0),
            (_, Some(earlier)) => target.copy_from_slice(earlier),
        }
        match piece {
            Gradient::Dense { values, .. } if earlier.is_some() => add(target, values),
            Gradient::Rows { rows, values, .. } => {
                let width = described.shape.iter().skip(1).product::<usize>();
                if values.len() != rows.len() * width {
                    return Err(misfit());
                }
                for (row, values) in rows.iter().zip(values.chunks_exact(width.max(1))) {
                    let start = *row as usize * width;
                    add(target.get_mut(start..start + width).ok_or_else(misfit)?, values);
                }
            }
            _ => {}
        }
        Ok(Some(tensor))
    }

    /// Sends all buckets but the last as soon as they are complete, in order.
    fn send_complete(&mut self, rank: &mut Rank) -> Result<()> {
        let Overlap { in_flight, layout, buckets, copied, probe, .. } = &mut *self.overlap;
        while !probe.is_due()
            && in_flight.started() + 1 < buckets.len()
            && buckets[in_flight.started()].clone().all(|tensor| copied[tensor])
        {
            let tensors = &layout.tensors()[buckets[in_flight.started()].clone()];
            let first = tensors.first().map_or(0, |tensor| tensor.offset);
            let end = tensors.last().map_or(first, |tensor| tensor.range().end);
            finite::check_gradient(
                rank.member_id(),
                self.step,
                0.0,
                &self.buffer[first..end],
                first,
                layout,
            )?;
            in_flight.start_next(rank, self.buffer)?;
        }
        Ok(())
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

fn wrong(what: String) -> Error {
    Error::internal(format!("the model announced {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_cluster::rank::in_memory;
    use thalweg_core::JobSpec;
    use thalweg_core::model::{Density, TensorRole};
    use thalweg_core::spec::bucket::BucketSize;

    fn overlap(rank: &mut Rank) -> Overlap {
        let mut layout = Layout::default();
        layout.push("dense", &[2], TensorRole::Trainable, Density::Dense);
        layout.push("rows", &[3, 2], TensorRole::Trainable, Density::Rows);
        layout.push("last", &[1], TensorRole::Trainable, Density::Dense);
        let plan = BucketPlan::cut(&JobSpec::default(), &layout, BucketSize::Tensor, &[0; 2]);
        Overlap::new(rank, &plan, &layout, 12).unwrap()
    }

    /// What is in the buffer after these announcements and the end of the pass; everything there before is rubbish.
    fn taken(earlier: &[f32], pieces: &[Gradient<'_>]) -> Result<Vec<f32>> {
        let mut rank = in_memory(2, Duration::from_secs(1)).remove(0);
        let mut overlap = overlap(&mut rank);
        // As in a step whose gradient is sent after the pass: no peer answers here.
        overlap.probe.note(0.0, 0.0);
        let gradient: Vec<f32> = (0..9).map(|value| value as f32).collect();
        let mut buffer = vec![7.5; 9];
        overlap.begin(&mut rank, 3).unwrap();
        let mut sender = BucketSender { overlap: &mut overlap, buffer: &mut buffer, earlier, step: 0 };
        pieces.iter().try_for_each(|piece| sender.take(&mut rank, *piece))?;
        overlap.copy_rest(&gradient, &mut buffer);
        Ok(buffer)
    }

    #[test]
    fn pieces_of_every_kind_are_the_gradient() {
        let whole: Vec<f32> = (0..9).map(|value| value as f32).collect();
        assert_eq!(taken(&[], &[]).unwrap(), whole, "a model that never announces");
        let dense = Gradient::Dense { tensor: 0, values: &[0.0, 1.0] };
        let rows = Gradient::Rows { tensor: 1, rows: &[0, 2], values: &[2.0, 3.0, 6.0, 7.0] };
        let factors = Gradient::Factors { tensor: 2, left: &[2.0], right: &[4.0] };
        let sparse = [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 6.0, 7.0, 8.0];
        assert_eq!(taken(&[], &[rows, factors, dense]).unwrap(), sparse);
        let earlier = [10.0; 9];
        let sums = [10.0, 11.0, 12.0, 13.0, 10.0, 10.0, 16.0, 17.0, 8.0];
        assert_eq!(taken(&earlier, &[dense, rows]).unwrap(), sums, "with the parts before it");
    }

    #[test]
    fn announcements_that_make_no_sense_are_refused() {
        let dense = |tensor, values| Gradient::Dense { tensor, values };
        let rows = |rows, values| Gradient::Rows { tensor: 1, rows, values };
        for (pieces, words) in [
            (vec![dense(3, &[1.0])], "does not have"),
            (vec![dense(0, &[1.0])], "does not fit"),
            (vec![dense(2, &[1.0]), dense(2, &[1.0])], "twice"),
            (vec![rows(&[3], &[1.0, 2.0])], "does not fit"),
            (vec![rows(&[0, 1], &[1.0, 2.0])], "does not fit"),
        ] {
            let error = taken(&[], &pieces).unwrap_err();
            assert!(error.message.contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_not_finite_does_not_leave() {
        let mut rank = in_memory(2, Duration::from_secs(1)).remove(0);
        let mut overlap = overlap(&mut rank);
        let mut buffer = vec![0.0; 9];
        overlap.begin(&mut rank, 3).unwrap();
        let mut sender = BucketSender { overlap: &mut overlap, buffer: &mut buffer, earlier: &[], step: 3 };
        let piece = Gradient::Dense { tensor: 0, values: &[0.0, f32::NAN] };
        let error = sender.take(&mut rank, piece).unwrap_err();
        assert_eq!(error.message, "rank 0: the gradient of `dense` is NaN at step 3");
        assert_eq!(overlap.in_flight.started(), 0);
    }
}
