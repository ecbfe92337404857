//! `cargo xtask bench`: benchmarks with targets.

mod against;
mod allreduce;
mod checkpoint;
mod compute;
mod ddp;
mod decentralized;
mod hosts;
mod measurement;
mod mnist;
mod observed_job;
mod paramserver;
mod peer;
mod trust;

use crate::command::Outcome;
use clap::{Args, Subcommand};

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// Training speed and memory compared with PyTorch
    Compute(compute::Arguments),
    /// Time from a failure to the end of the job: a killed, a stopped, a missing worker, Ctrl-C
    Trust(trust::Arguments),
    /// Training on several workers compared with PyTorch's DistributedDataParallel
    Ddp(ddp::Arguments),
    /// Jobs killed during a checkpoint: where they resume, and how long a checkpoint blocks training
    Checkpoint(checkpoint::Arguments),
    /// Time of an all-reduce, in shared memory or over tcp, compared with Open MPI and Gloo
    Allreduce(allreduce::Arguments),
    /// Pushes to and pulls from a parameter server compared with PyTorch RPC and a plain TCP stream
    Paramserver(paramserver::Arguments),
    /// Several hosts on slow links: all-reduce compared with a plain TCP stream, overlap, a disconnected host
    Hosts(hosts::Arguments),
    /// Accuracy and distance of the workers over virtual time, for every decentralized strategy on the simulated network; draws
    /// docs/decentralized.svg
    Decentralized(decentralized::Arguments),
    /// One end of a plain TCP stream
    #[command(hide = true)]
    Stream(hosts::stream::Arguments),
}

pub fn run(arguments: &Arguments) -> Outcome {
    match &arguments.subject {
        Subject::Compute(arguments) => compute::run(arguments),
        Subject::Ddp(arguments) => ddp::run(arguments),
        Subject::Trust(arguments) => trust::run(arguments),
        Subject::Checkpoint(arguments) => checkpoint::run(arguments),
        Subject::Allreduce(arguments) => allreduce::run(arguments),
        Subject::Paramserver(arguments) => paramserver::run(arguments),
        Subject::Decentralized(arguments) => decentralized::run(arguments),
        Subject::Hosts(arguments) => hosts::run(arguments),
        Subject::Stream(arguments) => hosts::stream::run(arguments),
    }
}
