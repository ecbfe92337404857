//! Synchronous data parallelism: one worker, or several with all-reduce.

use super::DialValue::{Float, Integer, Text};
use super::{Dial, Preset, UPDATE_RULE};

const CENTRALIZED: Dial = Dial::fixed("strategy.optimization", Text("centralized"));
const BSP: Dial = Dial::fixed("strategy.scheduling.kind", Text("bsp"));
const ALLREDUCE: Dial = Dial::fixed("strategy.exchange.kind", Text("allreduce"));
const RING: Dial = Dial::fixed("strategy.exchange.algorithm", Text("ring"));

const fn bucket(size: &'static str) -> Dial {
    Dial::fixed("strategy.exchange.bucket", Text(size))
}

/// Each worker normalises by its own rows, and rank 0's running statistics are used.
const LOCAL_STATISTICS: Dial = Dial::default("model.batchnorm", Text("local"));
const OWN_STATISTICS: (&str, &str) = (
    "batch normalisation by each worker's own rows, with the running statistics of rank 0",
    "model.batchnorm",
);

const REPLICATED: (&str, &str) = ("optimizer state replicated on every worker", "strategy.optimization");
const IN_STEP: (&str, &str) =
    ("a step starts when all workers have finished the last one", "strategy.scheduling.kind");
const SUMMED: (&str, &str) = ("gradients summed over all workers", "strategy.exchange.kind");
const ON_A_RING: (&str, &str) = ("scatter-reduce, then all-gather on a ring", "strategy.exchange.algorithm");

/// The step of a single worker, whatever the exchange.
const SAME_BITS: (&str, &str) = (UPDATE_RULE, "presets_of_the_same_mathematics_give_the_same_bits");

