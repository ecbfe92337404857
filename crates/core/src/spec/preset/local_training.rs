//! Local training: workers train models of their own, which all merge after each round.

use super::DialValue::{Float, Integer, Rule, Text};
use super::{AVERAGED_STATISTICS, Dial, OWN_ROWS, Preset, Rule as OfWorkers, UPDATE_RULE};

const DECENTRALIZED: Dial = Dial::fixed("strategy.optimization", Text("decentralized"));
const BSP: Dial = Dial::fixed("strategy.scheduling.kind", Text("bsp"));
const ALLREDUCE: Dial = Dial::fixed("strategy.exchange.kind", Text("allreduce"));

const fn merged(kind: &'static str) -> Dial {
    Dial::fixed("strategy.merge.kind", Text(kind))
}

/// Of n workers, each of which contributes 1/n to a merge.
const MOMENTUM: OfWorkers = OfWorkers { formula: "1 - 1/n", of: |n| 1.0 - 1.0 / n as f64 };

const OWN_STATE: (&str, &str) = ("a model and optimizer state per worker", "strategy.optimization");
const IN_ROUNDS: (&str, &str) =
    ("a round starts when all workers have finished the last one", "strategy.scheduling.kind");
const AVERAGED: (&str, &str) = ("models summed over all workers", "strategy.exchange.kind");

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "sparknet",
        system: "SparkNet (Moritz et al. 2016)",
        version: None,
        dials: &[
            DECENTRALIZED,
            BSP,
            ALLREDUCE,
            OWN_ROWS,
            merged("mean"),
            Dial::default("strategy.merge.every", Integer(10)),
        ],
        summary: "Every worker takes 10 steps on a model of its own; then all continue with the mean of their models, weighted by rows.",
        when: "Links are slow and workers about equally fast.",
        covers: &[
            OWN_STATE,
            IN_ROUNDS,
            AVERAGED,
            AVERAGED_STATISTICS,
            ("the mean of all models", "strategy.merge.kind"),
            ("tau local steps between two merges", "strategy.merge.every"),
            (UPDATE_RULE, "sparknet_follows_its_reference"),
        ],
        missing: &["a partition of the data per worker: here workers split the rows of each global step"],
    },
    Preset {
        name: "block-momentum",
        system: "blockwise model-update filtering (Chen and Huo 2016), the block momentum of CNTK",
        version: Some("CNTK 2.7"),
        dials: &[
            DECENTRALIZED,
            BSP,
            ALLREDUCE,
            OWN_ROWS,
            merged("block-momentum"),
            Dial::default("strategy.merge.every", Integer(10)),
            Dial::default("strategy.merge.momentum", Rule(MOMENTUM)),
            Dial::default("strategy.merge.rate", Float(1.0)),
            Dial::default("strategy.merge.optimizer_state", Text("reset")),
        ],
        summary: "Every worker takes 10 steps on a model of its own; the change of their mean is filtered by Nesterov momentum 1 - 1/n.",
        when: "Links are slow, and plain averaging learns too slowly with many workers.",
        covers: &[
            OWN_STATE,
            IN_ROUNDS,
            AVERAGED,
            AVERAGED_STATISTICS,
            ("block Nesterov momentum, published without the look-ahead", "strategy.merge.kind"),
            ("local steps in a block", "strategy.merge.every"),
            ("block momentum 1 - 1/n", "strategy.merge.momentum"),
            ("block learning rate", "strategy.merge.rate"),
            ("optimizer state that starts at 0 in every block", "strategy.merge.optimizer_state"),
            (UPDATE_RULE, "block_momentum_follows_its_reference"),
        ],
        missing: &[
            "CNTK's gain (1 - momentum) * rate on the sum of all workers: ours is rate on their mean, which is the same for equal shares at momentum 1 - 1/n",
            "CNTK's look-aheads, which accumulate; ours start from the published model, as in the paper",
            "blocks given in samples: here in steps",
            "a learning rate that grows with the number of workers",
        ],
    },
    Preset {
        name: "diloco",
        system: "DiLoCo (Douillard et al. 2023)",
        version: None,
        dials: &[
            DECENTRALIZED,
            BSP,
            ALLREDUCE,
            OWN_ROWS,
            merged("outer-nesterov"),
            Dial::default("strategy.merge.every", Integer(50)),
            Dial::default("strategy.merge.momentum", Float(0.9)),
            Dial::default("strategy.merge.rate", Float(0.7)),
            Dial::default("train.optimizer.kind", Text("adamw")),
            Dial::default("train.optimizer.lr", Float(0.001)),
        ],
        summary: "Every worker takes 50 AdamW steps on a model of its own; the mean change is a gradient for an outer optimizer with Nesterov momentum.",
        when: "Links are very slow, as between sites.",
        covers: &[
            OWN_STATE,
            IN_ROUNDS,
            AVERAGED,
            AVERAGED_STATISTICS,
            ("outer Nesterov momentum", "strategy.merge.kind"),
            ("H inner steps", "strategy.merge.every"),
            ("outer momentum 0.9", "strategy.merge.momentum"),
            ("outer learning rate 0.7", "strategy.merge.rate"),
            ("inner AdamW", "train.optimizer.kind"),
            (UPDATE_RULE, "diloco_follows_its_reference"),
        ],
        missing: &[
            "H = 500, which exceeds an epoch of small data: set strategy.merge.every",
            "a partition of the data per worker: here workers split the rows of each global step",
        ],
    },
    Preset {
        name: "mpca-sgd",
        system: "MPCA-SGD (Langer, Hall et al. 2018; Langer et al. 2020, section 3.3.5)",
        version: None,
        dials: &[
            DECENTRALIZED,
            BSP,
            ALLREDUCE,
            OWN_ROWS,
            merged("penalized"),
            Dial::default("strategy.merge.every", Integer(10)),
            Dial::default("strategy.merge.penalty", Float(0.1)),
            Dial::default("strategy.merge.extrapolation", Float(1.0)),
        ],
        summary: "Every worker trains a model of its own, under a penalty on its distance from the mean of all; the mean is summed while they compute, and extrapolated as it is a round old.",
        when: "Links are slow, and summing models is to cost no time beside the computation.",
        covers: &[
            OWN_STATE,
            ("a round starts when all workers have finished the last one", "strategy.scheduling.kind"),
            ("models summed while the workers compute", "strategy.exchange.kind"),
            AVERAGED_STATISTICS,
            ("updates and sharing apart: no model is replaced", "strategy.merge.kind"),
            ("local steps while the models are summed", "strategy.merge.every"),
            ("penalisation as a part of the cost", "strategy.merge.penalty"),
            ("extrapolation against staleness", "strategy.merge.extrapolation"),
            (
                "workers that agree without a gradient",
                "without_a_data_gradient_workers_agree_as_the_formulas_say",
            ),
            (UPDATE_RULE, "mpca_sgd_follows_its_reference"),
        ],
        missing: &[
            "the formulas of the paper: our documents describe the method in a sentence, and those here are ours",
            "a dedicated master, and a binomial tree to it: here all workers sum the models by an all-reduce",
            "rounds as long as the sum takes, on each worker by itself: here tau steps, and all end a round together",
            "Spark, and its data sets",
        ],
    },
    Preset {
        name: "slowmo",
        system: "SlowMo on local SGD (Wang et al. 2019)",
        version: None,
        dials: &[
            DECENTRALIZED,
            BSP,
            ALLREDUCE,
            OWN_ROWS,
            merged("slow-momentum"),
            Dial::default("strategy.merge.every", Integer(12)),
            Dial::default("strategy.merge.momentum", Float(0.7)),
            Dial::default("strategy.merge.rate", Float(1.0)),
            Dial::default("strategy.merge.optimizer_state", Text("reset")),
        ],
        summary: "Every worker takes 12 steps on a model of its own; the change of their mean, in units of the learning rate, feeds a slow momentum that all follow.",
        when: "As for sparknet, where plain averages learn too slowly and the learning rate changes.",
        covers: &[
            OWN_STATE,
            IN_ROUNDS,
            AVERAGED,
            AVERAGED_STATISTICS,
            ("slow momentum in units of the learning rate", "strategy.merge.kind"),
            ("tau steps of the base optimizer", "strategy.merge.every"),
            ("slow momentum factor", "strategy.merge.momentum"),
            ("slow learning rate 1", "strategy.merge.rate"),
            ("buffers of the base optimizer reset, maintained or averaged", "strategy.merge.optimizer_state"),
            (UPDATE_RULE, "slowmo_follows_its_reference"),
        ],
        missing: &[
            "base algorithms other than local descent, such as SGP, and rounds without the exact average",
            "a partition of the data per worker: here workers split the rows of each global step",
        ],
    },
    Preset {
        name: "post-local-sgd",
        system: "post-local SGD (Lin et al. 2018)",
        version: None,
        dials: &[
            DECENTRALIZED,
            BSP,
            ALLREDUCE,
            OWN_ROWS,
            merged("post-local"),
            Dial::default("strategy.merge.start", Float(0.5)),
            Dial::default("strategy.merge.every", Integer(10)),
        ],
        summary: "All-reduce of gradients in the first half of the steps; then every worker takes 10 steps on a model of its own between two means.",
        when: "Local rounds from the start cost accuracy, and the first part of the training may be slow.",
        covers: &[
            OWN_STATE,
            (
                "a step or round starts when all workers have finished the last one",
                "strategy.scheduling.kind",
            ),
            ("gradients, later models, summed over all workers", "strategy.exchange.kind"),
            AVERAGED_STATISTICS,
            ("the mean of all models after the first phase", "strategy.merge.kind"),
            ("the switch at a share of the steps", "strategy.merge.start"),
            ("H local steps between two merges", "strategy.merge.every"),
            (UPDATE_RULE, "post_local_sgd_follows_its_reference"),
        ],
        missing: &[
            "a switch at the first decay of the learning rate: here at a share of the steps",
            "gradients of the first phase sent during the pass: here in one piece after it",
            "hierarchical local SGD, with rounds within and between hosts",
        ],
    },
];
