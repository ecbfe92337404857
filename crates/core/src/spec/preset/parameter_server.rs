//! Parameter servers: ranks that hold the parameters for the others.

use super::{LOSS_OF_A_RANK, Preset};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "parameter-server",
    system: "synchronous parameter server (Langer et al. 2020, section 3.3.1)",
    dials: &[
        ("strategy.optimization", "centralized"),
        ("strategy.scheduling.kind", "bsp"),
        ("strategy.exchange.kind", "parameter-server"),
    ],
    summary: "Workers push their gradients to rank 0, which sums them, applies the update and sends the parameters back.",
    when: "To compare with all-reduce, or when the optimizer's state should exist only once.",
    missing: &[
        "several servers, each with a shard of the parameters",
        "asynchronous and bounded-staleness updates",
        LOSS_OF_A_RANK,
    ],
}];
