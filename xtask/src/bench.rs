//! `cargo xtask bench`: measurements of what the project promises.

mod against;
mod allreduce;
mod checkpoint;
mod compute;
mod ddp;
mod hosts;
mod measurement;
mod mnist;
mod peer;
mod session;
mod trust;

use crate::command::Outcome;
use clap::{Args, Subcommand};

/// What to measure.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// Training speed and memory beside PyTorch's
    Compute(compute::Arguments),
    /// How long failures take to end a job: a killed, a stopped, a missing worker, Ctrl-C
    Trust(trust::Arguments),
    /// Training on several workers beside PyTorch's DistributedDataParallel
    Ddp(ddp::Arguments),
    /// Jobs killed in the middle of a checkpoint: what they go on from, and how long training stands still for one
    Checkpoint(checkpoint::Arguments),
    /// How long an all-reduce takes, in shared memory or over tcp, beside Open MPI and Gloo
    Allreduce(allreduce::Arguments),
    /// Several hosts on slow links: an all-reduce beside a plain TCP stream, hidden exchange, a pulled cable
    Hosts(hosts::Arguments),
    /// One end of a plain TCP stream between hosts
    #[command(hide = true)]
    Stream(hosts::stream::Arguments),
}

/// Measures it.
pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.subject {
        Subject::Compute(arguments) => compute::run(arguments),
        Subject::Ddp(arguments) => ddp::run(arguments),
        Subject::Trust(arguments) => trust::run(arguments),
        Subject::Checkpoint(arguments) => checkpoint::run(arguments),
        Subject::Allreduce(arguments) => allreduce::run(arguments),
        Subject::Hosts(arguments) => hosts::run(arguments),
        Subject::Stream(arguments) => hosts::stream::run(arguments),
    }
}
