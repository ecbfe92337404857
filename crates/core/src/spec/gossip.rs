//! `[strategy.gossip]`: messages between workers with separate parameters.

use super::section::section;
use super::{JobSpec, Refuse};

section! {
    /// Gossip between workers.
    "strategy.gossip" GossipSpec {
        /// The probability that a worker sends its parameters after a step.
        probability: f64 = 0.1;
        /// With exchange kind walks: the models of each worker that are published, the one at hand and the last ones before it.
        cache: usize = 2;
    }
}

pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    if spec.gossip.cache == 0 {
        refuse("strategy.gossip.cache", "must be at least 1, the model at hand".into());
    }
    let probability = spec.gossip.probability;
    if !(probability > 0.0 && probability <= 1.0) {
        refuse("strategy.gossip.probability", format!("must be above 0 and at most 1, is {probability}"));
    }
}
