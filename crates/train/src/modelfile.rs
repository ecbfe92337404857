//! `model.safetensors`: parameters by name and all that prediction needs.

use crate::ensembles;
use crate::footprint::Footprint;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_cluster::checkpoint;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::spec::JobLayers;
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Error, JobSpec, Kind, Layout, Model, Result, Schema, hex};
use thalweg_graph::ensemble::Ensemble;
use thalweg_graph::onnx::OnnxModel;
use thalweg_graph::{Network, Options, Team};

/// The job as it is kept with its results: its paths are absolute, so that it can be read from any folder. Without a
/// working folder there is no other kind of path.
pub fn kept(job: &JobSpec) -> JobSpec {
    std::env::current_dir().map_or_else(|_| job.clone(), |folder| job.with_paths_from(&folder))
}

/// A trained model as it lies on disk.
#[derive(Clone, Debug)]
pub struct SavedModel {
    /// What rows mean.
    pub schema: Schema,
    /// The layers as a job writes them; empty for a network of an ONNX file, or that a program built itself.
    pub layers: Vec<String>,
    /// The structure of the ONNX file it came from, without its weights.
    pub onnx: Option<Vec<u8>>,
    /// The job it was trained with, as TOML.
    pub job: String,
    /// Steps it was trained for.
    pub step: u64,
    /// What its user is to know about where it was read from; nothing for the finished model of a run.
    pub notices: Vec<String>,
    /// Of an ensemble, how its members answer together.
    pub combine: Option<Combine>,
    /// Of a combination that was learned: the weight of each member, then a bias per class, or one.
    pub combiner: Vec<f32>,
    /// A digest of the rows it was trained and validated on, and of their split; older files do not have it.
    pub rows: Option<String>,
    /// Its tensors.
    pub tensors: TensorFile<'static>,
    /// The file it was read from; empty for one that was not.
    pub path: PathBuf,
}

/// What a model is, by key: rows and structure, without its tensors.
pub(crate) fn about(
    schema: &Schema,
    layers: &[String],
    onnx: Option<&[u8]>,
    rows: Option<&str>,
) -> Result<BTreeMap<String, String>> {
    let json = |value: serde_json::Result<String>| value.map_err(|error| Error::internal(error.to_string()));
    let mut about = BTreeMap::from([
        ("schema".to_string(), json(serde_json::to_string(schema))?),
        ("layers".to_string(), json(serde_json::to_string(layers))?),
    ]);
    if let Some(onnx) = onnx {
        about.insert("onnx".into(), hex::encode(onnx));
    }
    if let Some(rows) = rows {
        about.insert("rows".into(), rows.into());
    }
    Ok(about)
}

/// The entries of an ensemble in what a model is: how its members answer together, and what was learned for it.
pub(crate) fn combined_by(combine: Option<Combine>, combiner: &[f32]) -> Result<BTreeMap<String, String>> {
    let mut entries = BTreeMap::new();
    if let Some(combine) = combine {
        entries.insert(COMBINE.to_string(), combine.name().to_string());
    }
    if !combiner.is_empty() {
        let numbers = serde_json::to_string(combiner).map_err(|error| Error::internal(error.to_string()))?;
        entries.insert(COMBINER.to_string(), numbers);
    }
    Ok(entries)
}

const COMBINE: &str = "combine";
const COMBINER: &str = "combiner";

/// A file of tensors, where it stands, and what to say about it.
struct Opened {
    file: TensorFile<'static>,
    path: PathBuf,
    notices: Vec<String>,
}

/// What a file holds: a model or a checkpoint.
fn open_file(path: PathBuf) -> Result<Opened> {
    let refused =
        |what: &str| Error::job(format!("{} {what}", path.display())).hint(SavedModel::WHAT_TO_GIVE);
    if !path.exists() {
        return Err(refused("does not exist"));
    }
    if !TensorFile::is_tensor_file(&path)? {
        return Err(refused("is not a model file"));
    }
    let file = TensorFile::read(&path)?;
    let notices = match file.metadata.get("step") {
        Some(step) if SavedModel::is_checkpoint(&file) => {
            vec![format!("using the checkpoint of step {step}")]
        }
        _ => Vec::new(),
    };
    Ok(Opened { file, path, notices })
}

