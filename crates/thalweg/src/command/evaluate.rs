//! `thalweg evaluate`: loss and metrics of a trained model.

use crate::command::{print, print_json};
use crate::preflight::nothing_started;
use clap::Args;
use std::path::PathBuf;
use thalweg_core::spec::setting::Held;
use thalweg_core::spec::{Job, Layers, Origin};
use thalweg_core::{Error, Kind, Result};
use thalweg_data::{Data, Rows};
use thalweg_graph::Team;
use thalweg_train::SavedModel;
use thalweg_train::validate::evaluate;

/// What `evaluate` takes.
#[derive(Args, Debug)]
pub struct EvaluateArgs {
    /// The folder of a run, or its model.safetensors
    pub model: PathBuf,
    /// Another source than the validation rows of the training
    #[arg(long, value_name = "SOURCE")]
    pub data: Option<String>,
    /// Change how that source is read: --set data.delimiter=";"
    #[arg(long, value_name = "data.KEY=VALUE")]
    pub set: Vec<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Evaluates and prints.
pub fn run(args: &EvaluateArgs) -> Result<()> {
    let saved = SavedModel::read(&args.model)?;
    let (network, parameters) = saved.network()?;
    let (rows, what, threads) = rows(args, &saved)?;
    let mut network = network.with_team(Team::of(threads, 1));
    let mut batch = rows.empty_batch();
    let tally = evaluate(&mut network, &parameters, &rows, &mut batch)?;
    let metrics = tally.metrics(&saved.schema);
    if args.json {
        let mut object = serde_json::Map::from_iter([("rows".to_string(), tally.rows.into())]);
        object.extend(metrics.into_iter().map(|(name, value)| (name, value.into())));
        return print_json(&object);
    }
    let list: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    print(&format!("{} on {} {what}\n", list.join(", "), tally.rows))
}

fn rows(args: &EvaluateArgs, saved: &SavedModel) -> Result<(Rows, String, usize)> {
    let mut layers = Layers::default();
    layers.add_file("the model's job", &saved.job).map_err(Error::data)?;
    if let Some(source) = &args.data {
        layers.set("data.source", source.clone().into(), Origin::Flag(format!("--data {source}")));
    }
    for assignment in &args.set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    let job = Job::resolve(layers)?.spec;
    let threads = job.engine.threads;
    if let Some(source) = &args.data {
        let rows = Data::open_with(&job.data, &saved.schema).map_err(nothing_started)?;
        return Ok((rows, format!("rows of {source}"), threads));
    }
    let data = Data::open_again(&job.data, job.train.seed, &saved.schema).map_err(gone)?;
    let source = &job.data.source;
    Ok(match &job.data.validation {
        _ if data.validation.is_empty() => {
            (data.training, format!("training rows of {source} (it has no validation rows)"), threads)
        }
        Some(Held::Source(other)) => {
            (data.validation, format!("rows of {other}, kept for validation"), threads)
        }
        _ => (data.validation, format!("validation rows of {source}"), threads),
    })
}

/// The data of the training may be elsewhere by now.
fn gone(error: Error) -> Error {
    let lost = error.kind == Kind::Io;
    let error = nothing_started(error);
    if lost { error.hint("the model was trained with it; name another source with --data") } else { error }
}
