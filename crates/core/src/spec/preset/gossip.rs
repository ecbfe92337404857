//! Gossip: workers with separate parameters that send them to each other.

use super::{LOSS_OF_A_RANK, Preset};

pub(super) const PRESETS: &[Preset] = &[Preset {
    name: "gosgd",
    system: "GoSGD (Blot et al. 2016; Langer et al. 2020, Figure 17)",
    dials: &[
        ("strategy.optimization", "decentralized"),
        ("strategy.scheduling.kind", "async"),
        ("strategy.exchange.kind", "gossip"),
    ],
    summary: "Every worker trains its own parameters and sends them to a random other worker now and then, weighted by recency.",
    when: "Workers are unevenly fast or the network is slow, and a slightly different result is acceptable.",
    missing: &[
        LOSS_OF_A_RANK,
        "training without barriers: here all workers synchronize at the end of every epoch and for each checkpoint",
        "an exchange in every step that draws one: a message to a rank with four messages pending is skipped",
        "messages that progress during computation: in shared memory 256 KiB at most per local step",
        "a data set per worker: here workers split the rows of each global step",
    ],
}];