/// The newest state of a run: its model, unless the run was resumed and has a checkpoint of a later step.
fn open_run(folder: &Path) -> Result<Opened> {
    let path = folder.join("model.safetensors");
    let model = if path.exists() { Some(open_file(path)?) } else { None };
    let step = model.as_ref().and_then(|model| model.file.metadata.get("step")?.parse::<u64>().ok());
    let checkpoints = folder.join("checkpoints");
    let newest = checkpoint::list(&checkpoints).first().and_then(|path| checkpoint::step_of(path));
    match (model, step) {
        (Some(model), Some(step)) if newest.is_some_and(|newest| newest > step) => {
            newer_than(model, step, &checkpoints)
        }
        (Some(model), _) => Ok(model),
        (None, _) => {
            let Some((file, path, damaged)) = checkpoint::newest_file(&checkpoints)? else {
                let what = format!("{} holds neither a model nor a checkpoint", folder.display());
                return Err(Error::job(what).hint(SavedModel::WHAT_TO_GIVE));
            };
            let mut notices = warnings(&damaged);
            notices
                .extend(file.metadata.get("step").map(|step| format!("using the checkpoint of step {step}")));
            Ok(Opened { file, path, notices })
        }
    }
}

/// The newest whole checkpoint after the step of a model; the model if none is whole.
fn newer_than(model: Opened, step: u64, checkpoints: &Path) -> Result<Opened> {
    let using_model = |mut notices: Vec<String>| {
        notices.push(format!("using the model of step {step}"));
        Ok(Opened { notices, ..model })
    };
    match checkpoint::newest_file(checkpoints) {
        Ok(Some((file, path, damaged))) => {
            let mut notices = warnings(&damaged);
            match checkpoint::step_of(&path) {
                Some(newer) if newer > step => {
                    notices.push(format!(
                        "using the checkpoint of step {newer}, which is newer than model.safetensors (step {step})"
                    ));
                    Ok(Opened { file, path, notices })
                }
                _ => using_model(notices),
            }
        }
        Ok(None) => using_model(Vec::new()),
        Err(error) if error.kind == Kind::Data => using_model(vec![format!("warning: {}", error.message)]),
        Err(error) => Err(error),
    }
}

fn warnings(damaged: &[(PathBuf, Error)]) -> Vec<String> {
    damaged.iter().map(|(_, error)| format!("warning: {}", error.message)).collect()
}

impl SavedModel {
    /// What a command that takes a model can be given.
    pub const WHAT_TO_GIVE: &str =
        "give the folder of a run, its model.safetensors or one of its checkpoints";

