//! `[strategy]`: how training is distributed, by a preset or by single settings.

use super::bucket::BucketSize;
use super::scheduling::{Apply, Push};
use super::section::section;
use super::setting::{Auto, Bytes, choice};
use super::{JobSpec, Refuse};

choice! {
    /// Placement of the optimizer state.
    Optimization {
        /// One optimizer state for all workers.
        Centralized = "centralized",
        /// Every worker has its own optimizer state and parameters, which are averaged over time.
        Decentralized = "decentralized",
    }
}

choice! {
    /// Synchronization between steps.
    Scheduling {
        /// Bulk synchronous parallel: a step starts when all workers have finished the last one.
        Bsp = "bsp",
        /// No synchronization.
        Async = "async",
        /// Stale synchronous parallel: a worker may be so many clocks ahead of the slowest one.
        Ssp = "ssp",
        /// The same, and the server sends the parameters ahead, whenever all workers have completed a clock.
        Essp = "essp",
        /// A step starts when some of the workers have finished the last one; what the others computed for it is dropped.
        Quorum = "quorum",
    }
}

choice! {
    /// Exchange between workers.
    Exchange {
        /// Every worker gets the sum of the gradients.
        Allreduce = "allreduce",
        /// A server rank sums the gradients, updates the parameters and sends them to the workers.
        ParameterServer = "parameter-server",
        /// Workers send their parameters to random other workers.
        Gossip = "gossip",
        /// Models walk: a worker trains a model for some steps, and sends it on to a random other worker.
        Walks = "walks",
        /// Workers send their parameters to their neighbours in a graph, and wait for theirs.
        Neighbours = "neighbours",
        /// Workers push shares of their parameters along the edges of a directed graph, with the weights of the shares.
        PushSum = "push-sum",
        /// Workers form a tree: each sends its parameters to its parent and to its children now and then.
        Tree = "tree",
        /// No exchange: there is one worker, or each has a model of its own.
        None = "none",
    }
}

choice! {
    /// All-reduce algorithms.
    Algorithm {
        /// In shared memory on one host; `native` on mpi; else from a fixed table by size and number of workers. The report
        /// records the choice.
        Auto = "auto",
        /// A ring in 2 (n - 1) steps; each worker sends 2 (n - 1) / n of the bytes.
        Ring = "ring",
        /// A binomial tree to rank 0 and back in 2 log2 n steps, the fewest messages.
        BinomialTree = "binomial-tree",
        /// Whole gradients exchanged at distances 1, 2, 4, ... in log2 n steps.
        RecursiveDoubling = "recursive-doubling",
        /// Recursive halving, then doubling: the bytes of a ring in 2 log2 n steps.
        HalvingDoubling = "halving-doubling",
        /// Each rank reduces 1/n of the gradient: two steps of n - 1 concurrent messages.
        Direct = "direct",
        /// A tree of depth 2 to rank 0 and back: groups of sqrt n workers, the first of which aggregates.
        TreeAggregate = "tree-aggregate",
        /// A tree within each host, a ring between hosts.
        Hierarchical = "hierarchical",
        /// The all-reduce of the transport: only on mpi.
        Native = "native",
    }
}

choice! {
    /// Transports.
    TransportChoice {
        /// Shared memory within a host, tcp between hosts; tcp if memory cannot be shared, with a notice.
        Auto = "auto",
        /// The same, but the job ends if ranks of one host cannot share memory.
        Shm = "shm",
        /// Tcp between all ranks.
        Tcp = "tcp",
        /// The MPI of the cluster, between ranks started by its mpirun; in builds with `--features mpi`.
        Mpi = "mpi",
    }
}

choice! {
    /// Split of the rows of a step between workers.
    Split {
        /// Even, up to one row.
        Even = "even",
        /// In proportion to the recent speed of each worker; the weight of a row does not change. Unless train.reproducible
        /// is set, the bits of the result then depend on measured times.
        Speed = "speed",
    }
}

/// Sections with the settings of one family of strategies; other strategies have no use for them.
pub const FAMILIES: [&str; 7] = [
    "strategy.ensemble",
    "strategy.gossip",
    "strategy.merge",
    "strategy.mitigation",
    "strategy.neighbours",
    "strategy.tree",
    "strategy.servers",
];

