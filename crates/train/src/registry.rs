//! The strategies: by which dials a job chooses one, what it can do, which other settings it refuses, its program.
//!
//! Nothing else branches on the kind of a strategy: other code asks for the [`Claims`] of the job's.

use crate::centralized::allreduce::AllReduce;
use crate::centralized::bounded;
use crate::centralized::parameter_server::{self, AsynchronousWorker, Parameters};
use crate::roles::Roles;
use crate::serving::{clocked, leased};
use crate::strategy::Strategy;
use std::ops::Range;
use thalweg_core::spec::engine::MAX_WORKERS;
use thalweg_core::spec::merge::MergeKind;
use thalweg_core::spec::strategy::{Exchange, Optimization, Scheduling};
use thalweg_core::spec::{JobLayers, Refuse};
use thalweg_core::{Job, JobSpec, Result};
use thalweg_graph::Optimizer;

mod check;
mod claims;
mod decentralized;
mod dials;
mod reproducible;
mod served;

pub use claims::{AllReduced, Arrived, Claims, Work};
pub use dials::Dials;

/// What the strategy of a rank is made from.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) job: &'a JobSpec,
    pub(crate) optimizer: &'a Optimizer,
    /// Of the model.
    pub(crate) parameters: usize,
    /// What this rank serves, if it is a server.
    pub(crate) serves: Option<&'a Range<usize>>,
}

/// Makes the strategy of one rank.
type Constructor = fn(Setup<'_>) -> Box<dyn Strategy>;

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
    pub(crate) fn start(&self, setup: Setup<'_>) -> Box<dyn Strategy> {
        (self.start)(setup)
    }
}

const CENTRALIZED: &[Registration] = &[
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
        start: |of| Box::new(AllReduce::new(of.optimizer, of.parameters)),
    },
    Registration {
        name: "single",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Bsp,
            exchange: Exchange::None,
            merge: MergeKind::None,
        },
        claims: Claims {
            elastic: false,
            all_reduced: AllReduced::Nothing,
            buckets: false,
            ..Claims::ALLREDUCE
        },
        sections: &[],
        check: check::one_worker,
        start: |of| Box::new(AllReduce::new(of.optimizer, of.parameters)),
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
            all_reduced: AllReduced::Nothing,
            splits_by_speed: false,
            synchronizes_statistics: false,
            shards: true,
            ..Claims::ALLREDUCE
        },
        sections: &["strategy.servers"],
        check: served::whole_norm,
        start: |of| match of.serves {
            Some(shard) => {
                let parameters = Parameters::new(of.optimizer, of.parameters);
                Box::new(clocked::Server::new(of.job, parameters).of_shard(shard.clone()))
            }
            None => Box::new(parameter_server::Worker::new(of.optimizer, of.parameters)),
        },
    },
    Registration {
        name: "parameter-server-async",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Async,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::None,
        },
        claims: Claims::SERVED,
        sections: &["strategy.mitigation", "strategy.servers"],
        check: served::mitigation,
        start: |of| match of.serves {
            Some(shard) => {
                let parameters = Parameters::new(of.optimizer, of.parameters).with(of.job);
                let server = leased::Server::new(of.job, parameters, of.job.scheduling.n_push);
                Box::new(server.of_shard(shard.clone()))
            }
            None => Box::new(AsynchronousWorker::new(of)),
        },
    },
    Registration {
        name: "parameter-server-ssp",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Ssp,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::None,
        },
        claims: Claims::SERVED,
        sections: &["strategy.mitigation", "strategy.servers"],
        check: served::mitigation,
        start: bounded::start,
    },
    Registration {
        name: "parameter-server-essp",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Essp,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::None,
        },
        claims: Claims::SERVED,
        sections: &["strategy.mitigation", "strategy.servers"],
        check: served::eager,
        start: bounded::start,
    },
    Registration {
        name: "parameter-server-quorum",
        dials: Dials {
            optimization: Optimization::Centralized,
            scheduling: Scheduling::Quorum,
            exchange: Exchange::ParameterServer,
            merge: MergeKind::None,
        },
        claims: Claims::SERVED,
        sections: &["strategy.servers"],
        check: served::whole_norm,
        start: bounded::start,
    },
];

/// Every strategy.
pub fn all() -> impl Iterator<Item = &'static Registration> + Clone {
    CENTRALIZED.iter().chain(decentralized::ENTRIES)
}

/// The strategy that a job's dials choose; None if no strategy has them.
pub fn find(job: &JobSpec) -> Option<&'static Registration> {
    let dials = Dials::of(job);
    all().find(|strategy| strategy.dials == dials)
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

/// Number of server ranks: they hold parameters and compute no gradients.
pub fn servers(job: &JobSpec) -> usize {
    find(job).map_or(0, |strategy| match strategy.claims.shards {
        true => job.servers.count,
        false => strategy.claims.servers,
    })
}

/// The same for a job that is not resolved yet; errors are reported when it is.
pub fn servers_of_layers(layers: JobLayers) -> usize {
    servers(&Job::peek(layers))
}

/// Member ids of the servers.
pub fn server_ids(job: &JobSpec) -> Range<usize> {
    Roles::of(job).servers()
}

/// Steps of a commit unit, if it does not end early.
pub fn unit_steps(job: &JobSpec) -> u64 {
    if find(job).is_some_and(|strategy| strategy.claims.rounds) { job.merge.every as u64 } else { 1 }
}

/// How many steps members may be apart that report between two generations: those of a commit unit, or of models in a
/// graph. Workers at their own speed know the step of the last meeting, any number of steps before that of the others.
pub fn steps_apart(job: &JobSpec) -> u64 {
    match find(job) {
        Some(strategy) if strategy.claims.at_own_speed() => u64::MAX,
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
mod tests;
