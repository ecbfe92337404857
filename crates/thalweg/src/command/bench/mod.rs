//! `thalweg bench`: measurements of this machine with the code that jobs run; one file per subject.

use clap::{Args, Subcommand};
use thalweg_core::Result;

pub mod allreduce;
pub mod messages;
pub mod paramserver;
mod ranks;
pub mod train;
mod workload;

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand, Debug)]
enum Subject {
    /// How long an all-reduce takes between ranks of this machine
    Allreduce(allreduce::AllreduceArgs),
    /// How long messages and an all-reduce take, alone and at once
    Messages(messages::MessagesArgs),
    /// How fast workers push gradients to servers and pull parameters
    Paramserver(paramserver::ParamserverArgs),
    /// Training rows per second of a few well-known networks on synthetic data
    Train(train::TrainBenchArgs),
}

/// Measures and prints; returns the exit code.
pub fn run(args: &BenchArgs) -> Result<u8> {
    match &args.subject {
        Subject::Allreduce(args) => allreduce::run(args).map(|()| 0),
        Subject::Messages(args) => messages::run(args).map(|()| 0),
        Subject::Paramserver(args) => paramserver::run(args).map(|()| 0),
        Subject::Train(args) => train::run(args),
    }
}
