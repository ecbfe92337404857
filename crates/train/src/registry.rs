//! The strategies: by which dials a job chooses one, what it can do, which other settings it refuses, its program.
//!
//! Nothing else branches on the kind of a strategy: other code asks for the [`Claims`] of the job's.

use crate::centralized::allreduce::AllReduce;
use crate::centralized::parameter_server::ParameterServer;
use crate::decentralized::block_momentum::BlockMomentum;
use crate::decentralized::diloco::DiLoCo;
use crate::decentralized::dpsgd::{self, Dpsgd};
use crate::decentralized::gosgd::GoSgd;
use crate::decentralized::sparknet::SparkNet;
use crate::strategy::Strategy;
use thalweg_core::spec::engine::MAX_WORKERS;
use thalweg_core::spec::merge::MergeKind;
use thalweg_core::spec::strategy::{Exchange, Optimization, Scheduling};
use thalweg_core::spec::{JobLayers, Refuse};
use thalweg_core::{Job, JobSpec, Result};
use thalweg_graph::Optimizer;

mod check;
mod reproducible;

/// Makes the strategy of one rank, for a model with that many parameters.
type Constructor = fn(&Optimizer, usize) -> Box<dyn Strategy>;

/// A strategy.
pub struct Registration {
    pub name: &'static str,
    /// A job with these dials is run by it.
    pub dials: Dials,
    pub claims: Claims,
    /// The sections of a family of strategies that it reads (`FAMILIES`).
    pub sections: &'static [&'static str],
    /// Further reasons to refuse a job that has its dials.
    check: fn(&JobSpec, &mut Refuse<'_>),
    start: Constructor,
}

impl Registration {
    /// The strategy on one rank; its state is filled afterwards.
    pub(crate) fn start(&self, optimizer: &Optimizer, parameters: usize) -> Box<dyn Strategy> {
        (self.start)(optimizer, parameters)
    }
}

/// The settings that choose a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dials {
    pub optimization: Optimization,
    pub scheduling: Scheduling,
    pub exchange: Exchange,
    pub merge: MergeKind,
}

impl Dials {
    pub fn of(job: &JobSpec) -> Dials {
        Dials {
            optimization: job.strategy.optimization,
            scheduling: job.scheduling.kind,
            exchange: job.exchange.kind,
            merge: job.merge.kind,
        }
    }

    /// Keys and values. Later keys say more about what a job is for.
    fn named(self) -> [(&'static str, &'static str); 4] {
        [
            ("strategy.optimization", self.optimization.name()),
            ("strategy.scheduling.kind", self.scheduling.name()),
            ("strategy.exchange.kind", self.exchange.name()),
            ("strategy.merge.kind", self.merge.name()),
        ]
    }
}

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

/// The steps until rows of a worker are in the model of each of the members with these ids; None if they never are.
pub type Reach = fn(&JobSpec, members: &[usize], worker: usize) -> Vec<Option<u64>>;

/// What a strategy can do.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// Ranks that hold parameters and compute no gradients; they have the lowest ranks.
    pub servers: usize,
    /// Training continues when a worker is lost.
    pub elastic: bool,
    pub all_reduced: AllReduced,
    /// The commit unit is a round of `merge.every` steps, not a step.
    pub rounds: bool,
    /// All ranks start from the same parameters, which is checked.
    pub equal_start: bool,
    /// A step's summary proves on every rank which rows were computed.
    pub proves_rows: bool,
    /// Workers have rows of their own and no unit in common: they meet when the coordinator calls them.
    pub local_rows: bool,
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
    pub own_models: Option<Reach>,
    /// Why `train.reproducible` is refused; None if every world size can give the same bits.
    pub irreproducible: Option<&'static str>,
}

impl Claims {
    /// Synchronous data parallelism among equal workers.
    const ALLREDUCE: Claims = Claims {
        servers: 0,
        elastic: true,
        all_reduced: AllReduced::Gradients,
        rounds: false,
        equal_start: true,
        proves_rows: true,
        local_rows: false,
        sends_messages: false,
        deterministic: true,
        splits_by_speed: true,
        synchronizes_statistics: true,
        local_updates: false,
        own_models: None,
        irreproducible: None,
    };

    /// Rounds of local training, after which all workers merge their models.
    pub const LOCAL_ROUNDS: Claims = Claims {
        all_reduced: AllReduced::Parameters,
        rounds: true,
        splits_by_speed: false,
        synchronizes_statistics: false,
        local_updates: true,
        irreproducible: Some(
            "workers train models of their own between two merges, so the result depends on the world size; use `allreduce`",
        ),
        ..Claims::ALLREDUCE
    };
}

