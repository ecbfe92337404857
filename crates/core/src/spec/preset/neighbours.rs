//! Neighbours: workers with separate parameters that average or push them along the edges of a graph.

use super::DialValue::Text;
use super::{AVERAGED_STATISTICS, Dial, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[DPSGD, SGP, ADPSGD];

const DPSGD: Preset = Preset {
    name: "dpsgd",
    system: "D-PSGD (Lian et al. 2017; Langer et al. 2020, Figure 15)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("decentralized")),
        Dial::fixed("strategy.scheduling.kind", Text("bsp")),
        Dial::fixed("strategy.exchange.kind", Text("neighbours")),
        Dial::default("strategy.neighbours.graph", Text("ring")),
        Dial::default("strategy.neighbours.mix", Text("before")),
        OWN_ROWS,
    ],
    summary: "Every worker averages its parameters with those of its two neighbours in a ring while it computes the gradient of the step.",
    when: "There are many workers, or links are slow: a step waits for two neighbours, whatever the number of workers.",
    covers: &[
        ("parameters and optimizer state per worker", "strategy.optimization"),
        ("a step waits for the parameters of the same step of the neighbours", "strategy.scheduling.kind"),
        ("parameters sent to neighbours alone", "strategy.exchange.kind"),
        ("a ring, or any connected graph with Metropolis weights", "strategy.neighbours.graph"),
        ("parameters sent before the gradient is computed", "strategy.neighbours.mix"),
        AVERAGED_STATISTICS,
        ("contraction by the second eigenvalue", "four_in_a_ring_agree_at_the_rate_of_the_second_eigenvalue"),
        (UPDATE_RULE, "dpsgd_follows_its_reference"),
    ],
    missing: &[
        "weights other than Metropolis weights, such as those of a symmetric matrix of the job's own",
        "a data set per worker: here workers split the rows of each global step",
    ],
};

const SGP: Preset = Preset {
    name: "sgp",
    system: "stochastic gradient push (Assran et al. 2019)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("decentralized")),
        Dial::fixed("strategy.scheduling.kind", Text("bsp")),
        Dial::fixed("strategy.exchange.kind", Text("push-sum")),
        Dial::default("strategy.neighbours.graph", Text("exponential")),
        Dial::default("strategy.neighbours.mix", Text("after")),
        OWN_ROWS,
    ],
    summary: "Every worker sends half of its parameters, and of their weight, to one other in each step, at distances 1, 2, 4, ... in turn.",
    when: "As for dpsgd, with one message per step and many workers: all have heard of each other after log2 n steps.",
    covers: &[
        ("parameters and optimizer state per worker", "strategy.optimization"),
        ("a step waits for what predecessors push in the same step", "strategy.scheduling.kind"),
        ("shares of parameters and of weights pushed along directed edges", "strategy.exchange.kind"),
        (
            "the exponential graph with one successor per step, or any strongly connected graph",
            "strategy.neighbours.graph",
        ),
        ("the gradient at the de-biased parameters is applied before the push", "strategy.neighbours.mix"),
        AVERAGED_STATISTICS,
        ("weights that add up to n", "push_sum_weights_add_up_to_the_number_of_workers"),
        ("consensus on the mean of all models", "without_a_gradient_all_models_become_their_mean"),
        (UPDATE_RULE, "sgp_follows_its_reference"),
    ],
    missing: &[
        "overlap SGP, whose messages may arrive steps later",
        "two successors per step in the exponential graph",
        "a data set per worker: here workers split the rows of each global step",
    ],
};

const ADPSGD: Preset = Preset {
    name: "adpsgd",
    system: "AD-PSGD (Lian et al. 2018)",
    version: None,
    dials: &[
        Dial::fixed("strategy.optimization", Text("decentralized")),
        Dial::fixed("strategy.scheduling.kind", Text("async")),
        Dial::fixed("strategy.exchange.kind", Text("neighbours")),
        Dial::default("strategy.neighbours.graph", Text("ring")),
        OWN_ROWS,
    ],
    summary: "At its own speed, every odd worker averages its parameters with a random even neighbour while it computes a gradient; both go on with the average.",
    when: "As for dpsgd, where workers differ in speed: one waits for a step of one other at most.",
    covers: &[
        ("parameters and optimizer state per worker", "strategy.optimization"),
        ("workers at their own speed", "strategy.scheduling.kind"),
        ("parameters averaged in pairs of neighbours", "strategy.exchange.kind"),
        ("a bipartite graph: edges between even and odd workers", "strategy.neighbours.graph"),
        AVERAGED_STATISTICS,
        ("atomic averages that keep the mean", "without_a_gradient_pairs_come_to_the_mean_of_all_models"),
        ("a gradient from before the average", "adpsgd_follows_its_reference"),
        (UPDATE_RULE, "adpsgd_follows_its_reference"),
    ],
    missing: &[
        "averages in the middle of a neighbour's gradient: here between it and its update",
        "an epoch's end without a meeting: here all workers meet then, and for each checkpoint",
    ],
};
