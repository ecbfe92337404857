//! Gossip: workers with separate parameters that send them to each other.

use super::DialValue::{Float, Integer, Text};
use super::{AVERAGED_STATISTICS, Dial, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[GOSGD, GOSSIP_LEARNING];

const GOSGD: Preset = Preset {
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
};

const GOSSIP_LEARNING: Preset = Preset {
    name: "gossip-learning",
    system: "gossip learning (Ormandi, Hegedus and Jelasity 2013)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("decentralized")),
        Dial::fixed("strategy.scheduling.kind", Text("async")),
        Dial::fixed("strategy.exchange.kind", Text("walks")),
        Dial::default("strategy.gossip.probability", Float(0.1)),
        Dial::default("strategy.gossip.cache", Integer(2)),
        Dial::default("strategy.ensemble.combine", Text("average")),
        OWN_ROWS,
    ],
    summary: "Models walk from worker to worker: each merges a visitor with the one before it, trains it on its own rows and sends it on; the models in all caches answer together.",
    when: "Rows stay with their workers, which are unevenly fast and may go, and none is to coordinate them.",
    covers: &[
        ("a model at hand per worker", "strategy.optimization"),
        ("no worker waits for another, but where all meet", "strategy.scheduling.kind"),
        ("models that walk to workers drawn at random", "strategy.exchange.kind"),
        ("how long a model stays", "strategy.gossip.probability"),
        ("a cache of the models that were trained here", "strategy.gossip.cache"),
        ("predictions by the cache: their mean, a vote, or learned weights", "strategy.ensemble.combine"),
        AVERAGED_STATISTICS,
        ("merges that stay in the convex hull", "without_a_gradient_walking_models_stay_in_the_convex_hull"),
        ("models on their way to a lost worker walk on", "seeds_keep_promises_of_gossip_learning"),
        (UPDATE_RULE, "gossip_learning_follows_its_reference"),
    ],
    missing: &[
        "variants that merge after the update, or not at all: here a visitor is merged with the last one, then trained",
        "a learning rate by the age of the model: here by the rows of all workers",
        "peers sampled from a changing overlay network: here all workers know each other",
        "predictions at each worker by its own cache alone: here by the caches of all, in one model file",
        "an epoch's end without a meeting: here all workers meet then, and for each checkpoint",
    ],
};