const ALL: &[Registration] = &[
    Registration {
        name: "allreduce",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::None,
        },
        claims: Claims::ALLREDUCE,
        sections: &[],
        check: |_, _| (),
        start: |optimizer, length| Box::new(AllReduce::new(optimizer, length)),
    },
    Registration {
        name: "single",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::None,
            merge: MergeKind::None,
        },
        claims: Claims { elastic: false, all_reduced: AllReduced::Nothing, ..Claims::ALLREDUCE },
        sections: &[],
        check: check::one_worker,
        start: |optimizer, length| Box::new(AllReduce::new(optimizer, length)),
    },
    Registration {
        name: "parameter-server",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::None,
        },
        claims: Claims {
            servers: 1,
            elastic: false,
            all_reduced: AllReduced::Nothing,
            proves_rows: false,
            splits_by_speed: false,
            synchronizes_statistics: false,
            irreproducible: Some(
                "a `parameter-server` sums gradients worker by worker, so the sum depends on the world size; use `allreduce`",
            ),
            ..Claims::ALLREDUCE
        },
        sections: &[],
        check: |_, _| (),
        start: |optimizer, length| Box::new(ParameterServer::new(optimizer, length)),
    },
    Registration {
        name: "gosgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::Gossip,
            merge: MergeKind::None,
        },
        claims: Claims {
            equal_start: false,
            all_reduced: AllReduced::Parameters,
            proves_rows: false,
            local_rows: true,
            sends_messages: true,
            deterministic: false,
            splits_by_speed: false,
            synchronizes_statistics: false,
            local_updates: true,
            irreproducible: Some(
                "the result of `gossip` depends on the world size, as workers have separate parameters; use `allreduce`",
            ),
            ..Claims::ALLREDUCE
        },
        sections: &["strategy.gossip"],
        check: |_, _| (),
        start: |optimizer, length| Box::new(GoSgd::new(optimizer, length)),
    },
    Registration {
        name: "dpsgd",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Neighbours,
            merge: MergeKind::None,
        },
        claims: Claims {
            own_models: Some(dpsgd::reach),
            sends_messages: true,
            all_reduced: AllReduced::Parameters,
            equal_start: false,
            proves_rows: false,
            splits_by_speed: false,
            synchronizes_statistics: false,
            local_updates: true,
            irreproducible: Some(
                "workers average models of their own with `neighbours`, so the result depends on the world size; use `allreduce`",
            ),
            ..Claims::ALLREDUCE
        },
        sections: &["strategy.neighbours"],
        check: check::connected_graph,
        start: |optimizer, length| Box::new(Dpsgd::new(optimizer, length)),
    },
    Registration {
        name: "sparknet",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::Mean,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: check::plain_mean,
        start: |optimizer, length| Box::new(SparkNet::new(optimizer, length)),
    },
    Registration {
        name: "block-momentum",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::BlockMomentum,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: |_, _| (),
        start: |optimizer, length| Box::new(BlockMomentum::new(optimizer, length)),
    },
    Registration {
        name: "diloco",
        dials: Dials {
            optimization: Optimization::Decentralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::Allreduce,
            merge: MergeKind::OuterNesterov,
        },
        claims: Claims::LOCAL_ROUNDS,
        sections: &["strategy.merge"],
        check: |_, _| (),
        start: |optimizer, length| Box::new(DiLoCo::new(optimizer, length)),
    },
];

/// Every strategy.
pub fn all() -> &'static [Registration] {
    ALL
}

/// The strategy that a job's dials choose; None if no strategy has them.
pub fn find(job: &JobSpec) -> Option<&'static Registration> {
    let dials = Dials::of(job);
    ALL.iter().find(|strategy| strategy.dials == dials)
}

/// The strategy of a resolved job.
///
/// # Panics
///
/// If no strategy has the dials of the job: [`resolve`] refuses such jobs.
pub fn of(job: &JobSpec) -> &'static Registration {
    find(job).expect("resolved jobs have a strategy")
}

/// Resolves file and command line, and checks the job by the rules of keys and of its strategy. The error lists all
/// problems at once.
pub fn resolve(layers: JobLayers) -> Result<Job> {
    Job::resolve_with(layers, &check::check)
}

/// Number of server ranks: they hold parameters, compute no gradients and have the lowest ranks.
pub fn servers(job: &JobSpec) -> usize {
    find(job).map_or(0, |strategy| strategy.claims.servers)
}

/// The same for a job that is not resolved yet; errors are reported when it is.
pub fn servers_of_layers(layers: JobLayers) -> usize {
    servers(&Job::peek(layers))
}

/// Steps of a commit unit, if it does not end early.
pub fn unit_steps(job: &JobSpec) -> u64 {
    if find(job).is_some_and(|strategy| strategy.claims.rounds) { job.merge.every as u64 } else { 1 }
}

/// How many steps members may be apart that report between two generations: those of a commit unit, or of models in a
/// graph. Workers at their own speed know the step of the last meeting, any number of steps before that of the others.
pub fn steps_apart(job: &JobSpec) -> u64 {
    match find(job) {
        Some(strategy) if strategy.claims.local_rows => u64::MAX,
        // The diameter of a graph of all workers that a job can have.
        Some(strategy) if strategy.claims.own_models.is_some() => MAX_WORKERS as u64,
        _ => unit_steps(job),
    }
}

/// Workers and servers.
pub fn ranks(job: &JobSpec) -> usize {
    job.engine.workers + servers(job)
}

/// Whether training continues when a worker is lost: if the strategy can, and not on every transport.
pub fn is_elastic(job: &JobSpec) -> bool {
    let can = find(job).is_some_and(|strategy| strategy.claims.elastic);
    job.fault.elastic && can && job.exchange.transport.can_regroup()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_cluster::AllReduceMethod;
    use thalweg_core::spec::setting::Setting;
    use thalweg_core::spec::strategy;

    #[test]
    fn every_strategy_has_dials_and_a_name_of_its_own() {
        for (index, one) in ALL.iter().enumerate() {
            for other in &ALL[index + 1..] {
                assert!(one.name != other.name && one.dials != other.dials, "{} twice", one.name);
            }
        }
        assert_eq!(of(&JobSpec::default()).name, "allreduce");
    }

    #[test]
    fn every_name_of_the_job_is_an_algorithm_but_auto() {
        for (name, _) in strategy::Algorithm::choices() {
            assert_eq!(AllReduceMethod::named(name).is_none(), *name == "auto", "{name}");
        }
        assert_eq!(strategy::Algorithm::choices().len(), AllReduceMethod::all().count() + 1);
    }
}
