//! Settings that conflict with `train.reproducible`.

use super::JobSpec;
use super::bucket::BucketSize;
use super::strategy::{Algorithm, Exchange, Split};

/// Refuses settings under which the bits of the result depend on the world size, and row splits that the strategy does
/// not have.
pub(super) fn check(spec: &JobSpec, refuse: &mut dyn FnMut(&str, String)) {
    let exchange = spec.exchange.kind;
    if spec.strategy.split == Split::Speed && !matches!(exchange, Exchange::Allreduce | Exchange::None) {
        let reason = format!(
            "`speed` needs the step times that are appended to an all-reduce, and `{}` is none; use `even`",
            exchange.name()
        );
        refuse("strategy.split", reason);
    }
    if !spec.train.reproducible {
        return;
    }
    let key = "train.reproducible";
    match exchange {
        Exchange::Allreduce | Exchange::None => {}
        Exchange::Gossip => refuse(
            key,
            "the result of `gossip` depends on the world size, as workers have separate parameters; use `allreduce`"
                .into(),
        ),
        Exchange::ParameterServer => refuse(
            key,
            "a `parameter-server` sums gradients worker by worker, so the sum depends on the world size; use `allreduce`"
                .into(),
        ),
    }
    if spec.exchange.algorithm != Algorithm::Auto {
        let name = spec.exchange.algorithm.name();
        refuse(
            key,
            format!(
                "the summation order of `{name}` depends on the ranks; set strategy.exchange.algorithm = \"auto\" (the preset `allreduce`), which then sums along a fixed reduction tree"
            ),
        );
    }
    if spec.strategy.tune {
        refuse(
            key,
            "there is nothing to tune, as sums follow a fixed reduction tree; set strategy.tune = false"
                .into(),
        );
    }
    if matches!(spec.exchange.bucket, BucketSize::Tensor | BucketSize::Bytes(_)) {
        refuse(
            key,
            "gradients are summed after the whole step is computed, so no bucket can be sent earlier; set strategy.exchange.bucket = \"auto\""
                .into(),
        );
    }
    if spec.train.accumulate > 1 {
        refuse(key, "steps are computed in fixed micro-batches already; set train.accumulate = 1".into());
    }
    if spec.engine.threads > 1 {
        refuse(
            key,
            "the summation order depends on the number of threads; set engine.threads = 1 and use more workers instead"
                .into(),
        );
    }
}
