//! `thalweg join`: one more worker for a job that runs.

use crate::invitation::Invitation;
use crate::launch;
use crate::token;
use crate::trainer::Trainer;
use clap::Args;
use thalweg_core::Result;
use thalweg_core::spec::{Layers, paths};
use thalweg_core::{Error, Job};

/// What `join` takes.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Where the job's coordinator listens (with its THALWEG_TOKEN), or the run folder of a job on this machine
    #[arg(value_name = "HOST:PORT|RUN")]
    target: String,
    /// Where this host has the files of the job, if elsewhere: --set data.source=/data/rows.csv
    #[arg(long, value_name = "KEY=PATH")]
    set: Vec<String>,
    /// Print nothing but warnings and errors
    #[arg(long, short = 'q')]
    quiet: bool,
}

/// Works along until the job is done, or until asked to end; the answer is the exit code.
pub fn run(args: &JoinArgs) -> Result<u8> {
    check_assignments(&args.set)?;
    let invitation = Invitation::find(&args.target, token::of_user()?)?;
    let (text, number) = launch::ask(&invitation)?;
    let mut layers = Layers::default();
    layers.add_file("the job", &text).map_err(Error::job)?;
    for assignment in &args.set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    let job = Job::resolve(layers.clone())?;
    let trainer = Trainer::from_layers("join", layers).quiet(args.quiet);
    launch::as_newcomer(trainer, &job, &invitation, number)
}

/// Of the job, only where the files are may differ from worker to worker.
fn check_assignments(set: &[String]) -> Result<()> {
    let key = |assignment: &String| assignment.split('=').next().unwrap_or_default().trim().to_string();
    match set.iter().find(|assignment| !paths::KEYS.contains(&&*key(assignment))) {
        None => Ok(()),
        Some(other) => {
            Err(Error::job(format!("--set {other}: a worker that joins takes the job as it runs"))
                .hint(format!("it can only say where its files are: {}", paths::KEYS.join(", "))))
        }
    }
}