/// Settings that only some kinds of scheduling with a server have.
pub const OF_SERVERS: [&str; 10] = [
    "strategy.apply",
    "strategy.push",
    "strategy.scheduling.staleness",
    "strategy.scheduling.quorum",
    "strategy.scheduling.late",
    "strategy.scheduling.epoch_fraction",
    "strategy.scheduling.max_age",
    "strategy.scheduling.n_push",
    "strategy.scheduling.n_fetch",
    "strategy.scheduling.queue",
];

section! {
    /// How training is distributed.
    "strategy" StrategySpec {
        /// A preset: see `thalweg strategies`.
        preset: String = "allreduce".into();
        /// Placement of the optimizer state.
        optimization: Optimization = Optimization::Centralized;
        /// Split of the rows of a step between workers.
        split: Split = Split::Even;
        /// With a server: when the updates of workers have their effect. auto: per_clock with bsp and quorum, else per_push.
        apply: Auto<Apply> = Auto::Auto;
        /// With a server: what a worker pushes. auto: delta with essp, else gradient.
        push: Auto<Push> = Auto::Auto;
        /// Measures bucket sizes and algorithms for some seconds before the first step and uses the fastest, instead of a fixed table: two runs may then differ in their last bits.
        tune: bool = false;
    }
}

section! {
    /// Degrees of parallelism.
    "strategy.parallelism" ParallelismSpec {
        /// Workers that split the rows of a step; auto: all workers.
        data: Auto<usize> = Auto::Auto;
    }
}

section! {
    /// Exchange between workers.
    "strategy.exchange" ExchangeSpec {
        /// The kind of exchange.
        kind: Exchange = Exchange::Allreduce;
        /// The all-reduce algorithm.
        algorithm: Algorithm = Algorithm::Auto;
        /// Bucket size of an all-reduce by messages: each bucket is sent as soon as back-propagation has finished its tensors. auto: from a fixed table by the size of the gradient. tensor: one bucket per tensor. whole: a single bucket after the pass. A size or tensor selects messages on one host, too, instead of the all-reduce in shared memory.
        bucket: BucketSize = BucketSize::Auto;
        /// If bucket is a size: the size of the first bucket, smaller so that it is sent early. auto: like the others.
        first_bucket: Auto<Bytes> = Auto::Auto;
        /// The transport.
        transport: TransportChoice = TransportChoice::Auto;
    }
}

impl StrategySpec {
    /// When updates have their effect, with that kind of scheduling.
    pub fn apply(&self, kind: Scheduling) -> Apply {
        self.apply.or(match kind {
            Scheduling::Bsp | Scheduling::Quorum => Apply::PerClock,
            Scheduling::Async | Scheduling::Ssp | Scheduling::Essp => Apply::PerPush,
        })
    }

    /// What workers push, with that kind of scheduling.
    pub fn push(&self, kind: Scheduling) -> Push {
        self.push.or(if kind == Scheduling::Essp { Push::Delta } else { Push::Gradient })
    }
}

impl TransportChoice {
    /// Whether the group can change: MPI ends the job when a rank is lost.
    pub fn can_regroup(self) -> bool {
        self != TransportChoice::Mpi
    }
}

/// Checks that the transport has the algorithm.
pub(super) fn check(spec: &JobSpec, refuse: &mut Refuse<'_>) {
    if spec.exchange.algorithm == Algorithm::Native && spec.exchange.transport != TransportChoice::Mpi {
        let reason = format!(
            "`native` is the all-reduce of the transport, and `{}` has none: set strategy.exchange.transport = \"mpi\"",
            spec.exchange.transport.name()
        );
        refuse("strategy.exchange.algorithm", reason);
    }
    if spec.exchange.first_bucket != Auto::Auto && !matches!(spec.exchange.bucket, BucketSize::Bytes(_)) {
        let reason = "only buckets of a given size have a first one of another size; set strategy.exchange.bucket to a size, or drop this key";
        refuse("strategy.exchange.first_bucket", reason.into());
    }
    let has_buckets = matches!(spec.exchange.bucket, BucketSize::Tensor | BucketSize::Bytes(_));
    if spec.exchange.algorithm == Algorithm::Native && has_buckets {
        let reason = "`native` reduces the whole gradient; drop this key or choose another algorithm";
        refuse("strategy.exchange.bucket", reason.into());
    }
}
