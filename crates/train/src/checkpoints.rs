//! The files of a run: checkpoints on the way, the model at the end. Both are views of the strategy's state.

use crate::checkpoint_writer::CheckpointWriter;
use crate::context::Context;
use crate::ensembles::{self, combination};
use crate::modelfile::{SavedModel, about, combined_by, kept, unflatten, unflatten_members};
use crate::prepare::rows_digest;
use crate::roles::Roles;
use crate::serving::shards;
use crate::state::{Column, Spread};
use crate::strategy::Strategy;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::event::Event;
use thalweg_core::{Error, JobSpec, Layout, Result};

/// What identifies the run, and the writer of its checkpoints on rank 0.
pub(crate) struct Checkpoints<'a> {
    folder: &'a Path,
    job: &'a JobSpec,
    /// The layers in the notation of a job, if the model comes from there.
    layers: Vec<String>,
    /// The structure of an ONNX file, if the model comes from one.
    onnx: Option<Vec<u8>>,
    data_digest: String,
    model_digest: Vec<u8>,
    writer: Option<CheckpointWriter>,
    /// Whether the next checkpoint was requested from outside.
    requested: bool,
}

impl<'a> Checkpoints<'a> {
    pub(crate) fn new(
        folder: &'a Path,
        job: &'a JobSpec,
        layers: Vec<String>,
        onnx: Option<Vec<u8>>,
        data_digest: String,
        model_digest: Vec<u8>,
    ) -> Checkpoints<'a> {
        let (writer, requested) = (None, false);
        Checkpoints { folder, job, layers, onnx, data_digest, model_digest, writer, requested }
    }

    pub(crate) fn data_digest(&self) -> &str {
        &self.data_digest
    }

    pub(crate) fn model_digest(&self) -> &[u8] {
        &self.model_digest
    }

    /// The model, as the progress view names it.
    pub(crate) fn model_name(&self) -> String {
        match (self.layers.as_slice(), self.job.model.zoo) {
            ([], _) if self.onnx.is_some() => self.job.model.onnx.clone().unwrap_or_default(),
            ([], _) => "a network of the program's own".into(),
            (_, Some(zoo)) => zoo.name().into(),
            (layers, None) => layers.join(", "),
        }
    }

    /// From now on this rank writes checkpoints, or does not.
    pub(crate) fn set_writer(&mut self, writes: bool, layout: &Layout) {
        self.writer = match self.writer.take() {
            writer if writer.is_some() == writes => writer,
            None => {
                let keep = self.job.fault.checkpoint_keep;
                Some(CheckpointWriter::new(&self.folder.join("checkpoints"), layout, keep))
            }
            Some(_) => None,
        };
    }

    pub(crate) fn request(&mut self, requested: bool) {
        self.requested |= requested;
    }

    /// Fails if the last checkpoint could not be written.
    pub(crate) fn poll(&mut self) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), CheckpointWriter::poll)
    }

    /// Waits until the last checkpoint is on disk, so that the next one can be copied.
    pub(crate) fn await_buffer(&mut self, cx: &mut Context<'_>) -> Result<()> {
        match &mut self.writer {
            Some(writer) => writer.await_buffer(cx.rank, cx.job.fault.checkpoint_every),
            None => Ok(()),
        }
    }

    /// Waits until the last checkpoint is on disk, at the end.
    pub(crate) fn finish(&mut self, rank: &mut Rank) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.finish(rank))
    }

    /// Copies the state and starts to write it. All ranks call it: they send rank 0 the columns of their own, except for
    /// the receivers of a transfer, which have not all of them. `start` is when training paused.
    pub(crate) fn write(
        &mut self,
        cx: &mut Context<'_>,
        strategy: &dyn Strategy,
        (loss, interval, trained): ((f64, u64), (f64, u64), Duration),
        (start, receivers): (Duration, &[usize]),
    ) -> Result<()> {
        let servers = Roles::of(cx.job).server_ranks(&cx.rank.member_ids());
        let shards = shards::split(cx.compute.model.layout(), cx.optimizer.scope(), servers.len());
        let servers: Vec<(usize, usize)> = servers.into_iter().zip(shards.iter().map(Range::len)).collect();
        let members = gather(cx.rank, strategy, receivers, &servers)?;
        let requested = std::mem::take(&mut self.requested);
        if cx.rank.take_injected_full_disk() && self.writer.is_some() {
            let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(Error::io("cannot write the checkpoint (fault.inject)", &full));
        }
        let combined = combined_by(combination(self.job), self.parts(cx, strategy.published()).1)?;
        if let Some(writer) = &mut self.writer {
            let buffer = writer.buffer();
            (buffer.step, buffer.loss, buffer.slots_start) = (cx.work.next(), loss, cx.slots_start);
            (buffer.trained, buffer.interval) = (trained, interval);
            buffer.job = kept(cx.job).to_toml();
            buffer.data.clone_from(&self.data_digest);
            if buffer.model.is_empty() {
                let data = &cx.compute.data;
                buffer.model =
                    about(&data.schema, &self.layers, self.onnx.as_deref(), Some(&rows_digest(data)))?;
            }
            buffer.model.extend(combined);
            buffer.audit = cx.work.consumed().to_bytes();
            // No update happens meanwhile: the next one waits for this rank.
            // Of an ensemble, those of its first member: all are stored as parameters of their worker.
            let length = cx.compute.model.layout().len();
            strategy.published()[..length].clone_into(&mut buffer.parameters);
            let names: Vec<(usize, &str, Spread)> = strategy
                .state()
                .columns()
                .iter()
                .enumerate()
                .skip(1)
                .map(|(index, column)| (index, column.name, column.spread))
                .collect();
            let replicated = names.iter().filter(|(.., spread)| *spread == Spread::Replicated);
            buffer.slots.resize_with(replicated.clone().count(), Default::default);
            for ((name, values), (index, title, _)) in buffer.slots.iter_mut().zip(replicated) {
                (*title).clone_into(name);
                strategy.column(*index).clone_into(values);
            }
            buffer.slots.extend(members);
            let pause = cx.rank.now().saturating_sub(start);
            writer.write(cx.rank, pause, requested)?;
        }
        cx.rank.checkpoint_taken(requested);
        Ok(())
    }

    /// The parameters of all members of an ensemble, and those of a combination that was learned.
    fn parts<'p>(&self, cx: &Context<'_>, published: &'p [f32]) -> (&'p [f32], &'p [f32]) {
        let outputs = cx.compute.data.schema.outputs();
        ensembles::parts(self.job, published, cx.compute.model.layout().len(), outputs)
    }

    /// Writes the final model, on rank 0.
    pub(crate) fn save_model(&self, cx: &Context<'_>, parameters: &[f32]) -> Result<()> {
        if cx.rank.index() != 0 {
            return Ok(());
        }
        let (path, data) = (self.folder.join("model.safetensors"), &cx.compute.data);
        let (parameters, combiner) = self.parts(cx, parameters);
        SavedModel {
            schema: data.schema.clone(),
            layers: self.layers.clone(),
            onnx: self.onnx.clone(),
            // With paths as the job has them: the same training in another folder gives the same file.
            job: self.job.recipe(),
            step: cx.work.next(),
            notices: Vec::new(),
            rows: Some(rows_digest(data)),
            tensors: match combination(self.job) {
                Some(_) => unflatten_members(cx.compute.model.layout(), parameters),
                None => unflatten(cx.compute.model.layout(), parameters),
            },
            combine: combination(self.job),
            combiner: combiner.to_vec(),
            path: path.clone(),
        }
        .write(&path)?;
        cx.rank.emit(Event::Saved { path: path.display().to_string() });
        Ok(())
    }
}