pub(super) const PRESETS: &[Preset] = &[
    Preset {
        name: "single",
        system: "stochastic gradient descent on one machine",
        version: None,
        dials: &[
            Dial::fixed("engine.workers", Integer(1)),
            CENTRALIZED,
            BSP,
            Dial::fixed("strategy.exchange.kind", Text("none")),
        ],
        summary: "One worker computes all rows, without exchange.",
        when: "The model trains fast enough on one core, or as the reference for other strategies.",
        covers: &[
            ("one worker computes every row", "engine.workers"),
            ("one optimizer state", "strategy.optimization"),
            ("steps one after another", "strategy.scheduling.kind"),
            ("no exchange", "strategy.exchange.kind"),
            (UPDATE_RULE, "ten_steps_match_pytorch"),
        ],
        missing: &[],
    },
    Preset {
        name: "allreduce",
        system: "synchronous data-parallel SGD with replicated optimizer state",
        version: None,
        dials: &[CENTRALIZED, BSP, ALLREDUCE, Dial::fixed("strategy.exchange.algorithm", Text("auto"))],
        summary: "Workers split the rows of each step, all-reduce their gradients and apply the same update.",
        when: "Workers are about equally fast and you want the result of a single worker, sooner.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ("the all-reduce that is fastest for the size and the hosts", "strategy.exchange.algorithm"),
            (UPDATE_RULE, "every_world_takes_the_same_steps_with_every_optimizer"),
        ],
        missing: &[],
    },
    Preset {
        name: "horovod",
        system: "Horovod (Sergeev and Del Balso 2018)",
        version: Some("Horovod 0.28"),
        dials: &[CENTRALIZED, BSP, ALLREDUCE, RING, bucket("64MiB"), LOCAL_STATISTICS],
        summary: "Ring all-reduce of gradients, fused into buffers of 64 MiB that are sent when full, with the same update on every worker.",
        when: "You come from Horovod and want the same exchange.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ON_A_RING,
            ("tensor fusion, 64 MiB by default", "strategy.exchange.bucket"),
            OWN_STATISTICS,
            SAME_BITS,
        ],
        missing: &[
            "fusion by cycle time: buckets are cut by bytes, the same in every step",
            "overlap for gradients below 64 MiB, such as those of every network in model.zoo: they are sent after back-propagation",
            "Adasum",
            "fp16 compression",
        ],
    },
    Preset {
        name: "pytorch-ddp",
        system: "PyTorch DistributedDataParallel (Li et al. 2020)",
        version: Some("PyTorch 2.9"),
        dials: &[
            CENTRALIZED,
            BSP,
            ALLREDUCE,
            RING,
            bucket("25MiB"),
            Dial::default("strategy.exchange.first_bucket", Text("64KiB")),
            LOCAL_STATISTICS,
        ],
        summary: "All-reduce of gradients in buckets, a small first one and the others of 25 MiB, sent in the order in which back-propagation finishes them.",
        when: "You come from torchrun and DistributedDataParallel.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ON_A_RING,
            ("bucket_cap_mb, 25 by default", "strategy.exchange.bucket"),
            ("a small first bucket, sent early", "strategy.exchange.first_bucket"),
            OWN_STATISTICS,
            (
                "buckets sent during back-propagation",
                "on_slow_links_most_of_the_exchange_is_hidden_and_steps_are_shorter",
            ),
            SAME_BITS,
        ],
        missing: &[
            "a first bucket of 1 MiB: here it has 64 KiB, so that most networks of model.zoo overlap, too",
            "buckets that exceed their size by the last tensor: here they end before it",
            "an order of buckets learned in the first step: here it is the reverse order of layers",
            "communication hooks",
            "join for uneven inputs (not needed here: a rank may have no row)",
        ],
    },
    Preset {
        name: "baidu",
        system: "Baidu ring all-reduce (Gibiansky 2017)",
        version: None,
        dials: &[CENTRALIZED, BSP, ALLREDUCE, RING, bucket("tensor"), LOCAL_STATISTICS],
        summary: "The first ring all-reduce for deep learning: scatter-reduce, then all-gather, tensor by tensor.",
        when: "To compare with the original: every tensor of the gradient is reduced on one ring.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ON_A_RING,
            ("every tensor reduced by itself", "strategy.exchange.bucket"),
            OWN_STATISTICS,
            ("2 (n - 1) / n of the gradient sent by every worker", "bytes_in_buckets_match_the_formula"),
            SAME_BITS,
        ],
        missing: &[],
    },
    Preset {
        name: "firecaffe",
        system: "FireCaffe (Iandola et al. 2016)",
        version: None,
        dials: &[
            CENTRALIZED,
            BSP,
            ALLREDUCE,
            Dial::fixed("strategy.exchange.algorithm", Text("binomial-tree")),
            bucket("whole"),
            LOCAL_STATISTICS,
        ],
        summary: "Gradients are summed along a binomial tree, and the sum returns along it.",
        when: "To compare a reduction tree with a ring: the fewest messages, but whole gradients in each.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ("a binomial tree in 2 log2 n rounds", "strategy.exchange.algorithm"),
            ("an exchange after the backward pass", "strategy.exchange.bucket"),
            OWN_STATISTICS,
            SAME_BITS,
        ],
        missing: &[
            "the update at the root: here the sum returns along the tree instead of the parameters, and every worker makes the same update",
        ],
    },
    Preset {
        name: "spark-mllib",
        system: "gradient descent of Spark MLlib (Meng et al. 2016)",
        version: Some("Spark 3.5"),
        dials: &[
            CENTRALIZED,
            BSP,
            ALLREDUCE,
            Dial::fixed("strategy.exchange.algorithm", Text("tree-aggregate")),
            bucket("whole"),
            LOCAL_STATISTICS,
            Dial::default("train.sample", Float(0.5)),
            Dial::default("train.schedule.kind", Text("inverse_sqrt")),
        ],
        summary: "A sample of each step's rows is computed, gradients are summed along a tree of depth 2, and the rate falls with the square root of the step.",
        when: "To compare with a cluster that runs iterative MapReduce: global_batch is the part of the data that an iteration samples from.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ("treeAggregate of depth 2, and a broadcast", "strategy.exchange.algorithm"),
            ("an exchange after the backward pass", "strategy.exchange.bucket"),
            ("miniBatchFraction: rows sampled without replacement by seed and iteration", "train.sample"),
            ("stepSize / sqrt(iteration)", "train.schedule.kind"),
            OWN_STATISTICS,
            (UPDATE_RULE, "spark_mllib_takes_the_steps_of_its_reference"),
        ],
        missing: &[
            "RDDs: partitions that are computed again from their lineage",
            "the update at the driver: here the sum returns along the tree instead of the parameters, and every worker makes the same update",
            "samples whose size is drawn, too: here a step has its share of rows exactly",
            "a broadcast from worker to worker in blocks",
            "convergence by the change of the parameters",
        ],
    },
    Preset {
        name: "caffe2",
        system: "Caffe2 with Gloo (Goyal et al. 2017)",
        version: None,
        dials: &[
            CENTRALIZED,
            BSP,
            ALLREDUCE,
            Dial::fixed("strategy.exchange.algorithm", Text("halving-doubling")),
            bucket("tensor"),
            LOCAL_STATISTICS,
        ],
        summary: "Every tensor of the gradient is reduced by recursive halving and doubling as soon as back-propagation has it.",
        when: "To compare with a ring: the same bytes in fewer rounds, for many workers or small tensors.",
        covers: &[
            REPLICATED,
            IN_STEP,
            SUMMED,
            ("recursive halving, then doubling", "strategy.exchange.algorithm"),
            ("every tensor reduced by itself, during back-propagation", "strategy.exchange.bucket"),
            OWN_STATISTICS,
            SAME_BITS,
        ],
        missing: &[
            "a sum within each host before the exchange between hosts, and the broadcast after it",
            "another algorithm (a ring in chunks) for large tensors",
        ],
    },
];
