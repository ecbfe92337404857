//! `thalweg join`: adds a worker to a running job.

use crate::join_info::JoinInfo;
use crate::launch;
use crate::token;
use crate::trainer::Trainer;
use clap::Args;
use thalweg_core::Error;
use thalweg_core::Result;
use thalweg_core::spec::{JobLayers, paths};
use thalweg_train::registry;

/// Arguments of `join`.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Address of the job's coordinator (with its THALWEG_TOKEN), or the run folder of a job on this machine
    #[arg(value_name = "HOST:PORT|RUN")]
    target: String,
    /// Path of the job's files on this host, if different: --set data.source=/data/rows.csv
    #[arg(long, value_name = "KEY=PATH")]
    set: Vec<String>,
    /// Print warnings and errors only
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Trains as one more rank until the job or this process ends; returns the exit code.
pub fn run(args: &JoinArgs) -> Result<u8> {
    check_assignments(&args.set)?;
    let join_info = JoinInfo::find(&args.target, token::of_user()?)?;
    let (text, member) = launch::request_join(&join_info)?;
    let mut layers = JobLayers::default();
    layers.add_file("the job", &text).map_err(Error::job)?;
    for assignment in &args.set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    let job = registry::resolve(layers.clone())?;
    let trainer = Trainer::from_layers("join", layers).quiet(args.quiet);
    launch::run_joining_worker(trainer, &job, &join_info, member)
}

/// Only the paths of a job may differ between workers.
fn check_assignments(set: &[String]) -> Result<()> {
    let key = |assignment: &String| assignment.split('=').next().unwrap_or_default().trim().to_string();
    match set.iter().find(|assignment| !paths::KEYS.contains(&&*key(assignment))) {
        None => Ok(()),
        Some(other) => {
            Err(Error::job(format!("--set {other}: a worker that joins takes the job as it runs"))
                .hint(format!("it can only set the paths of its files: {}", paths::KEYS.join(", "))))
        }
    }
}
