//! Input of the commands that apply a trained model: the model, and the rows of files or standard input.

use crate::artifact::Artifact;
use crate::cli::JobArgs;
use crate::folder::{JOB, locate_kept_path, run_of_job_copy};
use crate::preflight::as_job_error;
use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::setting::Auto;
use thalweg_core::spec::{JobLayers, Origin, paths};
use thalweg_core::{Error, JobSpec, Kind, Result};
use thalweg_data::{FileKind, Records, STANDARD_INPUT, check_text, kind_by_name};
use thalweg_train::SavedModel;
use thalweg_train::registry;

/// File format of rows and predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Separated fields, with or without a header
    Csv,
    /// One JSON object or array per line
    Jsonl,
}

impl Format {
    /// By the file name's extension, before `.gz` if there is one.
    pub fn of(input: &str) -> Format {
        let name = input.to_ascii_lowercase();
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let ending = plain.rsplit_once('.').map_or("", |(_, ending)| ending);
        if matches!(ending, "jsonl" | "ndjson" | "json") { Format::Jsonl } else { Format::Csv }
    }
}

/// Reads the model that a path names; prints a notice if it is not the finished model of a run.
pub fn model(path: &Path) -> Result<SavedModel> {
    if path.is_file() && !TensorFile::is_tensor_file(path).unwrap_or(true) {
        return Err(Artifact::of(path).refused(path, "a model", SavedModel::WHAT_TO_GIVE));
    }
    let saved = SavedModel::read(path)?;
    saved.notices.iter().for_each(|notice| eprintln!("{notice}"));
    Ok(saved)
}

/// The job of a model with the settings of this command. In a run folder, that folder's `job.toml` gives the paths.
/// Header and delimiter of the job apply to its own source: for another one they are detected again, except for a
/// delimiter that detection never finds.
pub fn job(saved: &SavedModel, model: &Path, source: Option<&str>, set: &[String]) -> Result<JobSpec> {
    let mut layers = JobLayers::default();
    let folder = if model.is_dir() { model } else { model.parent().unwrap_or(model) };
    let locate = |path: &str| locate_kept_path(folder, path);
    layers.add_file_with("the model's job", &saved.job, &locate).map_err(Error::data)?;
    let kept = folder.join(JOB);
    if kept.is_file() && run_of_job_copy(&kept).is_some() {
        let run = JobArgs { job: Some(kept), ..JobArgs::default() }.layers()?;
        for key in paths::KEYS {
            if let Some((value, origin)) = run.get(key) {
                layers.set(key, value.clone(), origin.clone());
            }
        }
    }
    if let Some(source) = source {
        let origin = || Origin::Flag(format!("rows of {source}"));
        layers.set("data.source", source.into(), origin());
        layers.set("data.header", "auto".into(), origin());
        if let Auto::Is(delimiter) = registry::resolve(layers.clone())?.spec.data.delimiter
            && thalweg_data::is_auto_detected(delimiter)
        {
            layers.set("data.delimiter", "auto".into(), origin());
        }
    }
    for assignment in set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    Ok(registry::resolve(layers)?.spec)
}

/// Whether an input is indexed, as in training, instead of read as a stream.
pub fn is_indexed(input: &str) -> bool {
    let path = Path::new(input);
    let kind = kind_by_name(path);
    path.is_dir()
        || input.starts_with("builtin:")
        || matches!(kind, Some(FileKind::Libsvm | FileKind::Parquet))
}

/// Reads the rows of one file or of standard input.
pub fn records(
    input: &str,
    format: Format,
    saved: &SavedModel,
    spec: &DataSpec,
) -> Result<Records<Box<dyn BufRead>>> {
    let reader = open(input)?;
    match format {
        Format::Csv => Records::csv(reader, &saved.schema, spec),
        Format::Jsonl => Ok(Records::json(reader, &saved.schema)),
    }
}

/// Adds the file name to an error about its rows; standard input has none.
pub fn named(file: &str, mut error: Error) -> Error {
    if file != "-" && error.kind != Kind::Interrupted && !error.message.contains(file) {
        error.message = format!("{file}: {}", error.message);
    }
    error
}

/// The name of an input in messages.
pub fn shown(input: &str) -> &str {
    if input == "-" { STANDARD_INPUT } else { input }
}

/// Opens a file, compressed or not, or standard input.
pub fn open(input: &str) -> Result<Box<dyn BufRead>> {
    if input == "-" {
        if io::stdin().is_terminal() {
            eprintln!("reading rows from standard input; Ctrl-D ends them");
        }
        return text(STANDARD_INPUT, Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(input).map_err(|error| {
        as_job_error(match error.kind() {
            io::ErrorKind::NotFound => thalweg_data::file_not_found(Path::new(input)),
            _ => Error::io(format!("cannot read {input}"), &error),
        })
    })?;
    let reader = BufReader::with_capacity(1 << 16, file);
    let reader: Box<dyn BufRead> = if input.to_ascii_lowercase().ends_with(".gz") {
        Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(reader)))
    } else {
        Box::new(reader)
    };
    text(input, reader)
}

/// Refuses a reader whose first bytes are not text.
fn text(name: &str, mut reader: Box<dyn BufRead>) -> Result<Box<dyn BufRead>> {
    let beginning = reader.fill_buf().map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    check_text(name, beginning)?;
    Ok(reader)
}
