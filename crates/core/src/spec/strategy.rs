//! `[strategy]`: how the work is distributed. A preset, or the dials one by one.

use super::JobSpec;
use super::bucket::Bucket;
use super::section::section;
use super::setting::{Auto, choice};

choice! {
    /// Who holds the optimizer's state.
    Optimization {
        /// One state per parameter, the same for all workers.
        Centralized = "centralized",
        /// Every worker has its own, and its own parameters; they are drawn towards each other.
        Decentralized = "decentralized",
    }
}

choice! {
    /// When a worker may go on.
    Scheduling {
        /// When all have finished the step (bulk synchronous parallel).
        Bsp = "bsp",
        /// At any time.
        Async = "async",
    }
}

choice! {
    /// How gradients meet.
    Exchange {
        /// Every worker gets the sum.
        Allreduce = "allreduce",
        /// A rank of its own adds them up, updates the parameters and hands them out.
        ParameterServer = "parameter-server",
        /// They don't: workers send their parameters to each other at random.
        Gossip = "gossip",
        /// They don't: there is one worker.
        None = "none",
    }
}

choice! {
    /// Which schedule carries out an all-reduce.
    Algorithm {
        /// On one host in shared memory, without messages; on mpi `native`; else chosen from a fixed table by size and
        /// number of workers. The report records it.
        Auto = "auto",
        /// Around a ring in 2 (n - 1) steps; each worker sends 2 (n - 1) / n of the bytes.
        Ring = "ring",
        /// Up a binomial tree to rank 0 and down again in 2 log2 n steps, the fewest messages.
        BinomialTree = "binomial-tree",
        /// Whole gradients with 1, 2, 4, ... ranks away, in log2 n steps.
        RecursiveDoubling = "recursive-doubling",
        /// Halves, quarters, ... exchanged and added, then gathered: the ring's bytes in 2 log2 n steps.
        HalvingDoubling = "halving-doubling",
        /// Everybody sums 1/n of the gradient for all: two steps, n - 1 messages at once.
        Direct = "direct",
        /// A tree within each host, a ring between hosts.
        Hierarchical = "hierarchical",
        /// The all-reduce of the transport itself: only on mpi.
        Native = "native",
    }
}

choice! {
    /// What carries bytes between ranks.
    Carrier {
        /// Shared memory between ranks of one host, tcp between hosts; tcp where memory cannot be shared, with a notice.
        Auto = "auto",
        /// The same, but ranks of one host that cannot share memory end the job.
        Shm = "shm",
        /// Tcp between all.
        Tcp = "tcp",
        /// The MPI of the cluster, between ranks that its mpirun started; in builds with `--features mpi`.
        Mpi = "mpi",
    }
}

choice! {
    /// How many rows of a step each worker computes.
    Split {
        /// As many as the others, give or take one.
        Even = "even",
        /// In proportion to how fast it was lately: slow workers get fewer rows, and no gradient weighs more for it. Unless
        /// train.reproducible is set, the bits then depend on the times measured.
        Speed = "speed",
    }
}

section! {
    /// How the work is distributed.
    "strategy" StrategySpec {
        /// The name of a preset: see `thalweg strategies`.
        preset: String = "allreduce".into();
        /// Who holds the optimizer's state.
        optimization: Optimization = Optimization::Centralized;
        /// How many rows of a step each worker computes.
        split: Split = Split::Even;
        /// Before the first step, try buckets and algorithms on this very group and model for some seconds and take the fastest, instead of the fixed table: two runs may then differ in their last bits.
        tune: bool = false;
    }
}

section! {
    /// How many ways the work is cut.
    "strategy.parallelism" ParallelismSpec {
        /// Workers that share the rows of a step; auto: all of them.
        data: Auto<usize> = Auto::Auto;
    }
}

section! {
    /// When a worker may go on.
    "strategy.scheduling" SchedulingSpec {
        /// The rule.
        kind: Scheduling = Scheduling::Bsp;
    }
}

