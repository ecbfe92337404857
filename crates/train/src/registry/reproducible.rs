//! Settings that conflict with `train.reproducible`, whatever the strategy.

use thalweg_core::JobSpec;
use thalweg_core::spec::Refuse;
use thalweg_core::spec::bucket::BucketSize;
use thalweg_core::spec::strategy::Algorithm;

pub(super) const KEY: &str = "train.reproducible";

/// Refuses settings under which the bits of the result depend on the world size.
pub(super) fn check(job: &JobSpec, refuse: &mut Refuse<'_>) {
    if !job.train.reproducible {
        return;
    }
    if job.exchange.algorithm != Algorithm::Auto {
        let name = job.exchange.algorithm.name();
        refuse(
            KEY,
            format!(
                "the summation order of `{name}` depends on the ranks; set strategy.exchange.algorithm = \"auto\" (the preset `allreduce`), which then sums along a fixed reduction tree"
            ),
        );
    }
    if job.strategy.tune {
        refuse(
            KEY,
            "there is nothing to tune, as sums follow a fixed reduction tree; set strategy.tune = false"
                .into(),
        );
    }
    if matches!(job.exchange.bucket, BucketSize::Tensor | BucketSize::Bytes(_)) {
        refuse(
            KEY,
            "gradients are summed after the whole step is computed, so no bucket can be sent earlier; set strategy.exchange.bucket = \"auto\""
                .into(),
        );
    }
    if job.train.accumulate > 1 {
        refuse(KEY, "steps are computed in fixed micro-batches already; set train.accumulate = 1".into());
    }
    if job.engine.threads > 1 {
        refuse(
            KEY,
            "the summation order depends on the number of threads; set engine.threads = 1 and use more workers instead"
                .into(),
        );
    }
}
