//! Gossip: workers with parameters of their own that write to each other.

use super::{LOSS_OF_A_RANK, Preset};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "gosgd",
    system: "GoSGD (Blot et al. 2016; Langer et al. 2020, Figure 17)",
    dials: &[
        ("strategy.optimization", "decentralized"),
        ("strategy.scheduling.kind", "async"),
        ("strategy.exchange.kind", "gossip"),
    ],
    summary: "Every worker trains on its own and now and then sends its parameters to another, weighted by how fresh they are.",
    when: "Workers are unevenly fast or the network is slow, and a slightly different answer will do.",
    missing: &[
        LOSS_OF_A_RANK,
        "training without meetings: here all workers wait for each other at the end of every epoch and for each checkpoint",
        "an exchange in every step that draws one: a message to a rank that four others are waiting for is skipped",
        "messages that move during computation: in shared memory 256 KiB at most per local step",
        "rows of each worker's own: here workers share the rows of each global step",
    ],
}];