section! {
    /// How gradients meet.
    "strategy.exchange" ExchangeSpec {
        /// The way.
        kind: Exchange = Exchange::Allreduce;
        /// Which schedule carries it out.
        algorithm: Algorithm = Algorithm::Auto;
        /// All-reduce by messages: the gradient leaves in pieces of about this size, each as soon as back-propagation has finished its tensors. auto: from a fixed table by the size of the gradient. tensor: every tensor on its own. whole: all of it after the pass. A size or tensor on one host means messages there, too, instead of sums in shared memory.
        bucket: Bucket = Bucket::Auto;
        /// What carries bytes between ranks.
        transport: Carrier = Carrier::Auto;
        /// Gossip: how likely a worker is to send its parameters to another one after a step.
        probability: f64 = 0.1;
    }
}

impl Carrier {
    /// Whether a group on it can lose or gain members: with MPI a lost rank ends the job.
    pub fn can_regroup(self) -> bool {
        self != Carrier::Mpi
    }
}

impl JobSpec {
    /// Ranks that hold parameters for the workers and compute no gradients; they come first.
    pub fn servers(&self) -> usize {
        usize::from(self.exchange.kind == Exchange::ParameterServer)
    }

    /// Whether the other workers go on when one is lost. Only an all-reduce can, and not every transport.
    pub fn is_elastic(&self) -> bool {
        self.fault.elastic
            && self.exchange.kind == Exchange::Allreduce
            && self.exchange.transport.can_regroup()
    }

    /// All ranks: workers and those who serve them.
    pub fn ranks(&self) -> usize {
        self.engine.workers + self.servers()
    }
}

/// The dials that go together.
pub(super) fn check(spec: &JobSpec, complain: &mut dyn FnMut(&str, String)) {
    use Exchange::{Allreduce, Gossip, None, ParameterServer};
    let (optimization, scheduling, exchange) =
        (spec.strategy.optimization, spec.scheduling.kind, spec.exchange.kind);
    let decentralized = optimization == Optimization::Decentralized;
    match exchange {
        Allreduce | ParameterServer | None if decentralized => complain(
            "strategy.optimization",
            format!("`decentralized` workers exchange by `gossip`, not by `{}`", exchange.name()),
        ),
        Gossip if !decentralized => complain(
            "strategy.exchange.kind",
            "`gossip` is between workers with parameters of their own: set strategy.optimization = \"decentralized\""
                .into(),
        ),
        _ if decentralized != (scheduling == Scheduling::Async) => complain(
            "strategy.scheduling.kind",
            format!("`{}` workers are not scheduled `{}`", optimization.name(), scheduling.name()),
        ),
        _ => {}
    }
    if spec.exchange.algorithm == Algorithm::Native && spec.exchange.transport != Carrier::Mpi {
        let reason = format!(
            "`native` is an all-reduce of the transport itself, and `{}` has none: set strategy.exchange.transport = \"mpi\"",
            spec.exchange.transport.name()
        );
        complain("strategy.exchange.algorithm", reason);
    }
    let cut = matches!(spec.exchange.bucket, Bucket::Tensor | Bucket::Bytes(_));
    if spec.exchange.algorithm == Algorithm::Native && cut {
        let reason = "`native` takes the gradient whole; drop this key, or name another algorithm";
        complain("strategy.exchange.bucket", reason.into());
    }
    if exchange != Allreduce {
        if spec.exchange.bucket != Bucket::Auto {
            let reason =
                format!("only an all-reduce cuts the gradient into buckets, `{}` does not", exchange.name());
            complain("strategy.exchange.bucket", reason);
        }
        if spec.strategy.tune {
            complain("strategy.tune", format!("only an all-reduce is tuned, `{}` is not", exchange.name()));
        }
    }
    let probability = spec.exchange.probability;
    if !(probability > 0.0 && probability <= 1.0) {
        complain("strategy.exchange.probability", format!("must be above 0 and at most 1, is {probability}"));
    }
}
