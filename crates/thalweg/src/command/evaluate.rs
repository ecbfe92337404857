//! `thalweg evaluate`: loss and metrics of a trained model.

use crate::command::rows::{self, Format};
use crate::command::{print, print_json, warn_of_unseen};
use crate::preflight::as_job_error;
use clap::Args;
use std::path::PathBuf;
use thalweg_core::spec::setting::HeldOut;
use thalweg_core::{Error, JobSpec, Kind, Model, Result, Tally};
use thalweg_data::{Data, Rows};
use thalweg_graph::Team;
use thalweg_train::SavedModel;
use thalweg_train::prepare::rows_digest;
use thalweg_train::validate::evaluate;

/// Arguments of `evaluate`.
#[derive(Args, Debug)]
pub struct EvaluateArgs {
    /// The folder of a run, its model.safetensors, or a checkpoint (of a stopped run, the newest is taken)
    pub model: PathBuf,
    /// Evaluate on all rows of this source instead of the job's validation rows
    #[arg(value_name = "SOURCE")]
    pub source: Option<String>,
    /// The same as SOURCE
    #[arg(long, value_name = "SOURCE", conflicts_with = "source")]
    pub data: Option<String>,
    /// Change how that source is read: --set data.delimiter=";"
    #[arg(long, value_name = "data.KEY=VALUE")]
    pub set: Vec<String>,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

/// Evaluates the model and prints loss and metrics.
pub fn run(args: &EvaluateArgs) -> Result<()> {
    let saved = rows::model(&args.model)?;
    let source = args.source.as_deref().or(args.data.as_deref());
    let job = rows::job(&saved, &args.model, source, &args.set)?;
    let (mut model, parameters) = saved.model(Team::shared(job.engine.threads, 1))?;
    let (tally, what) = match source {
        Some(source) if Format::of(source) == Format::Jsonl => {
            (tally_of_lines(model.as_mut(), &parameters, &saved, source, &job)?, format!("rows of {source}"))
        }
        source => {
            let (rows, what) = rows_of(source, &job, &saved)?;
            rows.notices().iter().for_each(|notice| eprintln!("warning: {notice}"));
            let tally = evaluate(model.as_mut(), &parameters, &rows, &mut rows.empty_batch())?;
            warn_of_unseen(&rows.unseen_categories());
            (tally, what)
        }
    };
    let metrics = tally.metrics(&saved.schema);
    if args.json {
        let mut object = serde_json::Map::from_iter([("rows".to_string(), tally.rows.into())]);
        object.extend(metrics.into_iter().map(|(name, value)| (name, value.into())));
        return print_json(&object);
    }
    let list: Vec<String> = metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    print(&format!("{} on {} {what}\n", list.join(", "), tally.rows))
}

/// Evaluates on JSON lines, which must have labels.
fn tally_of_lines(
    model: &mut dyn Model,
    parameters: &[f32],
    saved: &SavedModel,
    source: &str,
    job: &JobSpec,
) -> Result<Tally> {
    /// Rows per batch.
    const BATCH: usize = 512;
    let mut tally = Tally::default();
    for file in thalweg_data::source_files(source).map_err(as_job_error)? {
        let named = |error| rows::named(&file, error);
        let records = rows::records(&file, Format::Jsonl, saved, &job.data).map_err(named)?;
        let mut records = records.labelled(&saved.schema)?;
        let mut batch = records.empty_batch();
        while records.next_batch(BATCH, &mut batch).map_err(named)? {
            tally.add(&model.evaluate(parameters, &batch)?);
        }
        warn_of_unseen(&records.unseen_categories());
    }
    if tally.rows == 0 {
        return Err(Error::data(format!("{source} holds no rows")));
    }
    Ok(tally)
}

fn rows_of(source: Option<&str>, job: &JobSpec, saved: &SavedModel) -> Result<(Rows, String)> {
    if let Some(source) = source {
        let rows = Data::open_for_evaluation(&job.data, &saved.schema).map_err(as_job_error)?;
        return Ok((rows, format!("rows of {source}")));
    }
    let data = Data::open_with_schema(&job.data, job.train.seed, &saved.schema).map_err(missing_data)?;
    check_unchanged(&data, job, saved)?;
    let source = &job.data.source;
    Ok(match &job.data.validation {
        _ if data.validation.is_empty() => {
            (data.training, format!("training rows of {source} (it has no validation rows)"))
        }
        Some(HeldOut::Source(other)) => (data.validation, format!("rows of {other}, kept for validation")),
        _ => (data.validation, format!("validation rows of {source}")),
    })
}

/// Refuses data that has changed since training: its validation split would contain training rows. Validation rows from
/// a separate source are not affected.
fn check_unchanged(data: &Data, job: &JobSpec, saved: &SavedModel) -> Result<()> {
    let source = &job.data.source;
    match &saved.rows {
        _ if matches!(job.data.validation, Some(HeldOut::Source(_))) => Ok(()),
        Some(rows) if *rows == rows_digest(data) => Ok(()),
        Some(_) => Err(Error::job(format!(
            "{source} has changed since the model was trained: its validation rows cannot be distinguished from training rows"
        ))
        .hint("--data FILE evaluates on all rows of a file; or restore the training data")),
        None => {
            eprintln!(
                "notice: this model does not record which rows it was trained on: if {source} has changed since, \
                 training rows may be among those evaluated"
            );
            Ok(())
        }
    }
}

/// Adds a hint to the error for training data that cannot be read.
fn missing_data(error: Error) -> Error {
    let lost = error.kind == Kind::Io;
    let error = as_job_error(error);
    if lost { error.hint("the model was trained with it; name another source with --data") } else { error }
}
