//! Before the first step: data, model and position, agreed by all ranks; and after the last: what is left behind.

use crate::audit::Ledger;
use crate::hooks::check_parts;
use crate::strategy;
use crate::worker::{Parts, Start, Worker};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thalweg_cluster::Rank;
use thalweg_cluster::checkpoint::{self, Checkpoint, Found};
use thalweg_cluster::membership::MemberPosition;
use thalweg_core::event::{Event, Level, Outcome};
use thalweg_core::spec::{Job, JobLayers};
use thalweg_core::{Error, JobSpec, Kind, Model, Result, Schema};
use thalweg_data::{Data, Statistics};
use thalweg_graph::{Optimizer, Team};

/// Source of a job's data and model: the job file, or a program.
pub trait JobComponents {
    /// Opens the training and validation rows.
    fn data(&self, job: &JobSpec) -> Result<Data>;
    /// Builds the model for rows of this schema; `team` is the thread pool it may compute on.
    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>>;
    /// The layers in the notation of a job file; empty if the model does not come from there.
    fn layers(&self, _schema: &Schema) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
    /// The structure of the ONNX file without its weights; `None` if the model does not come from one.
    fn onnx(&self, _schema: &Schema) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }
}

/// What a rank is to do.
#[derive(Clone, Copy)]
pub struct Assignment<'a> {
    /// The job.
    pub job: &'a JobSpec,
    /// Source of data and model.
    pub components: &'a dyn JobComponents,
    /// Where rank 0 leaves checkpoints and the model.
    pub folder: &'a Path,
    /// Whether to go on from the newest checkpoint there.
    pub resume: bool,
}

/// Data and model of a rank, before it has found the others or with their help.
pub struct Prepared {
    parts: Parts,
    start: Start,
}

impl Prepared {
    /// What is trained, as ranks compare it when they meet.
    pub fn model(&self) -> &[u8] {
        &self.start.model_digest
    }

    /// The rows it is trained with, as newcomers are asked for it.
    pub fn rows(&self) -> &str {
        &self.start.data_digest
    }

    /// Reads and builds everything without the others, who are at work: so that they need not wait for it.
    pub fn alone(assignment: &Assignment<'_>) -> Result<Prepared> {
        let mut data = assignment.components.data(assignment.job)?;
        let data_digest = digest(&data)?;
        if data.needs_statistics() {
            let all = data.statistics(0, 1)?;
            data.fit(&[all])?;
        }
        let team = Team::shared(assignment.job.engine.threads, assignment.job.engine.workers);
        let (parts, model_digest) = build(assignment, data, team)?;
        Ok(Prepared { parts, start: Start { data_digest, model_digest, ..Start::default() } })
    }

    /// The same together with the others, each of which reads a share of the data.
    fn together(rank: &mut Rank, assignment: &Assignment<'_>) -> Result<Prepared> {
        rank.begin_preparation("reading the data");
        let mut data = assignment.components.data(assignment.job)?;
        let data_digest = digest(&data)?;
        rank.all_gather_and_compare("data set", data_digest.as_bytes())?;
        fit(rank, &mut data)?;
        let team = Team::shared(assignment.job.engine.threads, rank.local_world());
        let (mut parts, model_digest) = build(assignment, data, team)?;
        rank.all_gather_and_compare("model", &model_digest)?;
        let Parts { data, model, parameters, optimizer, .. } = &mut parts;
        let data = (data_digest, data.training.source_len());
        let start = start(rank, assignment, data, model.as_ref(), parameters, optimizer)?;
        Ok(Prepared { parts, start: Start { model_digest, is_told: true, ..start } })
    }
}

fn build(assignment: &Assignment<'_>, data: Data, team: Arc<Team>) -> Result<(Parts, Vec<u8>)> {
    let job = assignment.job;
    let model = assignment.components.model(&data.schema, &team)?;
    check_parts(job, model.as_ref())?;
    let onnx = assignment.components.onnx(&data.schema)?;
    let digest = fingerprint(model.as_ref(), onnx.as_deref());
    let parameters = vec![0.0; model.layout().len()];
    let optimizer = Optimizer::for_layout(job.optimizer.rule(), model.layout()).with_team(team);
    let layers = assignment.components.layers(&data.schema)?;
    Ok((Parts { data, model, parameters, optimizer, layers, onnx }, digest))
}

