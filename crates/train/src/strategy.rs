//! From the dials to the program: the one place where a strategy is registered.

use crate::centralized::{allreduce, parameter_server, single};
use crate::decentralized::gosgd;
use crate::worker::Worker;
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

#[cfg(test)]
mod tests {
    use thalweg_cluster::AllReduceMethod;
    use thalweg_core::spec::setting::Setting;
    use thalweg_core::spec::strategy;

    #[test]
    fn every_name_of_the_job_is_an_algorithm_but_auto() {
        for (name, _) in strategy::Algorithm::choices() {
            assert_eq!(AllReduceMethod::named(name).is_none(), *name == "auto", "{name}");
        }
        assert_eq!(strategy::Algorithm::choices().len(), AllReduceMethod::all().count() + 1);
    }
}
