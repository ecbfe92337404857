//! `thalweg bench`: measurements of this machine with the code that training uses, one file per subject.

pub mod allreduce;

use clap::{Args, Subcommand};
use thalweg_core::Result;

/// What `bench` takes.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand, Debug)]
enum Subject {
    /// How long an all-reduce takes between ranks of this machine
    Allreduce(allreduce::AllreduceArgs),
}

/// Measures it.
pub fn run(args: &BenchArgs) -> Result<()> {
    match &args.subject {
        Subject::Allreduce(args) => allreduce::run(args),
    }
}
