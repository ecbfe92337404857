//! Checks before anything starts: data, model, memory and the checkpoint to resume from.

use std::path::Path;
use std::sync::Arc;
use thalweg_cluster::checkpoint::{self, Found};
use thalweg_cluster::engine::environment::RankEnvironment;
use thalweg_cluster::rendezvous::mpi;
use thalweg_core::spec::JobLayers;
use thalweg_core::spec::paths::is_path;
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, JobSpec, Kind, Layout, Result};
use thalweg_data::Data;
use thalweg_train::JobComponents;
use thalweg_train::ensembles;
use thalweg_train::footprint::Footprint;
use thalweg_train::hooks::check_parts;
use thalweg_train::prepare::{digest, fingerprint};
use thalweg_train::registry;
use thalweg_train::resumption::{check_audit, check_data, check_optimizer};

/// Results of the check.
pub struct Checked {
    /// The opened data.
    pub data: Data,
    /// Fingerprint of the model; ranks compare it in the rendezvous.
    pub model: Vec<u8>,
    /// Digest of the rows; compared with that of workers that join later.
    pub rows: String,
    /// Step of the checkpoint to resume from.
    pub step: Option<u64>,
}

/// Opens the data, builds the model and reads the checkpoint, as every rank will. `ranks` is a lower bound of the ranks
/// on this machine, for the estimate of memory.
pub fn check(
    job: &JobSpec,
    components: &dyn JobComponents,
    resume: Option<&Path>,
    ranks: usize,
) -> Result<Checked> {
    let data = ensembles::open_data(components, job).map_err(as_job_error);
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
    let model = components.model(&data.schema, &Arc::default())?;
    check_parts(job, model.as_ref())?;
    ensembles::check(job, model.as_ref(), &data.schema)?;
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
    let model = fingerprint(model.as_ref(), components.onnx(&data.schema)?.as_deref());
    Ok(Checked { data, model, rows: digest, step })
}

/// Checks that this build has the transport of the job, and that MPI started the ranks if it is `mpi`.
pub fn check_transport(job: &JobSpec, rank_env: Option<&RankEnvironment>) -> Result<()> {
    mpi::check(job.exchange.transport)?;
    let own = rank_env.is_none_or(|rank_env| rank_env.launcher == "thalweg");
    if job.exchange.transport == TransportChoice::Mpi && own && registry::ranks(job) > 1 {
        let message = "strategy.exchange.transport: `mpi` is between ranks that MPI started, not this command's own workers";
        return Err(Error::job(message).hint(mpi::START_WITH_MPIRUN));
    }
    Ok(())
}

/// Turns an I/O error into a job error (exit code 2): before the start, an unreadable source is a mistake in the job.
pub(crate) fn as_job_error(mut error: Error) -> Error {
    if error.kind == Kind::Io {
        error.kind = Kind::Job;
    }
    error
}

/// Adds a hint for data that has moved since the run began.
fn with_moved_hint(mut error: Error, job: &JobSpec) -> Error {
    let source = &job.data.source;
    if is_path("data.source", &source.as_str().into()) && !thalweg_data::source_exists(source) {
        let moved = "if the data has moved, --set data.source=PATH gives its new path";
        error.hint = Some(error.hint.map_or(moved.into(), |hint| format!("{hint}; {moved}")));
    }
    error
}

/// Keys that determine the rows of a step: a resumed run must keep their values.
const FIXED: [&str; 3] = ["train.seed", "train.global_batch", "data."];

/// Checks that the newest checkpoint fits the job; returns its step. `data` is the digest of the data, `rows` the
/// number of rows of its source.
fn check_checkpoint(
    job: &JobSpec,
    (data, rows): (&str, u64),
    layout: &Layout,
    folder: &Path,
) -> Result<Option<u64>> {
    // Rank 0 reports damaged newer ones.
    let Some(Found { checkpoint, path, .. }) = checkpoint::newest(&folder.join("checkpoints"), layout)?
    else {
        return Ok(None);
    };
    check_optimizer(job, &checkpoint, &path)?;
    let mut layers = JobLayers::default();
    layers.add_file("the checkpoint", &checkpoint.job).map_err(Error::data)?;
    let before = registry::resolve(layers)?.spec.values();
    for (key, now) in job.values() {
        let fixed = FIXED.iter().any(|fixed| key.starts_with(fixed))
            && key != "data.memory"
            && !key.starts_with("data.cache");
        let then = before.iter().find(|(other, _)| *other == key).map(|(_, value)| value);
        // Paths may differ; `check_data` compares the contents.
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
