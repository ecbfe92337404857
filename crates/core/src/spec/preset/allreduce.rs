//! Synchronous data parallelism: one worker, or many that add up their gradients.

use super::Preset;

const REPLICATED: &[(&str, &str)] = &[
    ("strategy.optimization", "centralized"),
    ("strategy.scheduling.kind", "bsp"),
    ("strategy.exchange.kind", "allreduce"),
    ("strategy.exchange.algorithm", "auto"),
];

/// Around a ring, in buckets of this size.
macro_rules! ring {
    ($bucket:literal) => {
        &[
            ("strategy.optimization", "centralized"),
            ("strategy.scheduling.kind", "bsp"),
            ("strategy.exchange.kind", "allreduce"),
            ("strategy.exchange.algorithm", "ring"),
            ("strategy.exchange.bucket", $bucket),
        ]
    };
}

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "single",
        system: "stochastic gradient descent on one machine",
        dials: &[
            ("engine.workers", "1"),
            ("strategy.optimization", "centralized"),
            ("strategy.scheduling.kind", "bsp"),
            ("strategy.exchange.kind", "none"),
        ],
        summary: "One worker computes every row; nothing is exchanged.",
        when: "The model trains fast enough on one core, or as the reference for all the others.",
        missing: &[],
    },
    Preset {
        name: "allreduce",
        system: "synchronous data-parallel SGD with replicated optimizer state",
        dials: REPLICATED,
        summary: "Workers share the rows of each step, add up their gradients and take the same update.",
        when: "Workers are about equally fast and you want the answer of a single worker, sooner.",
        missing: &[],
    },
    Preset {
        name: "horovod",
        system: "Horovod (Sergeev and Del Balso 2018)",
        dials: ring!("64MiB"),
        summary: "Ring all-reduce of gradients, fused into buffers of 64 MiB that leave when they are full, with the same update on every worker.",
        when: "You come from Horovod and want its exchange step for step.",
        missing: &[
            "fusion by cycle time",
            "overlap for gradients below 64 MiB, such as those of every network in model.zoo: they leave after back-propagation",
            "Adasum",
            "fp16 compression",
        ],
    },
    Preset {
        name: "pytorch-ddp",
        system: "PyTorch DistributedDataParallel (Li et al. 2020)",
        dials: ring!("25MiB"),
        summary: "All-reduce of gradients in buckets of 25 MiB that leave in the order back-propagation finishes them.",
        when: "You come from torchrun and DistributedDataParallel.",
        missing: &[
            "a smaller first bucket",
            "overlap for gradients below 25 MiB, such as those of every network in model.zoo: they leave after back-propagation",
            "communication hooks",
            "join for uneven inputs (not needed here: a rank may have no row)",
        ],
    },
    Preset {
        name: "baidu",
        system: "Baidu ring all-reduce (Gibiansky 2017)",
        dials: ring!("tensor"),
        summary: "The first ring all-reduce for deep learning: scatter-reduce, then all-gather, tensor by tensor.",
        when: "To compare with the original: every tensor of the gradient goes around one ring.",
        missing: &[],
    },
];
