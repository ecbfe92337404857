//! A trained model and rows for it, for all commands that take them: which files hold them and how they are read.

use crate::artifact::Artifact;
use crate::cli::JobArgs;
use crate::folder::{JOB, kept_path, of_copy};
use crate::preflight::nothing_started;
use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::Path;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::spec::data::DataSpec;
use thalweg_core::spec::setting::Auto;
use thalweg_core::spec::{Job, Layers, Origin, paths};
use thalweg_core::{Error, JobSpec, Kind, Result};
use thalweg_data::{FileKind, Records, STANDARD_INPUT, check_text, kind_by_name};
use thalweg_train::SavedModel;

/// How rows and answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Separated fields, with or without a header
    Csv,
    /// One JSON object or array per line
    Jsonl,
}

impl Format {
    /// By the ending of a file's name, `.gz` or not.
    pub fn of(input: &str) -> Format {
        let name = input.to_ascii_lowercase();
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let ending = plain.rsplit_once('.').map_or("", |(_, ending)| ending);
        if matches!(ending, "jsonl" | "ndjson" | "json") { Format::Jsonl } else { Format::Csv }
    }
}

/// The model that a path names; what is not the finished model of a run is told on standard error.
pub fn model(path: &Path) -> Result<SavedModel> {
    if path.is_file() && !TensorFile::is_one(path).unwrap_or(true) {
        return Err(Artifact::of(path).refused(path, "a model", SavedModel::WHAT_TO_GIVE));
    }
    let saved = SavedModel::read(path)?;
    saved.notices.iter().for_each(|notice| eprintln!("{notice}"));
    Ok(saved)
}

/// The job of a model with what was set for this command. In a run folder, that folder's job says where the data is. What
/// the job says of header and delimiter holds for its own source: in another one they are looked for again, except for a
/// delimiter that is never found that way.
pub fn job(saved: &SavedModel, model: &Path, source: Option<&str>, set: &[String]) -> Result<JobSpec> {
    let mut layers = Layers::default();
    let folder = if model.is_dir() { model } else { model.parent().unwrap_or(model) };
    let locate = |path: &str| kept_path(folder, path);
    layers.add_file_with("the model's job", &saved.job, &locate).map_err(Error::data)?;
    let kept = folder.join(JOB);
    if kept.is_file() && of_copy(&kept).is_some() {
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
        if let Auto::Is(delimiter) = Job::resolve(layers.clone())?.spec.data.delimiter
            && thalweg_data::is_guessed(delimiter)
        {
            layers.set("data.delimiter", "auto".into(), origin());
        }
    }
    for assignment in set {
        layers.add_assignment(assignment).map_err(Error::job)?;
    }
    Ok(Job::resolve(layers)?.spec)
}

/// Whether an input is indexed as in training instead of being read from its beginning to its end.
pub fn is_indexed(input: &str) -> bool {
    let path = Path::new(input);
    let kind = kind_by_name(path);
    path.is_dir()
        || input.starts_with("builtin:")
        || matches!(kind, Some(FileKind::Libsvm | FileKind::Parquet))
}

/// The rows of one file, or of standard input.
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

/// What is wrong with rows is told with the file they stand in; standard input has no name.
pub fn named(file: &str, mut error: Error) -> Error {
    if file != "-" && error.kind != Kind::Interrupted && !error.message.contains(file) {
        error.message = format!("{file}: {}", error.message);
    }
    error
}

/// What an input is called in messages.
pub fn shown(input: &str) -> &str {
    if input == "-" { STANDARD_INPUT } else { input }
}

/// Opens a file, packed or not, or standard input.
pub fn open(input: &str) -> Result<Box<dyn BufRead>> {
    if input == "-" {
        if io::stdin().is_terminal() {
            eprintln!("reading rows from standard input; Ctrl-D ends them");
        }
        return text(STANDARD_INPUT, Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(input).map_err(|error| {
        nothing_started(match error.kind() {
            io::ErrorKind::NotFound => thalweg_data::missing(Path::new(input)),
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

/// The reader, if what it reads begins like text.
fn text(name: &str, mut reader: Box<dyn BufRead>) -> Result<Box<dyn BufRead>> {
    let beginning = reader.fill_buf().map_err(|error| Error::io(format!("cannot read {name}"), &error))?;
    check_text(name, beginning)?;
    Ok(reader)
}
