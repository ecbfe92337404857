//! What can go wrong is found out before anything starts, if possible.

use std::path::Path;
use std::sync::Arc;
use thalweg_cluster::checkpoint::{self, Found};
use thalweg_cluster::engine::environment::Place;
use thalweg_cluster::rendezvous::mpi;
use thalweg_core::spec::paths::is_path;
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::spec::{Job, Layers};
use thalweg_core::{Error, JobSpec, Kind, Layout, Result};
use thalweg_data::Data;
use thalweg_graph::Optimizer;
use thalweg_train::Recipe;
use thalweg_train::footprint::Footprint;
use thalweg_train::hooks::check_parts;
use thalweg_train::prepare::{check_audit, check_data, check_optimizer, digest, fingerprint};

/// What was found in order.
pub struct Checked {
    /// The data, opened.
    pub data: Data,
    /// What is trained, as ranks compare it when they meet.
    pub model: Vec<u8>,
    /// The rows it is trained with, as newcomers are asked for it.
    pub rows: String,
    /// The step of the checkpoint from which training goes on.
    pub step: Option<u64>,
}

/// Opens the data, builds the model and looks at the checkpoint, as every rank will. At least `ranks` of them run on this
/// machine.
pub fn check(job: &JobSpec, recipe: &dyn Recipe, resume: Option<&Path>, ranks: usize) -> Result<Checked> {
    let data = recipe.data(job).map_err(nothing_started);
    let data = data.map_err(|error| if resume.is_some() { with_moved_hint(error, job) } else { error })?;
    let rows = data.training.len();
    if (job.engine.workers as u64) > rows {
        return Err(Error::data(format!("{} workers for {rows} training rows", job.engine.workers))
            .hint(format!("use --workers {} or fewer, or more data", rows.max(1))));
    }
    if job.target.accuracy.is_some() && (data.schema.classes.is_empty() || data.schema.reconstruct) {
        let what = if data.schema.reconstruct { "an auto-encoder" } else { "a regression" };
        return Err(Error::job(format!("train.target.accuracy: {what} has no accuracy"))
            .hint("use train.target.loss"));
    }
    let model = recipe.model(&data.schema, &Arc::default())?;
    check_parts(job, model.as_ref())?;
    let footprint = Footprint::of_training(job, model.as_ref(), ranks);
    let fits = footprint.check(model.as_ref(), &data.schema, &job.data.source);
    fits.map_err(|mut error| {
        if let Some(path) = &job.model.onnx {
            error.message = format!("model.onnx: {path}: {}", error.message);
        }
        error
    })?;
    let digest = digest(&data)?;
    let step = match resume {
        Some(folder) => check_checkpoint(job, (&digest, data.training.source_len()), model.layout(), folder)?,
        None => None,
    };
    let model = fingerprint(model.as_ref(), recipe.onnx(&data.schema)?.as_deref());
    Ok(Checked { data, model, rows: digest, step })
}

/// Whether this build has the transport that the job asks for, and ranks that another launcher started if it needs them.
pub fn check_carrier(job: &JobSpec, place: Option<&Place>) -> Result<()> {
    mpi::check(job.exchange.transport)?;
    let own = place.is_none_or(|place| place.launcher == "thalweg");
    if job.exchange.transport == Carrier::Mpi && own && job.ranks() > 1 {
        let message = "strategy.exchange.transport: `mpi` is between ranks that MPI started, not this command's own workers";
        return Err(Error::job(message).hint(mpi::START_WITH_MPIRUN));
    }
    Ok(())
}

/// A source that cannot be read is the job's fault as long as nothing has started.
pub(crate) fn nothing_started(mut error: Error) -> Error {
    if error.kind == Kind::Io {
        error.kind = Kind::Job;
    }
    error
}

/// A run goes on with the same rows, but their file may have moved.
fn with_moved_hint(mut error: Error, job: &JobSpec) -> Error {
    let source = &job.data.source;
    if is_path("data.source", &source.as_str().into()) && !thalweg_data::exists(source) {
        let moved = "if the data has moved, --set data.source=PATH tells where it is now";
        error.hint = Some(error.hint.map_or(moved.into(), |hint| format!("{hint}; {moved}")));
    }
    error
}

/// Values that decide which rows a step has: they cannot change in the middle of a job.
const FIXED: [&str; 3] = ["train.seed", "train.global_batch", "data."];

/// `data` is the digest of the data, and how many rows its source has.
fn check_checkpoint(
    job: &JobSpec,
    (data, rows): (&str, u64),
    layout: &Layout,
    folder: &Path,
) -> Result<Option<u64>> {
    // Rank 0 will say which newer ones are damaged.
    let Some(Found { checkpoint, path, .. }) = checkpoint::newest(&folder.join("checkpoints"), layout)?
    else {
        return Ok(None);
    };
    check_optimizer(&Optimizer::for_layout(job.optimizer.rule(), layout), &checkpoint, &path)?;
    let mut layers = Layers::default();
    layers.add_file("the checkpoint", &checkpoint.job).map_err(Error::data)?;
    let before = Job::resolve(layers)?.spec.values();
    for (key, now) in job.values() {
        let fixed = FIXED.iter().any(|fixed| key.starts_with(fixed))
            && key != "data.memory"
            && !key.starts_with("data.cache");
        let then = before.iter().find(|(other, _)| *other == key).map(|(_, value)| value);
        // Files may have moved: what is in them is compared below.
        let moved = then.is_some_and(|then| is_path(&key, then)) && is_path(&key, &now);
        if fixed && !moved && then != Some(&now) {
            let then = then.map_or_else(|| "unset".to_string(), ToString::to_string);
            return Err(Error::job(format!("cannot resume {}: {key} was {then}, now it is {now}", folder.display()))
                .hint("rows would be missed or seen twice; resume with the old value, or start fresh with --overwrite"));
        }
    }
    check_data(data, &checkpoint, &path)?;
    check_audit(rows, &checkpoint, &path)?;
    Ok(Some(checkpoint.step))
}
