//! Gossip: workers with parameters of their own that write to each other.

use super::Preset;

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
    missing: &[],
}];
