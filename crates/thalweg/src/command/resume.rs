//! `thalweg resume`: continues a run from its newest checkpoint.

use crate::artifact::Artifact;
use crate::cli::{JobArgs, JobFlags};
use crate::folder::{JOB, MODEL};
use crate::trainer::Trainer;
use clap::Args;
use std::path::{Path, PathBuf};
use thalweg_cluster::checkpoint;
use thalweg_core::spec::preset;
use thalweg_core::{Error, Result};

/// Arguments of `resume`.
#[derive(Args, Debug)]
pub struct ResumeArgs {
    /// The folder of the run
    pub run: PathBuf,
    /// Changes to the job.
    #[command(flatten)]
    pub flags: JobFlags,
    /// Print warnings and errors only
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Print the report as JSON on standard output at the end
    #[arg(long)]
    pub json: bool,
}

const EXPECTED: &str = "give the folder that `thalweg train` wrote to, such as runs/digits-1";

/// Resumes; returns the exit code.
pub fn run(args: &ResumeArgs) -> Result<u8> {
    if args.run.is_file() {
        return Err(Artifact::of(&args.run).refused(&args.run, "the folder of a run", EXPECTED));
    }
    let job = args.run.join(JOB);
    if !job.exists() {
        return Err(
            Error::job(format!("{} holds no run: there is no job.toml", args.run.display())).hint(EXPECTED)
        );
    }
    if checkpoint::list(&args.run.join("checkpoints")).is_empty() {
        return Err(without_checkpoint(&args.run));
    }
    let before = JobArgs { job: Some(job.clone()), ..JobArgs::default() }.layers()?;
    let before = before.get("strategy.preset").and_then(|(preset, _)| preset.as_str());
    let args_of_job = JobArgs { job: Some(job), flags: args.flags.clone() };
    let mut layers = args_of_job.layers()?;
    let name = args_of_job.name(&layers);
    preset::drop_replaced_dials(&mut layers, before);
    let trainer = Trainer::from_layers(&name, layers).out(&args.run).resume(true).quiet(args.quiet);
    super::train::finish(trainer, args.json)
}

/// The error for a run without a checkpoint, which could only start anew: the user must ask for that, as it would
/// replace a finished model.
fn without_checkpoint(run: &Path) -> Error {
    let shown = run.display();
    let hint = match run.join(MODEL).exists() {
        true => format!(
            "`thalweg train {shown}/job.toml` trains anew in a folder of its own; \
             with `--out {shown} --resume` it replaces the finished {MODEL}"
        ),
        false => {
            format!("`thalweg train {shown}/job.toml --out {shown} --resume` starts it from the beginning")
        }
    };
    Error::job(format!("{shown} holds no checkpoint to resume from")).hint(hint)
}