/// Trains, as one rank of many. One that comes while the others work brings what it has `prepared`.
pub fn run(rank: &mut Rank, assignment: &Assignment<'_>, mut prepared: Option<Prepared>) -> Result<Outcome> {
    let Prepared { parts, start } = loop {
        // A group in which somebody has begun has no time to prepare together.
        let ready = match (rank.change().resume_position(), prepared.take()) {
            (None, _) => Prepared::together(rank, assignment),
            (Some(_), Some(prepared)) => Ok(prepared),
            (Some(_), None) => Prepared::alone(assignment),
        };
        match ready {
            Err(error) if error.kind == Kind::Regroup && rank.is_elastic() => {
                rank.regroup(MemberPosition::default(), false)?;
            }
            ready => break ready?,
        }
    };
    let now = rank.now();
    let mut worker = Worker::new(rank, assignment.job, assignment.folder, parts, start)?;
    let mut ended = worker.enter_group(now).and_then(|()| go(&mut worker));
    while let Err(error) = &ended
        && error.kind == Kind::Regroup
        && worker.rank.is_elastic()
    {
        ended = worker.regroup(false).and_then(|()| go(&mut worker));
    }
    ended
}

fn go(worker: &mut Worker<'_>) -> Result<Outcome> {
    strategy::program(worker.job)(worker)?;
    worker.conclude()
}

/// A digest of what is trained. Tensors alone do not tell what a file computes with them.
pub fn fingerprint(model: &dyn Model, onnx: Option<&[u8]>) -> Vec<u8> {
    let mut digest = Sha256::new_with_prefix(model.layout().hash());
    onnx.into_iter().for_each(|bytes| digest.update(bytes));
    digest.finalize().to_vec()
}

/// A digest of what the rows are and what they hold: every rank must read the same, and so must a run that goes on from another.
pub fn digest(data: &Data) -> Result<String> {
    // Where columns stand is part of the checksums, and older runs did not say it.
    let schema = Schema { source_columns: Vec::new(), ..data.schema.clone() };
    let schema = serde_json::to_vec(&schema).map_err(|error| Error::internal(error.to_string()))?;
    Ok(digest_from(Sha256::new_with_prefix(schema), data))
}

/// The same without what is known of the columns: a model that opens its rows again finds the same digest, and with it
/// the same split.
pub fn rows_digest(data: &Data) -> String {
    digest_from(Sha256::new(), data)
}

fn digest_from(mut digest: Sha256, data: &Data) -> String {
    let counts = [data.training.len(), data.validation.len(), data.training.source_len()];
    counts.iter().for_each(|count| digest.update(count.to_le_bytes()));
    data.checksums().iter().for_each(|checksum| digest.update(checksum.to_le_bytes()));
    thalweg_core::hex::encode(&digest.finalize())
}

/// A run can only go on with the rows it began with.
pub fn check_data(digest: &str, checkpoint: &Checkpoint, path: &Path) -> Result<()> {
    if checkpoint.data == digest {
        return Ok(());
    }
    Err(Error::job(format!("the data has changed since {} was written", path.display()))
        .hint("rows would be missed or seen twice; put the old data back, or start fresh with --overwrite"))
}

/// The audit of a checkpoint must be of as many rows as there are.
pub fn check_audit(rows: u64, checkpoint: &Checkpoint, path: &Path) -> Result<()> {
    if checkpoint.audit.is_empty() || Ledger::fits(&checkpoint.audit, rows) {
        return Ok(());
    }
    let (shown, length) = (path.display(), checkpoint.audit.len());
    Err(Error::data(format!(
        "{shown} cannot be used: its audit of {length} bytes is not that of {rows} rows"
    ))
    .hint("resume from another checkpoint (move this one away), or start fresh with --overwrite"))
}

/// Fits the scaling: each rank reads its share of the blocks.
fn fit(rank: &mut Rank, data: &mut Data) -> Result<()> {
    if !data.needs_statistics() {
        return Ok(());
    }
    let mine = data.statistics(rank.index(), rank.world())?;
    let text = postcard::to_stdvec(&mine).map_err(|error| Error::internal(error.to_string()))?;
    let parts = rank.all_gather("data statistics", &text)?;
    let parts = parts
        .iter()
        .map(|part| postcard::from_bytes(part).map_err(|error| Error::internal(error.to_string())))
        .collect::<Result<Vec<Statistics>>>()?;
    let warnings = data.fit(&parts)?;
    if rank.index() == 0 {
        for message in warnings {
            rank.emit(Event::Notice { level: Level::Warning, message });
        }
    }
    Ok(())
}

