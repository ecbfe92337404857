//! Neighbours: workers with separate parameters that average them along the edges of a graph.

use super::DialValue::Text;
use super::{AVERAGED_STATISTICS, Dial, OWN_ROWS, Preset, UPDATE_RULE};

pub(super) const PRESETS: &[Preset] = &[Preset {
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
}];