    /// Writes a model.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut file = self.tensors.clone();
        file.metadata.extend(about(&self.schema, &self.layers, self.onnx.as_deref(), self.rows.as_deref())?);
        file.metadata.extend(combined_by(self.combine, &self.combiner)?);
        file.metadata.insert("job".into(), self.job.clone());
        file.metadata.insert("step".into(), self.step.to_string());
        file.write(path)
    }

    /// Reads a model file, a checkpoint, or what is newest in the folder of a run.
    pub fn read(path: &Path) -> Result<SavedModel> {
        let Opened { file, path, notices } =
            if path.is_dir() { open_run(path)? } else { open_file(path.to_path_buf())? };
        file.check_version(&path)?;
        let is_checkpoint = SavedModel::is_checkpoint(&file);
        let about = if is_checkpoint { checkpoint::model_of(&file) } else { file.metadata.clone() };
        if is_checkpoint && about.is_empty() {
            return Err(Error::job(format!(
                "the checkpoint {} does not say what its model is",
                path.display()
            ))
            .hint("an older version wrote it; `thalweg resume` continues its run and writes one that does"));
        }
        let broken = |what: &str| Error::data(format!("{}: its `{what}` makes no sense", path.display()));
        let text = |key: &str| about.get(key).ok_or_else(|| broken(key));
        Ok(SavedModel {
            schema: serde_json::from_str(text("schema")?).map_err(|_| broken("schema"))?,
            layers: serde_json::from_str(text("layers")?).map_err(|_| broken("layers"))?,
            onnx: match about.get("onnx") {
                Some(text) => Some(hex::decode(text).ok_or_else(|| broken("onnx"))?),
                None => None,
            },
            job: file.text("job", &path)?.to_string(),
            step: file.text("step", &path)?.parse().map_err(|_| broken("step"))?,
            notices,
            combine: match about.get(COMBINE) {
                Some(name) => Some(Combine::named(name).ok_or_else(|| broken(COMBINE))?),
                None => None,
            },
            combiner: match about.get(COMBINER) {
                Some(numbers) => serde_json::from_str(numbers).map_err(|_| broken(COMBINER))?,
                None => Vec::new(),
            },
            rows: about.get("rows").cloned(),
            tensors: file,
            path,
        })
    }

    /// Whether a file of tensors is the checkpoint of a run.
    pub fn is_checkpoint(file: &TensorFile<'_>) -> bool {
        checkpoint::is_checkpoint(file)
    }

    /// The job it was trained with.
    pub fn job(&self) -> Result<JobSpec> {
        let mut layers = JobLayers::default();
        let read = layers.add_file("the model's job", &self.job).map_err(Error::data);
        read.and_then(|()| Ok(crate::registry::resolve(layers)?.spec)).map_err(|error| self.named(error))
    }

    /// Members of the ensemble; 1 if it is none.
    pub fn members(&self) -> usize {
        self.prefixes().len()
    }

    /// What precedes the names of each member's tensors.
    fn prefixes(&self) -> Vec<String> {
        match self.combine {
            Some(_) => ensembles::prefixes(&self.tensors, SavedModel::is_checkpoint(&self.tensors)),
            None => vec![String::new()],
        }
    }

    /// The network and its parameters, ready to answer; an ensemble answers through all of its members.
    pub fn model(&self, team: Arc<Team>) -> Result<(Box<dyn Model>, Vec<f32>)> {
        let (network, parameters) = self.network()?;
        let loss = network.loss();
        let outputs = network.outputs();
        let network: Box<dyn Model> = Box::new(network.with_team(team));
        Ok(match self.combine {
            Some(combine) => (Box::new(Ensemble::new(network, combine, loss, outputs)), parameters),
            None => (network, parameters),
        })
    }

    /// The network and its parameters: of an ensemble those of one member after the other, and those of a learned combination.
    pub fn network(&self) -> Result<(Network, Vec<f32>)> {
        self.built().map_err(|error| self.named(error))
    }

    fn built(&self) -> Result<(Network, Vec<f32>)> {
        let options = Options::of(&self.job()?);
        let network = match &self.onnx {
            Some(structure) => OnnxModel::read_structure(structure)
                .and_then(|source| source.for_schema(&self.schema, options))
                .map_err(|error| self.explained(error))?,
            None if self.layers.is_empty() => {
                return Err(Error::job("this model was built by a program: only that program can run it"));
            }
            None => Network::for_schema(&self.layers, &self.schema, options)?,
        };
        Footprint::of_prediction(&network, 1).check(&network, &self.schema, "the training data")?;
        let (prefixes, mut parameters) = (self.prefixes(), Vec::new());
        if prefixes.is_empty() {
            return Err(Error::data(format!("{}: the ensemble has no member", self.path.display())));
        }
        let stacks = self.combine == Some(Combine::Stack);
        if self.combiner.len() != if stacks { prefixes.len() + network.outputs() } else { 0 } {
            return Err(Error::data(format!(
                "{}: its combination of {} numbers is not that of {} members",
                self.path.display(),
                self.combiner.len(),
                prefixes.len()
            )));
        }
        for prefix in prefixes {
            parameters.extend(flatten(&self.tensors, &prefix, network.layout())?);
        }
        parameters.extend(&self.combiner);
        Ok((network, parameters))
    }

    /// An error that says which file it is about.
    fn named(&self, mut error: Error) -> Error {
        let path = self.path.display().to_string();
        if !error.message.contains(&path) {
            error.message = format!("{path}: {}", error.message);
        }
        error
    }

    /// Why the kept structure of an ONNX file is refused. Versions that wrote format 1 passed over attributes.
    fn explained(&self, mut error: Error) -> Error {
        if self.tensors.metadata.get("format").is_some_and(|format| format == "1") {
            error.message = error.message.replacen("model.onnx", "the ONNX structure of this model", 1);
            return error.hint(
                "the version that trained this model ignored what is named here: use the model with that version, \
                 or train again from an ONNX file without it",
            );
        }
        error
    }
}

/// Tensors by name, in the order of a file.
pub fn unflatten(layout: &Layout, parameters: &[f32]) -> TensorFile<'static> {
    let mut file = TensorFile::of_this_version();
    push(&mut file, "", layout, parameters);
    file
}

/// The same of an ensemble: the tensors of every member, by the number of the member and their name.
pub(crate) fn unflatten_members(layout: &Layout, parameters: &[f32]) -> TensorFile<'static> {
    let mut file = TensorFile::of_this_version();
    for (number, own) in parameters.chunks_exact(layout.len().max(1)).enumerate() {
        push(&mut file, &ensembles::prefix(number), layout, own);
    }
    file
}

fn push(file: &mut TensorFile<'static>, prefix: &str, layout: &Layout, parameters: &[f32]) {
    for tensor in layout.tensors() {
        let values = tensor.to_file(&parameters[tensor.range()]).into_owned();
        file.push(format!("{prefix}{}", tensor.name), tensor.file_shape(), values);
    }
}

/// Tensors in the order of a layout, whose names have this prefix.
pub(crate) fn flatten(file: &TensorFile<'_>, prefix: &str, layout: &Layout) -> Result<Vec<f32>> {
    let mut parameters = Vec::new();
    for tensor in layout.tensors() {
        let name = format!("{prefix}{}", tensor.name);
        let values = file.in_memory_order(&name, tensor).map_err(|_| {
            let shape = tensor.file_shape();
            Error::data(format!("the model file has no tensor `{name}` of shape {shape:?}"))
        })?;
        parameters.extend_from_slice(&values);
    }
    Ok(parameters)
}
