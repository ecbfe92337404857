//! Elastic averaging: workers train models of their own around a centre that a server holds.

use super::DialValue::{Bool, Float, Integer, Rule, Text};
use super::{AVERAGED_STATISTICS, Dial, LOSS_OF_A_SERVER, OWN_ROWS, Preset, Rule as OfWorkers, UPDATE_RULE};

const DECENTRALIZED: Dial = Dial::fixed("strategy.optimization", Text("decentralized"));
const ASYNCHRONOUS: Dial = Dial::default("strategy.scheduling.kind", Text("async"));
const SERVER: Dial = Dial::fixed("strategy.exchange.kind", Text("parameter-server"));
const ELASTIC: Dial = Dial::fixed("strategy.merge.kind", Text("elastic"));
const EVERY: Dial = Dial::default("strategy.merge.every", Integer(10));

const OWN_MODELS: (&str, &str) = ("a model and optimizer state per worker", "strategy.optimization");
const CENTRE: (&str, &str) =
    ("a centre that workers visit one by one, or all at once", "strategy.scheduling.kind");
const MASTER: (&str, &str) = ("a master that holds the centre", "strategy.exchange.kind");
const FORCE: (&str, &str) = ("the elastic force between worker and centre", "strategy.merge.kind");
const TAU: (&str, &str) = ("tau local steps between two merges", "strategy.merge.every");
const LOST: (&str, &str) = ("lost workers: the others go on", "a_lost_worker_of_a_server_is_survived");

/// Half of the usual alpha, so that alpha can adapt on both sides of it.
const BETA: OfWorkers = OfWorkers { formula: "min(0.45/n, 1/4)", of: |n| (0.45 / n as f64).min(0.25) };

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "easgd",
        system: "EASGD (Zhang et al. 2015)",
        version: None,
        dials: &[DECENTRALIZED, ASYNCHRONOUS, SERVER, ELASTIC, OWN_ROWS, EVERY],
        summary: "Every worker trains a model of its own; every 10 steps, at its own speed, it and the centre on a server move towards each other by min(0.9/n, 1/2) of their difference.",
        when: "Workers differ in speed and links are slow, and a single published model is wanted.",
        covers: &[
            OWN_MODELS,
            CENTRE,
            MASTER,
            FORCE,
            TAU,
            AVERAGED_STATISTICS,
            LOST,
            (UPDATE_RULE, "elastic_averaging_follows_its_reference"),
        ],
        missing: &[LOSS_OF_A_SERVER],
    },
    Preset {
        name: "eamsgd",
        system: "EAMSGD (Zhang et al. 2015)",
        version: None,
        dials: &[
            DECENTRALIZED,
            ASYNCHRONOUS,
            SERVER,
            ELASTIC,
            OWN_ROWS,
            EVERY,
            Dial::default("train.optimizer.kind", Text("nesterov")),
            Dial::default("train.optimizer.lr", Float(0.01)),
            Dial::default("train.optimizer.momentum", Float(0.9)),
        ],
        summary: "EASGD whose workers take Nesterov momentum steps.",
        when: "As for easgd, where momentum learns faster.",
        covers: &[
            OWN_MODELS,
            CENTRE,
            MASTER,
            FORCE,
            TAU,
            ("Nesterov momentum of each worker's own", "train.optimizer.kind"),
            AVERAGED_STATISTICS,
            LOST,
            (UPDATE_RULE, "elastic_averaging_follows_its_reference"),
        ],
        missing: &[
            "momentum 0.99, with which the paper's runs are fastest: set train.optimizer.momentum",
            LOSS_OF_A_SERVER,
        ],
    },
    Preset {
        name: "deepspark",
        system: "DeepSpark (Kim et al. 2016)",
        version: None,
        dials: &[
            DECENTRALIZED,
            Dial::fixed("strategy.scheduling.kind", Text("async")),
            SERVER,
            ELASTIC,
            OWN_ROWS,
            EVERY,
            Dial::default("strategy.merge.adaptive_alpha", Bool(true)),
            Dial::default("strategy.merge.beta", Rule(BETA)),
        ],
        summary: "EASGD whose workers move to the centre by more the farther they are from it than usual.",
        when: "As for easgd, where workers differ in speed or in their data and some drift away.",
        covers: &[
            OWN_MODELS,
            ("workers that visit the centre at their own speed", "strategy.scheduling.kind"),
            MASTER,
            FORCE,
            TAU,
            ("an alpha that adapts at every visit", "strategy.merge.adaptive_alpha"),
            ("a slower centre, so that alpha is never below beta", "strategy.merge.beta"),
            AVERAGED_STATISTICS,
            LOST,
            (UPDATE_RULE, "an_adaptive_alpha_follows_its_reference"),
        ],
        missing: &[
            "its rule for alpha: the one here is ours, by the norm of the difference",
            "Spark's data sets and Caffe's solvers",
            LOSS_OF_A_SERVER,
        ],
    },
    Preset {
        name: "tree-easgd",
        system: "EASGD Tree (Zhang et al. 2015; Langer et al. 2020, Figure 16)",
        version: None,
        dials: &[
            DECENTRALIZED,
            Dial::fixed("strategy.scheduling.kind", Text("async")),
            Dial::fixed("strategy.exchange.kind", Text("tree")),
            ELASTIC,
            OWN_ROWS,
            Dial::default("strategy.tree.children", Integer(2)),
            Dial::default("strategy.tree.up", Integer(10)),
            Dial::default("strategy.tree.down", Integer(10)),
            Dial::default("strategy.tree.scale", Integer(2)),
        ],
        summary: "Workers form a binary tree; every 10 steps a leaf sends its model to its parent and a parent to its children, less often above, and who receives one moves towards it.",
        when: "As for easgd, with more workers than one server can answer; no rank is spent on a server.",
        covers: &[
            ("a model and optimizer state per worker, the root's published", "strategy.optimization"),
            ("no worker waits for another, but where all meet", "strategy.scheduling.kind"),
            ("all nodes of the tree are workers", "strategy.exchange.kind"),
            ("who receives a model moves towards it", "strategy.merge.kind"),
            ("children of a worker", "strategy.tree.children"),
            ("tau_up of the leaves", "strategy.tree.up"),
            ("tau_down of their parents", "strategy.tree.down"),
            ("tau by depth", "strategy.tree.scale"),
            AVERAGED_STATISTICS,
            ("a tree that is repaired after a loss", "seeds_keep_promises_of_tree_easgd"),
            ("models that stay in the convex hull", "without_a_gradient_models_stay_in_the_convex_hull"),
            (UPDATE_RULE, "tree_easgd_follows_its_reference"),
        ],
        missing: &[
            "messages queued for a receiver that is behind: here the oldest is merged and a new one is skipped",
            "an epoch's end without a meeting: here all workers meet then, and for each checkpoint",
        ],
    },
];
