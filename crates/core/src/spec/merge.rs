//! `[strategy.merge]`: workers that take local steps and then merge their parameters.

use super::section::section;
use super::setting::{Auto, choice};
use super::{JobSpec, Refuse};

choice! {
    /// How parameters are merged.
    MergeKind {
        /// No merge.
        None = "none",
        /// The mean of the workers' parameters, weighted by their rows.
        Mean = "mean",
        /// Block momentum: the change of the mean since the last merge is filtered by a momentum of its own.
        BlockMomentum = "block-momentum",
        /// The change of the mean since the last merge is the gradient of an outer optimizer, Nesterov momentum.
        OuterNesterov = "outer-nesterov",
        /// Slow momentum: the change of the mean since the last merge, in units of the learning rate, is added to a momentum that all workers follow.
        SlowMomentum = "slow-momentum",
        /// Gradients are summed in every step at first; later the parameters are merged as their mean.
        PostLocal = "post-local",
        /// No model is replaced: a penalty in the cost of each worker pulls its parameters to their mean, which is summed meanwhile.
        Penalized = "penalized",
        /// Elastic averaging: a server's centre and the workers' parameters attract each other.
        Elastic = "elastic",
    }
}

choice! {
    /// What happens to the optimizer's state of a worker when models are merged.
    OptimizerState {
        /// It stays with its worker.
        Keep = "keep",
        /// All workers go on with its mean, weighted by their rows: it is sent with the models.
        Average = "average",
        /// It starts at 0 after every merge.
        Reset = "reset",
    }
}

section! {
    /// Merges of the workers' parameters after local steps.
    "strategy.merge" MergeSpec {
        /// How parameters are merged.
        kind: MergeKind = MergeKind::None;
        /// Local steps between two merges.
        every: usize = 10;
        /// Between two merges of all workers there are fewer local steps as the loss falls: after each epoch `every` times the square root of its loss over that of the first, rounded up.
        adaptive_every: bool = false;
        /// The learning rate of a merge: the share of the change that is taken.
        rate: f64 = 1.0;
        /// The momentum of merges.
        momentum: f64 = 0.0;
        /// With kind post-local: the share of the job's steps before the first local one.
        start: f64 = 0.5;
        /// With kind penalized: rho, the factor of half the squared distance from the mean in the cost.
        penalty: f64 = 0.1;
        /// With kind penalized: by how much the last change of the mean is extrapolated, as the mean that is known is old.
        extrapolation: f64 = 1.0;
        /// What happens to the optimizer's state of a worker when models are merged.
        optimizer_state: OptimizerState = OptimizerState::Keep;
        /// Elastic averaging: the part of its difference from the centre by which a worker moves to it. auto: min(0.9/n, 1/2) with n = engine.workers.
        alpha: Auto<f64> = Auto::Auto;
        /// Elastic averaging: the part of that difference by which the centre moves to a worker. auto: alpha.
        beta: Auto<f64> = Auto::Auto;
        /// Elastic averaging at the workers' own speed: alpha grows with the difference, in proportion to its norm over the usual one, from beta to 1/2.
        adaptive_alpha: bool = false;
    }
}

impl MergeSpec {
    /// The rate of a worker in elastic averaging, in a job with so many.
    pub fn alpha(&self, workers: usize) -> f64 {
        self.alpha.or((0.9 / workers.max(1) as f64).min(0.5))
    }

    /// The rate of the centre for each worker.
    pub fn beta(&self, workers: usize) -> f64 {
        self.beta.or(self.alpha(workers))
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    let MergeSpec { every, rate, momentum, start, .. } = spec.merge;
    let has_rates = spec.merge.alpha != Auto::Auto || spec.merge.beta != Auto::Auto;
    if has_rates && spec.merge.kind != MergeKind::Elastic {
        let reason = "alpha and beta are the rates of elastic averaging; drop them, or set strategy.merge.kind = \"elastic\"";
        refuse("strategy.merge", reason.into());
    }
    if spec.merge.adaptive_alpha && spec.merge.kind != MergeKind::Elastic {
        let reason =
            "alpha is a rate of elastic averaging; drop this key, or set strategy.merge.kind = \"elastic\"";
        refuse("strategy.merge.adaptive_alpha", reason.into());
    }
    if spec.merge.kind == MergeKind::Elastic && spec.merge.optimizer_state != OptimizerState::Keep {
        let reason = "elastic averaging moves models towards each other, and no worker gives up its own; drop this key";
        refuse("strategy.merge.optimizer_state", reason.into());
    }
    let MergeSpec { penalty, extrapolation, .. } = spec.merge;
    if spec.merge.kind == MergeKind::Penalized {
        if !(penalty as f32 > 0.0 && (penalty as f32).is_finite()) {
            refuse(
                "strategy.merge.penalty",
                format!("must be above 0 and finite in single precision, is {penalty}"),
            );
        }
        if !(0.0..=1.0).contains(&extrapolation) {
            refuse(
                "strategy.merge.extrapolation",
                format!("must be at least 0 and at most 1, is {extrapolation}"),
            );
        }
        if spec.merge.optimizer_state != OptimizerState::Keep {
            let reason = "models are not merged, and no worker gives up its own; drop this key";
            refuse("strategy.merge.optimizer_state", reason.into());
        }
    } else if (penalty, extrapolation) != (MergeSpec::default().penalty, MergeSpec::default().extrapolation) {
        let reason = "penalty and extrapolation are those of strategy.merge.kind = \"penalized\"; drop them";
        refuse("strategy.merge", reason.into());
    }
    if !(0.0..=1.0).contains(&start) {
        refuse("strategy.merge.start", format!("must be at least 0 and at most 1, is {start}"));
    } else if start != MergeSpec::default().start && spec.merge.kind != MergeKind::PostLocal {
        let reason =
            "only strategy.merge.kind = \"post-local\" has steps before the first local one; drop this key";
        refuse("strategy.merge.start", reason.into());
    }
    if every == 0 {
        refuse("strategy.merge.every", "must be at least 1".into());
    }
    if !(rate as f32 > 0.0 && (rate as f32).is_finite()) {
        refuse("strategy.merge.rate", format!("must be above 0 and finite in single precision, is {rate}"));
    }
    if !(0.0..1.0).contains(&(momentum as f32)) {
        refuse("strategy.merge.momentum", format!("must be at least 0 and below 1, is {momentum}"));
    }
}
