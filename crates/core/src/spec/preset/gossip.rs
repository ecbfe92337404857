//! Gossip: workers with separate parameters that send them to each other.

use super::DialValue::{Float, Text};
use super::{AVERAGED_STATISTICS, Dial, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "gosgd",
    system: "GoSGD (Blot et al. 2016; Langer et al. 2020, Figure 17)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("decentralized")),
        Dial::fixed("strategy.scheduling.kind", Text("async")),
        Dial::fixed("strategy.exchange.kind", Text("gossip")),
        Dial::default("strategy.gossip.probability", Float(0.1)),
        OWN_ROWS,
    ],
    summary: "Every worker trains its own parameters and sends them to a random other worker now and then, weighted by recency.",
    when: "Workers are unevenly fast or the network is slow, and a slightly different result is acceptable.",
    covers: &[
        ("parameters and optimizer state per worker", "strategy.optimization"),
        ("no worker waits for another, but where all meet", "strategy.scheduling.kind"),
        ("messages to random workers", "strategy.exchange.kind"),
        ("messages with a probability after each step", "strategy.gossip.probability"),
        AVERAGED_STATISTICS,
        ("sum weights", "parameters_are_those_of_the_pseudo_code"),
        ("a share of the rows per worker", "four_gossips_learn_the_digits_and_lose_no_row"),
        ("a lost worker takes its weight with it", "weights_add_up_to_one_without_the_lost_mass"),
        (UPDATE_RULE, "without_a_learning_rate_workers_with_different_models_agree_as_the_pseudo_code_does"),
    ],
    missing: &[
        "a message in every step that draws one: a worker asks first, and sends when the receiver is ready to merge",
        "an epoch's end without a meeting: here all workers meet then, and for each checkpoint, to evaluate their mean",
    ],
}];