/// The name of a column of one member in a checkpoint: `first_moment@2`.
pub(crate) fn member_column(name: &str, rank: usize) -> String {
    format!("{name}@{rank}")
}

/// The column that a name in a checkpoint belongs to.
pub(crate) fn column_of(stored: &str) -> &str {
    stored.split_once('@').map_or(stored, |(name, _)| name)
}

/// Rank 0 receives the columns that it does not have: those of every worker's own, and those that servers keep, each server
/// so many elements. All ranks must call it.
fn gather(
    rank: &mut Rank,
    strategy: &dyn Strategy,
    receivers: &[usize],
    servers: &[(usize, usize)],
) -> Result<Vec<(String, Vec<f32>)>> {
    let state = strategy.state();
    // Published parameters are stored apart.
    let is_stored = |(index, column): &(usize, &Column)| match column.spread {
        Spread::Replicated => false,
        Spread::PerMember => true,
        Spread::OnServers => *index > 0,
    };
    let columns: Vec<&Column> =
        state.columns().iter().enumerate().filter(is_stored).map(|(_, column)| column).collect();
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let shard = |rank: usize| servers.iter().find(|(server, _)| *server == rank).map(|(_, length)| *length);
    let has = |rank: usize, column: &Column| match column.spread {
        Spread::OnServers => shard(rank).is_some(),
        _ => shard(rank).is_none() && !receivers.contains(&rank),
    };
    let name = |rank: usize, column: &Column| match column.spread {
        Spread::PerMember => member_column(column.name, rank),
        _ => column.name.to_string(),
    };
    let (mut all, mut sends) = (Vec::new(), Vec::new());
    if rank.index() == 0 {
        for member in 0..rank.size() {
            let values = |column: &Column| match member {
                0 => column.values.clone(),
                _ => vec![0.0; shard(member).unwrap_or(state.len())],
            };
            let kept = columns.iter().filter(|column| has(member, column));
            all.extend(kept.map(|column| (member, name(member, column), values(column))));
        }
    } else {
        let kept = columns.iter().filter(|column| has(rank.index(), column));
        sends.extend(kept.map(|column| (0, &column.values[..])));
    }
    let mut receives: Vec<(usize, &mut [f32])> = Vec::new();
    for (member, _, values) in all.iter_mut().filter(|(member, ..)| *member > 0) {
        receives.push((*member, values));
    }
    if rank.size() > 1 {
        rank.world().exchange("gather", "the members' optimizer state", &sends, &mut receives)?;
    }
    // The shards of servers follow each other.
    let mut columns: Vec<(String, Vec<f32>)> = Vec::new();
    for (_, name, mut values) in all {
        match columns.iter_mut().find(|(known, _)| *known == name) {
            Some((_, column)) => column.append(&mut values),
            None => columns.push((name, values)),
        }
    }
    Ok(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_members_have_names_of_their_own() {
        assert_eq!(column_of(&member_column("first_moment", 12)), "first_moment");
        assert_eq!(column_of("velocity"), "velocity");
    }
}
