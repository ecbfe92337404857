//! `thalweg train`: from a job to a trained model.

use crate::cli::TrainArgs;
use crate::command::print_json;
use crate::trainer::{Nodes, Trainer};
use thalweg_cluster::engine::environment::PORT;
use thalweg_core::{Error, Result};

/// Trains; returns the exit code.
pub fn run(args: &TrainArgs) -> Result<u8> {
    let layers = args.job.layers()?;
    let trainer = Trainer::from_layers(&args.job.name(&layers), layers)
        .resume(args.resume)
        .overwrite(args.overwrite)
        .quiet(args.quiet)
        .rerun_args(args.job.rerun_args())
        .address_file(args.address_file.clone())
        .nodes(nodes(args)?);
    finish(
        match &args.out {
            Some(folder) => trainer.out(folder),
            None => trainer,
        },
        args.json,
    )
}

/// Runs a trainer; prints the report as JSON, or the summary. Returns the exit code.
pub fn finish(trainer: Trainer, json: bool) -> Result<u8> {
    let result = if json { trainer.finish()? } else { trainer.with_summary().finish()? };
    match &result.report {
        Some(report) if json => print_json(report)?,
        _ => {}
    }
    Ok(result.code)
}

fn nodes(args: &TrainArgs) -> Result<Option<Nodes>> {
    let (Some(count), Some(index), Some(master)) = (args.nnodes, args.node_rank, &args.master) else {
        return Ok(None);
    };
    if index >= count {
        return Err(Error::job(format!("--node-rank {index}: there are {count} hosts, counted from 0")));
    }
    let (host, port) = match master.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            let number =
                port.parse().map_err(|_| Error::job(format!("--master {master}: `{port}` is not a port")))?;
            (host.trim_matches(['[', ']']).to_string(), number)
        }
        _ => (master.clone(), PORT),
    };
    Ok(Some(Nodes { count, index, host, port }))
}
