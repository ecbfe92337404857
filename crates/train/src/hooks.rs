//! The hooks of a model's pass: sums over all workers inside the pass, and completed tensors of the gradient, which are
//! sent. Messages move between any two operators, or are moved by the rank's progress thread all the time. Of a step computed in parts only the last one announces tensors: before it, none is complete.

use crate::reduction::overlap::BucketSender;
use crate::registry;
use crate::serving::shards;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::{Error, Gradient, Hooks, JobSpec, Model, Result};

/// The operation of a rank whose model computes.
pub(crate) const WORK: &str = "back-propagation";

/// The hooks of one pass.
pub(crate) struct PassHooks<'a> {
    pub(crate) rank: &'a mut Rank,
    /// Parts in which the step is computed.
    pub(crate) parts: usize,
    /// Floating-point operations before this pass, and its own.
    pub(crate) operations: (u64, u64),
    /// Takes completed tensors; None if all of the gradient is sent after the pass, or another pass follows.
    pub(crate) sender: Option<BucketSender<'a>>,
    /// The weight of the pass in running statistics of this rank's own rows, if it is not its share of all rows.
    pub(crate) statistics_weight: Option<f32>,
    /// Time of collectives inside the pass.
    pub(crate) collectives: Duration,
    /// What may end the pass, which then fails, and whether it has.
    pub(crate) abort_check: Option<&'a mut AbortCheck<'a>>,
    pub(crate) is_abandoned: bool,
}

/// Says whether a computation is useless by now, or becomes so within this time, for which it waits.
pub type AbortCheck<'a> = dyn FnMut(&mut Rank, Duration) -> Result<bool> + 'a;

impl PassHooks<'_> {
    /// Runs the pass. A progress thread moves messages meanwhile, unless the pass sends or receives some itself.
    pub(crate) fn run<T>(&mut self, pass: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.sender.is_none() && self.abort_check.is_none() {
            self.rank.lend_connections();
        }
        let outcome = pass(self);
        self.rank.take_connections_back();
        outcome
    }

    fn sum(&mut self, values: &mut [f32]) -> Result<Duration> {
        let name = "batch statistics";
        if let Some(sender) = &mut self.sender {
            return sender.reduce(self.rank, WORK, name, values);
        }
        self.rank.take_connections_back();
        let took = self.rank.world().all_reduce_during(WORK, name, values);
        self.rank.lend_connections();
        took
    }
}

impl Hooks for PassHooks<'_> {
    fn gradient(&mut self, piece: Gradient<'_>) -> Result<()> {
        match &mut self.sender {
            Some(sender) => sender.take(self.rank, piece),
            None => Ok(()),
        }
    }

    fn progress(&mut self, done: f64) -> Result<()> {
        if self.sender.is_none() && !self.rank.has_messages() {
            return Ok(());
        }
        let (before, own) = self.operations;
        self.rank.charge(before + (own as f64 * done) as u64);
        if let Some(sender) = &mut self.sender {
            sender.poll(self.rank)?;
        }
        self.rank.poll_messages()?;
        if let Some(abort_check) = &mut self.abort_check {
            self.is_abandoned = abort_check(self.rank, Duration::ZERO)?;
        }
        match self.is_abandoned {
            true => Err(Error::internal("a pass that was abandoned")),
            false => Ok(()),
        }
    }

    fn statistics_weight(&self, share: f32) -> f32 {
        self.statistics_weight.unwrap_or(share)
    }

    fn reduce(&mut self, values: &mut [f32]) -> Result<()> {
        if self.parts > 1 {
            return Err(in_parts(self.parts));
        }
        let took = self.sum(values)?;
        self.collectives += took;
        Ok(())
    }
}

/// Refuses steps in parts or leaves for a model whose rows look at each other: workers may have different numbers of
/// parts, and statistics of a part are not those of the step. Also more servers than there are parts of the model.
pub fn check_parts(job: &JobSpec, model: &dyn Model) -> Result<()> {
    if model.synchronizes() && !registry::of(job).claims.synchronizes_statistics {
        return Err(Error::job(format!(
            "model.batchnorm: statistics of all workers' rows need an exchange among them in every pass, which `{}` has not",
            registry::of(job).name
        ))
        .hint("set model.batchnorm = \"local\" to normalise by each worker's own rows"));
    }
    if job.train.reproducible && model.mixes_rows() {
        return Err(Error::job(
            "train.reproducible: batch normalisation looks at all rows of a step, or of a worker, while each leaf of it is computed on its own",
        )
        .hint("normalise by layernorm, or set train.reproducible = false: synchronized statistics differ by rounding alone"));
    }
    shards::check(job, model.layout())?;
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
