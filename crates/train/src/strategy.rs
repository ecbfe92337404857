//! From the dials to the program: the one place where a strategy is registered.

use crate::centralized::{allreduce, single};
use crate::worker::Worker;
use thalweg_core::JobSpec;
use thalweg_core::Result;
use thalweg_core::spec::strategy::{Algorithm, Exchange, Optimization, Scheduling};

/// What runs on every rank.
pub type Program = fn(&mut Worker<'_>) -> Result<()>;

/// The program the dials ask for. Combinations that make no sense were refused when the job was read.
pub fn program(job: &JobSpec) -> Program {
    match (job.strategy.optimization, job.scheduling.kind, job.exchange.kind) {
        (Optimization::Centralized, Scheduling::Bsp, Exchange::Allreduce) => allreduce::program,
        (Optimization::Centralized, Scheduling::Bsp, Exchange::None) => single::program,
    }
}

/// The schedule an exchange uses, from a fixed table: part of the report, so that a run can be repeated.
pub fn algorithm(job: &JobSpec) -> &'static str {
    match (job.exchange.kind, job.exchange.algorithm) {
        (Exchange::None, _) => "none",
        (Exchange::Allreduce, _) if job.engine.workers == 1 => "none",
        (Exchange::Allreduce, Algorithm::Auto | Algorithm::Ring) => "ring",
    }
}
