//! What `train.reproducible` cannot keep its word with.

use super::JobSpec;
use super::bucket::Bucket;
use super::strategy::{Algorithm, Exchange, Split};

/// Complaints about values that make the bits of a result depend on the world, and about ways of sharing work that a
/// strategy does not have.
pub(super) fn check(spec: &JobSpec, complain: &mut dyn FnMut(&str, String)) {
    let exchange = spec.exchange.kind;
    if spec.strategy.split == Split::Speed && !matches!(exchange, Exchange::Allreduce | Exchange::None) {
        let reason = format!(
            "`speed` is decided from times that ride along with an all-reduce, which `{}` is not; use `even`",
            exchange.name()
        );
        complain("strategy.split", reason);
    }
    if !spec.train.reproducible {
        return;
    }
    let key = "train.reproducible";
    match exchange {
        Exchange::Allreduce | Exchange::None => {}
        Exchange::Gossip => complain(
            key,
            "`gossip` has no result that is independent of the world: workers go their own ways; use `allreduce`"
                .into(),
        ),
        Exchange::ParameterServer => complain(
            key,
            "a `parameter-server` adds gradients worker by worker, so their sum depends on the world; use `allreduce`"
                .into(),
        ),
    }
    if spec.exchange.algorithm != Algorithm::Auto {
        let name = spec.exchange.algorithm.name();
        complain(
            key,
            format!(
                "`{name}` brackets sums by ranks; set strategy.exchange.algorithm = \"auto\" (the preset `allreduce`), which then sums along a tree over leaves"
            ),
        );
    }
    if spec.strategy.tune {
        complain(
            key,
            "there is nothing to tune: sums follow a tree over leaves, whatever is faster; set strategy.tune = false"
                .into(),
        );
    }
    if matches!(spec.exchange.bucket, Bucket::Tensor | Bucket::Bytes(_)) {
        complain(
            key,
            "leaves are summed whole when the step is computed, so no bucket leaves before; set strategy.exchange.bucket = \"auto\""
                .into(),
        );
    }
    if spec.train.accumulate > 1 {
        complain(
            key,
            "steps are computed leaf by leaf already, in parts that suit every world; set train.accumulate = 1".into(),
        );
    }
    if spec.engine.threads > 1 {
        complain(
            key,
            "several threads bracket sums by threads; set engine.threads = 1 and start more workers instead"
                .into(),
        );
    }
}
