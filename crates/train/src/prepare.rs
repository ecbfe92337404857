//! Before the first step: data, model, strategy and position, agreed by all ranks.

use crate::driver::Driver;
use crate::ensembles;
use crate::hooks::check_parts;
use crate::registry::{self, Setup};
use crate::resumption;
use crate::roles::Roles;
use crate::serving::shards;
use crate::strategy::Strategy;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_cluster::membership::MemberPosition;
use thalweg_core::event::{Event, Level, Outcome};
use thalweg_core::{Error, JobSpec, Model, Result, Rng, Schema};
use thalweg_data::{Data, Statistics};
use thalweg_graph::optimizer::GradientTransform;
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

/// What a rank trains with.
pub(crate) struct Parts {
    /// Rows, with their scaling fitted.
    pub(crate) data: Data,
    pub(crate) model: Box<dyn Model>,
    pub(crate) optimizer: Optimizer,
    pub(crate) strategy: Box<dyn Strategy>,
    /// The layers in the notation of a job, if the model comes from there.
    pub(crate) layers: Vec<String>,
    /// The structure of an ONNX file, if the model comes from one.
    pub(crate) onnx: Option<Vec<u8>>,
}

/// Where a rank starts from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Steps committed before.
    pub(crate) step: u64,
    /// Sum of losses and rows of the current epoch.
    pub(crate) loss: (f64, u64),
    /// Of rounds that adapt: the loss of the first epoch, and the steps between two merges.
    pub(crate) interval: (f64, u64),
    /// Training time up to then.
    pub(crate) trained: Duration,
    /// Rows of the current epoch consumed before, by all ranks.
    pub(crate) consumed: Vec<u8>,
    /// The step before which the optimizer's slots were zero: their updates are counted from there.
    pub(crate) slots_start: u64,
    pub(crate) data_digest: String,
    pub(crate) model_digest: Vec<u8>,
    /// Whether the strategy has the state of that step; a new member receives it later.
    pub(crate) has_state: bool,
}

/// Data, model and position of a rank, before it has joined the others or together with them.
pub struct Prepared {
    parts: Parts,
    start: Start,
}

impl Prepared {
    /// Digest of what is trained, which ranks compare.
    pub fn model(&self) -> &[u8] {
        &self.start.model_digest
    }

    /// Digest of the rows, which new members must have too.
    pub fn rows(&self) -> &str {
        &self.start.data_digest
    }

    /// Reads and builds everything without the others, which train meanwhile.
    pub fn alone(assignment: &Assignment<'_>) -> Result<Prepared> {
        Prepared::by_itself(assignment, None)
    }

    fn by_itself(assignment: &Assignment<'_>, member: Option<usize>) -> Result<Prepared> {
        let mut data = ensembles::open_data(assignment.components, assignment.job)?;
        let data_digest = digest(&data)?;
        if data.needs_statistics() {
            let all = data.statistics(0, 1)?;
            data.fit(&[all])?;
        }
        let team = Team::shared(assignment.job.engine.threads, assignment.job.engine.workers);
        let (parts, model_digest) = build(assignment, data, team, member)?;
        Ok(Prepared { parts, start: Start { data_digest, model_digest, ..Start::default() } })
    }

    /// The same together with the others, each of which reads a share of the data.
    fn together(rank: &mut Rank, assignment: &Assignment<'_>) -> Result<Prepared> {
        rank.begin_preparation("reading the data");
        let mut data = ensembles::open_data(assignment.components, assignment.job)?;
        let data_digest = digest(&data)?;
        rank.world().compare("data set", data_digest.as_bytes())?;
        fit(rank, &mut data)?;
        let team = Team::shared(assignment.job.engine.threads, rank.local_world());
        let (mut parts, model_digest) = build(assignment, data, team, Some(rank.member_id()))?;
        rank.world().compare("model", &model_digest)?;
        let start = start(rank, assignment, data_digest, &mut parts)?;
        Ok(Prepared { parts, start: Start { model_digest, has_state: true, ..start } })
    }
}