/// Fills parameters and optimizer: from the seed, or from rank 0's newest checkpoint.
fn start(
    rank: &mut Rank,
    assignment: &Assignment<'_>,
    (data_digest, rows): (String, u64),
    model: &dyn Model,
    parameters: &mut [f32],
    optimizer: &mut Optimizer,
) -> Result<Start> {
    let mut start = Start { data_digest, ..Start::default() };
    if rank.index() == 0
        && assignment.resume
        && let Some(found) = checkpoint::newest(&assignment.folder.join("checkpoints"), model.layout())?
    {
        let Found { checkpoint, path, damaged } = found;
        pass_over(rank, damaged, checkpoint.step)?;
        check_data(&start.data_digest, &checkpoint, &path)?;
        check_audit(rows, &checkpoint, &path)?;
        start =
            Start { step: checkpoint.step, loss: checkpoint.loss, audit: checkpoint.audit.clone(), ..start };
        parameters.copy_from_slice(&checkpoint.parameters);
        restore(optimizer, checkpoint, &path)?;
    }
    let position = (start.step, start.loss);
    let encoded = postcard::to_stdvec(&position).map_err(|error| Error::internal(error.to_string()))?;
    let decoded = rank.broadcast("position", encoded)?;
    (start.step, start.loss) =
        postcard::from_bytes(&decoded).map_err(|error| Error::internal(error.to_string()))?;
    if start.step == 0 {
        model.initialize(assignment.job.train.seed, parameters);
        let mut digest = Sha256::new();
        parameters.iter().for_each(|value| digest.update(value.to_le_bytes()));
        rank.all_gather_and_compare("set of initial parameters", &digest.finalize())?;
        return Ok(start);
    }
    rank.broadcast_into("parameters", parameters)?;
    for (_, slot) in optimizer.slots_mut() {
        rank.broadcast_into("optimizer state", slot)?;
    }
    optimizer.set_steps(start.step);
    Ok(start)
}

/// Says which checkpoints are damaged, and takes them out of the way.
fn pass_over(rank: &Rank, damaged: Vec<(PathBuf, Error)>, step: u64) -> Result<()> {
    for (path, error) in damaged {
        let aside = checkpoint::set_aside(&path)?;
        let (why, aside) = (error.message, aside.display());
        let message = format!("{why}; it is kept as {aside}, and training goes on from step {step}");
        rank.emit(Event::Notice { level: Level::Warning, message });
    }
    Ok(())
}

fn restore(optimizer: &mut Optimizer, checkpoint: Checkpoint, path: &Path) -> Result<()> {
    check_optimizer(optimizer, &checkpoint, path)?;
    for ((_, slot), (_, values)) in optimizer.slots_mut().into_iter().zip(checkpoint.slots) {
        slot.copy_from_slice(&values);
    }
    Ok(())
}

/// A checkpoint must hold the state this optimizer needs, and no other.
pub fn check_optimizer(optimizer: &Optimizer, checkpoint: &Checkpoint, path: &Path) -> Result<()> {
    let mut layers = JobLayers::default();
    layers.add_file("the checkpoint", &checkpoint.job).map_err(Error::data)?;
    let (before, now) = (Job::resolve(layers)?.spec.optimizer.kind, optimizer.rule().kind());
    // Some kinds keep state under the same names, and mean something else by it.
    if before != now {
        return Err(Error::job(format!(
            "{} was written with the optimizer `{}`, but the job says `{}`: the state of one is of no use to the other",
            path.display(),
            before.name(),
            now.name()
        ))
        .hint("resume with the optimizer it was trained with, or start fresh with --overwrite"));
    }
    let wanted: Vec<&str> = optimizer.slots().iter().map(|(name, _)| *name).collect();
    let stored: Vec<&str> = checkpoint.slots.iter().map(|(name, _)| name.as_str()).collect();
    if wanted != stored {
        return Err(Error::job(format!(
            "{} was written with another optimizer (it holds {stored:?}, this one needs {wanted:?})",
            path.display()
        ))
        .hint("resume with the optimizer it was trained with, or start fresh with --overwrite"));
    }
    Ok(())
}

/// All ranks' accounts, told by rank 0.
pub(crate) fn settle(rank: &mut Rank) -> Result<()> {
    let mine = postcard::to_stdvec(&rank.account()).map_err(|error| Error::internal(error.to_string()))?;
    let accounts = rank.all_gather("accounts", &mine)?;
    if rank.index() == 0 {
        for account in accounts {
            let account =
                postcard::from_bytes(&account).map_err(|error| Error::internal(error.to_string()))?;
            rank.emit(Event::Account { account });
        }
    }
    Ok(())
}
