//! What a strategy claims: other code asks for this, never for a strategy by name.

use thalweg_core::JobSpec;

/// What a strategy sums over all workers by all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduced {
    Nothing,
    /// Parameters, now and then, in one piece.
    Parameters,
    /// The gradient of every step. It is summed in shared memory, or leaves in buckets during back-propagation. Running
    /// statistics of a worker's own rows are those of rank 0 then, as in the systems that do this; else they are averaged.
    Gradients,
}

/// Which rows a worker computes next.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Its share of the rows of each step, with a unit that all have in common.
    Shares,
    /// Rows of its own, at its own speed; workers have no unit in common and meet when the coordinator calls them.
    Local,
    /// The rows of leases that have so many pieces, handed out by a server; workers meet in the same way.
    Leases(fn(&JobSpec) -> usize),
}

/// How many steps of a worker are in the model of each of the members with these ids, which have done so many steps of their
/// own; None if none are, or if the member is gone.
pub type Arrived = fn(&JobSpec, members: &[usize], worker: usize, steps: &[Option<u64>]) -> Vec<Option<u64>>;

/// What a strategy can do.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// Ranks that hold parameters and compute no gradients (`roles.rs`).
    pub servers: usize,
    /// `strategy.servers.count` of them, each with a shard of the parameters.
    pub shards: bool,
    /// Training continues when a worker is lost.
    pub elastic: bool,
    pub all_reduced: AllReduced,
    /// The gradient may leave in buckets during back-propagation.
    pub buckets: bool,
    /// The commit unit is a round of `merge.every` steps, not a step.
    pub rounds: bool,
    /// Models of the workers' own: the published one comes about when all meet for it between two units.
    pub meets: bool,
    /// What a worker computes in a unit is in no model but its own until the next unit is complete.
    pub spreads_later: bool,
    /// All ranks start from the same parameters, which is checked.
    pub equal_start: bool,
    /// Every rank starts from initial parameters of its own.
    pub own_start: bool,
    /// The published model is several models, which answer together.
    pub ensemble: bool,
    /// A step's summary proves on every rank which rows were computed.
    pub proves_rows: bool,
    pub work: Work,
    /// Workers send messages while they compute.
    pub sends_messages: bool,
    /// A repeated run with the same world has the same bits.
    pub deterministic: bool,
    /// Every worker learns how long the others computed, so that rows can be split by speed.
    pub splits_by_speed: bool,
    /// Workers can sum statistics of a layer in the middle of a pass.
    pub synchronizes_statistics: bool,
    /// Each worker updates its own parameters, by the mean gradient of its own rows.
    pub local_updates: bool,
    /// Workers keep models of their own that no merge makes equal, and no exchange of all keeps them in step.
    pub own_models: Option<Arrived>,
    /// Why `train.reproducible` is refused; None if every world size can give the same bits.
    pub irreproducible: Option<&'static str>,
}

impl Claims {
    /// Whether workers have no unit in common: they meet now and then.
    pub fn at_own_speed(&self) -> bool {
        !matches!(self.work, Work::Shares)
    }

    /// Whether workers have models that differ from the published one where that is evaluated.
    pub fn has_own_models(&self) -> bool {
        let merges_with_server = self.servers > 0 && self.local_updates;
        self.own_models.is_some() || self.meets || matches!(self.work, Work::Local) || merges_with_server
    }

    /// Whether the model that is evaluated and saved comes about only when all ranks meet for it.
    pub fn makes_published(&self, job: &JobSpec) -> bool {
        let parts = self.servers > 0 && self.local_updates || self.shards && job.servers.count > 1;
        self.at_own_speed() || self.meets || parts
    }

    /// Synchronous data parallelism among equal workers.
    pub(super) const ALLREDUCE: Claims = Claims {
        servers: 0,
        shards: false,
        elastic: true,
        all_reduced: AllReduced::Gradients,
        buckets: true,
        rounds: false,
        meets: false,
        spreads_later: false,
        equal_start: true,
        own_start: false,
        ensemble: false,
        proves_rows: true,
        work: Work::Shares,
        sends_messages: false,
        deterministic: true,
        splits_by_speed: true,
        synchronizes_statistics: true,
        local_updates: false,
        own_models: None,
        irreproducible: None,
    };

    /// A parameter server of workers at their own speed.
    pub(super) const SERVED: Claims = Claims {
        servers: 1,
        shards: true,
        all_reduced: AllReduced::Nothing,
        buckets: false,
        proves_rows: false,
        work: Work::Leases(|job| job.scheduling.n_push),
        deterministic: false,
        splits_by_speed: false,
        synchronizes_statistics: false,
        irreproducible: Some(
            "updates of workers at their own speed follow each other as they arrive; use `allreduce`",
        ),
        ..Claims::ALLREDUCE
    };

    /// Rounds of local training, after which all workers merge their models.
    pub const LOCAL_ROUNDS: Claims = Claims {
        all_reduced: AllReduced::Parameters,
        buckets: false,
        rounds: true,
        splits_by_speed: false,
        synchronizes_statistics: false,
        local_updates: true,
        irreproducible: Some(
            "workers train models of their own between two merges, so the result depends on the world size; use `allreduce`",
        ),
        ..Claims::ALLREDUCE
    };

    /// Workers with models of their own, which no merge makes equal.
    pub(super) const OWN_MODELS: Claims = Claims {
        all_reduced: AllReduced::Parameters,
        buckets: false,
        equal_start: false,
        proves_rows: false,
        sends_messages: true,
        splits_by_speed: false,
        synchronizes_statistics: false,
        local_updates: true,
        irreproducible: Some(
            "workers have models of their own, so the result depends on the world size; use `allreduce`",
        ),
        ..Claims::ALLREDUCE
    };

    /// The same at their own speed.
    pub(super) const OWN_SPEED: Claims =
        Claims { work: Work::Local, deterministic: false, ..Claims::OWN_MODELS };
}
