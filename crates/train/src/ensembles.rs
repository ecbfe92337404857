//! Ensembles in the training layer: whether a job can have one, its model, and the names of its members' tensors in files.

use crate::checkpoints::member_column;
use crate::decentralized::gossip_learning::EARLIER;
use crate::prepare::JobComponents;
use crate::registry;
use crate::state::PARAMETERS;
use thalweg_cluster::tensorfile::TensorFile;
use thalweg_core::spec::ensemble::Combine;
use thalweg_core::{Error, JobSpec, Model, Result, Schema, Task};
use thalweg_data::Data;
use thalweg_graph::Loss;
use thalweg_graph::ensemble::{self, Ensemble};

/// How the members of a job's ensemble answer together, if the job trains one that does not become one model.
pub(crate) fn combination(job: &JobSpec) -> Option<Combine> {
    let is_one = job.ensemble.combine == Combine::Merge;
    registry::find(job).filter(|strategy| strategy.claims.ensemble && !is_one).map(|_| job.ensemble.combine)
}

/// The rows of a job, with those held out that a combination is learned from.
pub fn open_data(components: &dyn JobComponents, job: &JobSpec) -> Result<Data> {
    let mut data = components.data(job)?;
    if combination(job) == Some(Combine::Stack) {
        let held_out = data.hold_out(job.ensemble.stack_share, job.train.seed);
        held_out.map_err(|error| error.hint("change strategy.ensemble.stack_share, or add rows"))?;
    }
    Ok(data)
}

/// The parameters of a published model: those of its members, of `length` each, and those of a combination that was learned.
pub(crate) fn parts<'a>(
    job: &JobSpec,
    published: &'a [f32],
    length: usize,
    outputs: usize,
) -> (&'a [f32], &'a [f32]) {
    ensemble::parts(combination(job).unwrap_or(Combine::Average), published, length, outputs)
}

/// Refuses an ensemble of models that cannot answer together.
pub fn check(job: &JobSpec, model: &dyn Model, schema: &Schema) -> Result<()> {
    let Some(combine) = combination(job) else { return Ok(()) };
    let name = registry::of(job).name;
    if schema.reconstruct {
        return Err(Error::job(format!("`{name}` combines predictions, and an auto-encoder has none"))
            .hint("train it by another strategy"));
    }
    if combine == Combine::Vote && schema.task == Task::Regression {
        return Err(Error::job("strategy.ensemble.combine: a vote is for a class, and this is a regression")
            .hint("use `average`"));
    }
    if model.predicts_sequences() {
        return Err(Error::job(format!(
            "`{name}` combines one prediction per row, and the network predicts at every position of a sequence"
        ))
        .hint("put \"last\" before the last layer, or use another strategy"));
    }
    Ok(())
}

/// The model that a job evaluates: that of all members, if it trains an ensemble.
pub(crate) fn model_of(job: &JobSpec, member: Box<dyn Model>, schema: &Schema) -> Box<dyn Model> {
    let loss = Loss::from_choice(job.model.loss).unwrap_or(Loss::default_for(schema.task));
    match combination(job) {
        Some(combine) => Box::new(Ensemble::new(member, combine, loss, schema.outputs())),
        None => member,
    }
}

/// What precedes the names of a member's tensors in a model file.
pub(crate) fn prefix(member: usize) -> String {
    format!("members.{member}.")
}

/// The same for every member of the ensemble in a file: a model, or a checkpoint, which stores the models of every worker.
pub(crate) fn prefixes(file: &TensorFile<'_>, is_checkpoint: bool) -> Vec<String> {
    let of = |prefix: &str| -> Vec<_> {
        file.tensors.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, tensor)| tensor).collect()
    };
    let exists = |prefix: &String| !of(prefix).is_empty();
    if !is_checkpoint {
        return (0..).map(prefix).take_while(exists).collect();
    }
    let column = |name: &str, worker| format!("{}.", member_column(name, worker));
    let is_filled =
        |prefix: &String| of(prefix).iter().any(|tensor| tensor.values.iter().any(|value| *value != 0.0));
    let workers = (0..).take_while(|worker| exists(&column(PARAMETERS, *worker)));
    workers
        .flat_map(|worker| {
            let earlier = EARLIER.iter().map(move |name| column(name, worker)).filter(is_filled);
            std::iter::once(column(PARAMETERS, worker)).chain(earlier)
        })
        .collect()
}
