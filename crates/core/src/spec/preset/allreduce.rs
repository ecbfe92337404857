//! Synchronous data parallelism: one worker, or several with all-reduce.

use super::Preset;

const REPLICATED: &[(&str, &str)] = &[
    ("strategy.optimization", "centralized"),
    ("strategy.scheduling.kind", "bsp"),
    ("strategy.exchange.kind", "allreduce"),
    ("strategy.exchange.algorithm", "auto"),
];

/// Ring all-reduce in buckets of this size.
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
        summary: "One worker computes all rows, without exchange.",
        when: "The model trains fast enough on one core, or as the reference for other strategies.",
        missing: &[],
    },
    Preset {
        name: "allreduce",
        system: "synchronous data-parallel SGD with replicated optimizer state",
        dials: REPLICATED,
        summary: "Workers split the rows of each step, all-reduce their gradients and apply the same update.",
        when: "Workers are about equally fast and you want the result of a single worker, sooner.",
        missing: &[],
    },
    Preset {
        name: "horovod",
        system: "Horovod (Sergeev and Del Balso 2018)",
        dials: ring!("64MiB"),
        summary: "Ring all-reduce of gradients, fused into buffers of 64 MiB that are sent when full, with the same update on every worker.",
        when: "You come from Horovod and want the same exchange.",
        missing: &[
            "fusion by cycle time",
            "overlap for gradients below 64 MiB, such as those of every network in model.zoo: they are sent after back-propagation",
            "Adasum",
            "fp16 compression",
        ],
    },
    Preset {
        name: "pytorch-ddp",
        system: "PyTorch DistributedDataParallel (Li et al. 2020)",
        dials: ring!("25MiB"),
        summary: "All-reduce of gradients in buckets of 25 MiB, sent in the order in which back-propagation finishes them.",
        when: "You come from torchrun and DistributedDataParallel.",
        missing: &[
            "a smaller first bucket",
            "overlap for gradients below 25 MiB, such as those of every network in model.zoo: they are sent after back-propagation",
            "communication hooks",
            "join for uneven inputs (not needed here: a rank may have no row)",
        ],
    },
    Preset {
        name: "baidu",
        system: "Baidu ring all-reduce (Gibiansky 2017)",
        dials: ring!("tensor"),
        summary: "The first ring all-reduce for deep learning: scatter-reduce, then all-gather, tensor by tensor.",
        when: "To compare with the original: every tensor of the gradient is reduced on one ring.",
        missing: &[],
    },
];