/// `member` is the id of this rank, if it has one already.
fn build(
    assignment: &Assignment<'_>,
    data: Data,
    team: Arc<Team>,
    member: Option<usize>,
) -> Result<(Parts, Vec<u8>)> {
    let job = assignment.job;
    let model = assignment.components.model(&data.schema, &team)?;
    check_parts(job, model.as_ref())?;
    ensembles::check(job, model.as_ref(), &data.schema)?;
    let model = ensembles::model_of(job, model, &data.schema);
    let onnx = assignment.components.onnx(&data.schema)?;
    let digest = fingerprint(model.as_ref(), onnx.as_deref());
    let optimizer = Optimizer::for_layout(job.optimizer.rule(), model.layout())
        .with_transform(GradientTransform::of(job))
        .with_team(team);
    let (layout, servers) = (model.layout(), Roles::of(job).servers());
    let shards = shards::split(layout, optimizer.scope(), servers.len());
    let serves = member.filter(|id| servers.contains(id)).and_then(|id| shards.get(id - servers.start));
    let setup = Setup { job, optimizer: &optimizer, parameters: layout.len(), serves };
    let strategy = registry::of(job).start(setup);
    let layers = assignment.components.layers(&data.schema)?;
    Ok((Parts { data, model, optimizer, strategy, layers, onnx }, digest))
}

/// Trains, as one rank of many. A new member brings what it has `prepared`.
pub fn run(rank: &mut Rank, assignment: &Assignment<'_>, mut prepared: Option<Prepared>) -> Result<Outcome> {
    let Prepared { parts, start } = loop {
        // A group in which training has begun does not wait for a preparation together.
        let ready = match (rank.change().resume_position(), prepared.take()) {
            (None, _) => Prepared::together(rank, assignment),
            (Some(_), Some(prepared)) => Ok(prepared),
            (Some(_), None) => Prepared::by_itself(assignment, Some(rank.member_id())),
        };
        match ready {
            // What a rank finds out by itself (other data, a file that cannot be read) is final: it would find it again,
            // and the others may be ending for the same reason. Only the end of the generation makes it prepare again.
            Err(error) if rank.generation_ended_with(&error) => {
                rank.regroup(MemberPosition::default(), false)?;
            }
            ready => break ready?,
        }
    };
    let now = rank.now();
    Driver::new(rank, assignment.job, assignment.folder, parts, start)?.run(now)
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
    Ok(digest_from(Sha256::new_with_prefix(schema), data, data.training.len()))
}

/// The same without what is known of the columns: a model that opens its rows again finds the same digest, and with it
/// the same split, whatever was held out from training.
pub fn rows_digest(data: &Data) -> String {
    digest_from(Sha256::new(), data, data.split_training)
}

fn digest_from(mut digest: Sha256, data: &Data, training: u64) -> String {
    let counts = [training, data.validation.len(), data.training.source_len()];
    counts.iter().for_each(|count| digest.update(count.to_le_bytes()));
    data.checksums().iter().for_each(|checksum| digest.update(checksum.to_le_bytes()));
    thalweg_core::hex::encode(&digest.finalize())
}

/// Fits the scaling: each rank reads its share of the blocks.
fn fit(rank: &mut Rank, data: &mut Data) -> Result<()> {
    if !data.needs_statistics() {
        return Ok(());
    }
    let mine = data.statistics(rank.index(), rank.size())?;
    let text = postcard::to_stdvec(&mine).map_err(|error| Error::internal(error.to_string()))?;
    let parts = rank.world().all_gather("data statistics", &text)?;
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

/// The seed of a member's initial parameters: that of the job, unless every member has a start of its own.
pub(crate) fn initial_seed(job: &JobSpec, member: usize) -> u64 {
    match registry::of(job).claims.own_start {
        true => Rng::keyed(job.train.seed, "start of a member", &[member as u64]).bits(),
        false => job.train.seed,
    }
}

/// Fills the strategy's state: from the seed, or from rank 0's newest checkpoint.
fn start(
    rank: &mut Rank,
    assignment: &Assignment<'_>,
    data_digest: String,
    parts: &mut Parts,
) -> Result<Start> {
    let job = assignment.job;
    if let Some(resumed) = resumption::resume(rank, assignment, &data_digest, parts)? {
        return Ok(Start { data_digest, ..resumed });
    }
    let parameters = parts.strategy.state_mut().parameters_mut();
    let claims = registry::of(job).claims;
    parts.model.initialize(initial_seed(job, rank.member_id()), parameters);
    if claims.equal_start {
        let mut digest = Sha256::new();
        parameters.iter().for_each(|value| digest.update(value.to_le_bytes()));
        rank.world().compare("set of initial parameters", &digest.finalize())?;
    }
    Ok(Start { data_digest, ..Start::default() })
}
