//! From the dials to the program: the one place where a strategy is registered.

use crate::centralized::{allreduce, parameter_server, single};
use crate::decentralized::gosgd;
use crate::worker::Worker;
use thalweg_cluster::{Method, Rank};
use thalweg_core::JobSpec;
use thalweg_core::Result;
use thalweg_core::spec::strategy::Exchange;

/// What runs on every rank.
pub type Program = fn(&mut Worker<'_>) -> Result<()>;

/// The program the dials ask for. Combinations that make no sense were refused when the job was read.
pub fn program(job: &JobSpec) -> Program {
    match job.exchange.kind {
        Exchange::Allreduce => allreduce::program,
        Exchange::ParameterServer => parameter_server::program,
        Exchange::Gossip => gosgd::program,
        Exchange::None => single::program,
    }
}

/// The way an exchange of so many bytes is carried out: what the job says, or the transport's own, or the choice of a fixed
/// table. It depends on nothing but the job and the model, which all ranks have agreed on; it is part of the report, so that
/// a run can be repeated. Nothing if nothing is exchanged.
pub fn method(job: &JobSpec, bytes: usize, rank: &Rank) -> Option<Method> {
    match job.exchange.kind {
        // Gossip, too, adds up when the workers meet.
        Exchange::Allreduce | Exchange::Gossip if rank.world() > 1 => {
            let asked = Method::named(job.exchange.algorithm.name());
            Some(asked.unwrap_or_else(|| rank.choose_method(bytes)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::spec::setting::Setting;
    use thalweg_core::spec::strategy;

    #[test]
    fn every_name_of_the_job_is_an_algorithm_but_auto() {
        for (name, _) in strategy::Algorithm::choices() {
            assert_eq!(Method::named(name).is_none(), *name == "auto", "{name}");
        }
        assert_eq!(strategy::Algorithm::choices().len(), Method::all().count() + 1);
    }
}
