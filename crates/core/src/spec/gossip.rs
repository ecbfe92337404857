//! `[strategy.gossip]`: messages between workers with separate parameters.

use super::section::section;
use super::{JobSpec, Refuse};

/// Models of a worker at most.
pub const MOST_MODELS: usize = 8;

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
    if !(1..=MOST_MODELS).contains(&spec.gossip.cache) {
        let reason = format!("must be 1, the model at hand, to {MOST_MODELS}, is {}", spec.gossip.cache);
        refuse("strategy.gossip.cache", reason);
    }
    let probability = spec.gossip.probability;
    if !(probability > 0.0 && probability <= 1.0) {
        refuse("strategy.gossip.probability", format!("must be above 0 and at most 1, is {probability}"));
    }
}
