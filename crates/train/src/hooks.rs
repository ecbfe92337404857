//! What a worker does for its model during a pass: sums what must be summed over all workers, and lets pieces of the
//! gradient leave. A step computed in parts is announced with the last of them only: before it, no piece is final.

use crate::overlap::Leaving;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::spec::strategy::Exchange;
use thalweg_core::{Error, Gradient, Hooks, JobSpec, Model, Result};

/// What a rank is busy with while a model computes.
pub(crate) const WORK: &str = "back-propagation";

/// The hooks of one pass.
pub(crate) struct PassHooks<'a> {
    pub(crate) rank: &'a mut Rank,
    /// Parts in which the step is computed.
    pub(crate) parts: usize,
    /// Floating-point operations before this pass, and its own.
    pub(crate) operations: (u64, u64),
    /// Who takes pieces of the gradient; nobody if all of it leaves after the pass, or another pass follows.
    pub(crate) leaving: Option<Leaving<'a>>,
    /// Time spent with the others on sums inside the pass.
    pub(crate) met: Duration,
}

impl Hooks for PassHooks<'_> {
    fn gradient(&mut self, piece: Gradient<'_>) -> Result<()> {
        match &mut self.leaving {
            Some(leaving) => leaving.take(self.rank, piece),
            None => Ok(()),
        }
    }

    fn progress(&mut self, done: f64) -> Result<()> {
        let Some(leaving) = &mut self.leaving else { return Ok(()) };
        let (before, own) = self.operations;
        self.rank.charge(before + (own as f64 * done) as u64);
        leaving.glance(self.rank)
    }

    fn reduce(&mut self, values: &mut [f32]) -> Result<()> {
        if self.parts > 1 {
            return Err(in_parts(self.parts));
        }
        let name = "batch statistics";
        self.met += match &mut self.leaving {
            Some(leaving) => leaving.reduce(self.rank, WORK, name, values)?,
            None => self.rank.all_reduce_during(WORK, name, values)?,
        };
        Ok(())
    }
}

/// Refuses steps in parts or leaves for a model whose rows look at each other: workers may have different numbers of
/// parts, and statistics of a part are not those of the step.
pub fn check_parts(job: &JobSpec, model: &dyn Model) -> Result<()> {
    let among_workers = matches!(job.exchange.kind, Exchange::Allreduce | Exchange::None);
    if model.synchronizes() && !among_workers {
        return Err(Error::job(format!(
            "model.batchnorm: statistics of all workers' rows need an exchange among them, which `{}` is not",
            job.exchange.kind.name()
        ))
        .hint("set model.batchnorm = \"local\" to normalise by each worker's own rows"));
    }
    if job.train.reproducible && model.mixes_rows() {
        return Err(Error::job(
            "train.reproducible: batch normalisation looks at all rows of a step, or of a worker, while each leaf of it is computed on its own",
        )
        .hint("normalise by layernorm, or set train.reproducible = false: synchronized statistics differ by rounding alone"));
    }
    match job.train.accumulate {
        parts if parts > 1 && model.synchronizes() => Err(in_parts(parts)),
        _ => Ok(()),
    }
}

fn in_parts(parts: usize) -> Error {
    Error::job(format!(
        "train.accumulate: a step in {parts} parts has no statistics of all its rows, which batch normalisation is to use"
    ))
    .hint("set model.batchnorm = \"local\" to normalise each part by its own rows, or train.accumulate = 1")
}
