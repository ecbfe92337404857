//! The kind of a file, for the error of a command that expects another kind.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use thalweg_cluster::regular_file;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::Error;
use thalweg_data::kind_by_name;
use thalweg_train::SavedModel;

/// Bytes read from the start of a text file.
const PREFIX: u64 = 1 << 16;

/// The kinds of files that thalweg reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Artifact {
    Model,
    Checkpoint,
    /// Named tensors that another program wrote.
    ExternalTensors,
    Job,
    Report,
    Events,
    Onnx,
    Data,
    Run,
    Folder,
    Unknown,
}

impl Artifact {
    /// By name and first bytes of a file, or by the files of a folder.
    pub fn of(path: &Path) -> Artifact {
        if path.is_dir() {
            let run = ["job.toml", "report.json", "events.jsonl", "checkpoints"];
            let is_run = run.iter().any(|name| path.join(name).exists());
            return if is_run { Artifact::Run } else { Artifact::Folder };
        }
        if TensorFile::is_tensor_file(path).unwrap_or(false) {
            return match TensorFile::read(path) {
                Ok(file) if SavedModel::is_checkpoint(&file) => Artifact::Checkpoint,
                Ok(file) if file.metadata.contains_key("schema") => Artifact::Model,
                _ => Artifact::ExternalTensors,
            };
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let text = prefix(path);
        match ending {
            "onnx" => Artifact::Onnx,
            "toml" => Artifact::Job,
            "json" if text.trim_start().starts_with('{') && text.contains("\"outcome\"") => Artifact::Report,
            "jsonl" if text.lines().next().is_some_and(|line| line.contains("\"event\"")) => Artifact::Events,
            "json" | "jsonl" | "ndjson" => Artifact::Data,
            _ if kind_by_name(path).is_some() => Artifact::Data,
            _ => Artifact::Unknown,
        }
    }

    /// Which commands take this kind.
    pub fn advice(self, path: &Path) -> String {
        let shown = path.display();
        let run = run_of(path);
        match self {
            Artifact::Model => {
                "`thalweg evaluate`, `predict`, `export` and `inspect` take it; `thalweg resume` takes the folder of a run"
                    .into()
            }
            Artifact::Checkpoint => {
                format!("`thalweg resume {}` continues its run; `thalweg evaluate`, `predict`, `export` and `inspect` take it as a model", run.display())
            }
            Artifact::ExternalTensors => "thalweg did not write it, or it is damaged".into(),
            Artifact::Job => format!("`thalweg train {shown}` trains it"),
            Artifact::Report | Artifact::Events => {
                let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                format!("give the folder of the run: {}", folder.unwrap_or(Path::new(".")).display())
            }
            Artifact::Onnx => {
                format!("`thalweg inspect {shown}` shows it; a job trains it with model.onnx = \"{shown}\"")
            }
            Artifact::Data => {
                format!("`thalweg init {shown}` writes a job for it; or `thalweg train --set data.source={shown}`")
            }
            Artifact::Run => format!("`thalweg resume {shown}` continues it; evaluate, predict and export take its model"),
            Artifact::Folder => format!("if it holds IDX files, `thalweg train --set data.source={shown}`"),
            Artifact::Unknown => String::new(),
        }
    }

    /// The error of a command that expects `wanted`.
    pub fn refused(self, path: &Path, wanted: &str, hint: &str) -> Error {
        let shown = path.display();
        let message = match self {
            Artifact::Unknown => format!("{shown} is not {wanted}"),
            known => format!("{shown} is {known}, not {wanted}"),
        };
        let advice = [self.advice(path), hint.to_string()];
        let advice: Vec<&str> = advice.iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        Error::job(message).hint(advice.join("; "))
    }
}

impl fmt::Display for Artifact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Artifact::Model => "a trained model",
            Artifact::Checkpoint => "a checkpoint",
            Artifact::ExternalTensors => "a file of tensors",
            Artifact::Job => "a job",
            Artifact::Report => "the report of a run",
            Artifact::Events => "the events of a run",
            Artifact::Onnx => "an ONNX file",
            Artifact::Data => "data",
            Artifact::Run => "the folder of a run",
            Artifact::Folder => "a folder without a run",
            Artifact::Unknown => "a file of unknown kind",
        })
    }
}

/// The run folder that a checkpoint belongs to.
fn run_of(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
    if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }
}

fn prefix(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = regular_file::open(path).and_then(|file| file.take(PREFIX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
