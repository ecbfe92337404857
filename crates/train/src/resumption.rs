//! Resumption: the newest checkpoint becomes the state of the job's strategy, whichever strategy wrote it.
//!
//! ```text
//! rank 0      reads the checkpoint; refuses other data, another model, another optimizer
//! all ranks   position and consumed rows from rank 0
//!             column by column: replicated ones from rank 0, each member its own where they differ
//! ```
//!
//! Strategies keep different columns beside the parameters: slots of the optimizer, an outer momentum. A column that the
//! checkpoint does not have starts at 0, as at the start of a job; one that the strategy does not have is dropped. A
//! notice names both.

use crate::audit::ConsumedRows;
use crate::checkpoints::column_of;
use crate::prepare::{Assignment, Parts, Start};
use crate::registry;
use crate::roles::Roles;
use crate::state::{PARAMETERS, Spread, State};
use std::path::{Path, PathBuf};
use thalweg_cluster::Rank;
use thalweg_cluster::checkpoint::{self, Checkpoint, Found};
use thalweg_core::event::{Event, Level};
use thalweg_core::spec::JobLayers;
use thalweg_core::{Error, JobSpec, Result};

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
    if checkpoint.audit.is_empty() || ConsumedRows::fits(&checkpoint.audit, rows) {
        return Ok(());
    }
    let (shown, length) = (path.display(), checkpoint.audit.len());
    Err(Error::data(format!(
        "{shown} cannot be used: its audit of {length} bytes is not that of {rows} rows"
    ))
    .hint("resume from another checkpoint (move this one away), or start fresh with --overwrite"))
}

/// The optimizer must be of the kind that the checkpoint was written with: kinds keep different state, some of them under
/// the same names.
pub fn check_optimizer(job: &JobSpec, checkpoint: &Checkpoint, path: &Path) -> Result<()> {
    let mut layers = JobLayers::default();
    layers.add_file("the checkpoint", &checkpoint.job).map_err(Error::data)?;
    let (before, now) = (registry::resolve(layers)?.spec.optimizer.kind, job.optimizer.rule().kind());
    if before == now {
        return Ok(());
    }
    Err(Error::job(format!(
        "{} was written with the optimizer `{}`, but the job says `{}`: the state of one is of no use to the other",
        path.display(),
        before.name(),
        now.name()
    ))
    .hint("resume with the optimizer it was trained with, or start fresh with --overwrite"))
}

/// Fills the strategy's state from rank 0's newest checkpoint; None if there is none. All ranks must call it.
pub(crate) fn resume(
    rank: &mut Rank,
    assignment: &Assignment<'_>,
    data_digest: &str,
    parts: &mut Parts,
) -> Result<Option<Start>> {
    let internal = |error: postcard::Error| Error::internal(error.to_string());
    let (mut start, mut stored) = (None, Vec::new());
    if rank.index() == 0
        && assignment.resume
        && let Some(found) = read(rank, assignment, data_digest, parts)?
    {
        let Checkpoint { step, loss, trained, interval, audit, parameters, slots, mut slots_start, .. } =
            found;
        let state = parts.strategy.state_mut();
        state.parameters_mut().copy_from_slice(&parameters);
        stored = slots;
        let columns = match_columns(state, &mut stored);
        if parts.optimizer.slot_names().iter().any(|slot| columns.missing.contains(slot)) {
            slots_start = step;
        }
        for message in columns.notices(registry::of(assignment.job).name, step) {
            rank.emit(Event::Notice { level: Level::Info, message });
        }
        start =
            Some(Start { step, loss, interval, trained, consumed: audit, slots_start, ..Start::default() });
    }
    let sent = rank.world().broadcast("position", 0, postcard::to_stdvec(&start).map_err(internal)?)?;
    let Some(start) = postcard::from_bytes::<Option<Start>>(&sent).map_err(internal)? else {
        return Ok(None);
    };
    let servers = Roles::of(assignment.job).server_ranks(&rank.member_ids());
    scatter(rank, parts.strategy.state_mut(), &stored, &servers)?;
    Ok(Some(start))
}

/// The newest checkpoint, if it fits the job. Damaged ones are named and set aside.
fn read(
    rank: &Rank,
    assignment: &Assignment<'_>,
    data_digest: &str,
    parts: &Parts,
) -> Result<Option<Checkpoint>> {
    let folder = assignment.folder.join("checkpoints");
    let Some(found) = checkpoint::newest(&folder, parts.model.layout())? else { return Ok(None) };
    let Found { checkpoint, path, damaged } = found;
    set_aside(rank, damaged, checkpoint.step)?;
    check_data(data_digest, &checkpoint, &path)?;
    check_audit(parts.data.training.source_len(), &checkpoint, &path)?;
    check_optimizer(assignment.job, &checkpoint, &path)?;
    // A checkpoint before the first step has the initial parameters.
    Ok(Some(checkpoint).filter(|checkpoint| checkpoint.step > 0))
}

/// Renames damaged checkpoints, and says so.
fn set_aside(rank: &Rank, damaged: Vec<(PathBuf, Error)>, step: u64) -> Result<()> {
    for (path, error) in damaged {
        let aside = checkpoint::set_aside(&path)?;
        let (why, aside) = (error.message, aside.display());
        let message = format!("{why}; it is kept as {aside}, and training goes on from step {step}");
        rank.emit(Event::Notice { level: Level::Warning, message });
    }
    Ok(())
}

/// How the columns of a checkpoint differ from those of a strategy.
#[derive(Debug, Default, PartialEq, Eq)]
struct ColumnDifference {
    /// Columns of the strategy that start at 0.
    missing: Vec<&'static str>,
    /// Columns of the checkpoint that are dropped.
    surplus: Vec<String>,
}

impl ColumnDifference {
    fn notices(&self, strategy: &str, step: u64) -> Vec<String> {
        let missing = self.missing.iter().map(|name| {
            format!("the checkpoint of step {step} has no `{name}`: it begins anew in `{strategy}`")
        });
        let surplus = self.surplus.iter().map(|name| match name.as_str() {
            PARAMETERS => format!(
                "the models of the workers in the checkpoint of step {step} are dropped: `{strategy}` goes on from the published one"
            ),
            _ => format!("`{name}` of the checkpoint of step {step} is dropped: `{strategy}` does not use it"),
        });
        missing.chain(surplus).collect()
    }
}

/// Makes the stored columns those of the state.
fn match_columns(state: &State, stored: &mut Vec<(String, Vec<f32>)>) -> ColumnDifference {
    let mut difference = ColumnDifference::default();
    // Replicated parameters are not stored by member.
    let columns = &state.columns()[usize::from(!state.has_own_parameters())..];
    stored.retain(|(name, _)| {
        let name = column_of(name);
        let is_used = columns.iter().any(|column| column.name == name);
        if !is_used && !difference.surplus.iter().any(|known| known == name) {
            difference.surplus.push(name.into());
        }
        is_used
    });
    for column in columns {
        if stored.iter().all(|(name, _)| column_of(name) != column.name) {
            if column.name == PARAMETERS {
                stored.push((PARAMETERS.into(), column.values.clone()));
                continue;
            }
            difference.missing.push(column.name);
            stored.push((column.name.into(), vec![0.0; state.len()]));
        }
    }
    difference
}

/// Rank 0 sends the columns of a checkpoint to the ranks that have them. Columns of members are stored by worker: with more
/// workers than then, some share one. A server has none of them: it has the parameters of the checkpoint.
fn scatter(
    rank: &mut Rank,
    state: &mut State,
    stored: &[(String, Vec<f32>)],
    servers: &[usize],
) -> Result<()> {
    let (parameters, length) = (state.parameters().to_vec(), state.len());
    let zeros = vec![0.0; length];
    let find = |name: &str, to: usize, spread: Spread| {
        let all: Vec<_> = stored.iter().filter(|(stored, _)| column_of(stored) == name).collect();
        match (name, servers.contains(&to)) {
            (PARAMETERS, true) => &parameters[..],
            (PARAMETERS, false) if spread != Spread::PerMember => &parameters[..],
            (_, true) if spread == Spread::PerMember => &zeros[..],
            _ => all.get(to % all.len().max(1)).map_or(&[][..], |(_, values)| values),
        }
    };
    for column in state.columns_mut() {
        let (name, spread, values) = (column.name, column.spread, &mut column.values);
        let receives = |rank: &usize| match spread {
            Spread::Replicated | Spread::PerMember => true,
            Spread::OnServers => servers.contains(rank),
        };
        if rank.index() == 0 && receives(&0) {
            values.copy_from_slice(find(name, 0, spread));
        }
        if spread == Spread::Replicated {
            rank.world().broadcast_into(name, 0, values)?;
            continue;
        }
        let mut sends: Vec<(usize, &[f32])> = Vec::new();
        let mut receive: Vec<(usize, &mut [f32])> = Vec::new();
        match rank.index() {
            0 => sends.extend((1..rank.size()).filter(receives).map(|to| (to, find(name, to, spread)))),
            index if receives(&index) => receive.push((0, &mut values[..])),
            _ => {}
        }
        rank.world().exchange("scatter", name, &sends, &mut receive)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_columns_become_those_of_the_strategy() {
        let state = State::of_parameters(2)
            .with_columns(&["outer_velocity"], Spread::Replicated)
            .with_columns(&["first_moment"], Spread::PerMember);
        let stored = |names: &[&str]| -> Vec<(String, Vec<f32>)> {
            names.iter().map(|name| (name.to_string(), vec![1.0; 2])).collect()
        };
        let mut columns =
            stored(&["first_moment@0", "first_moment@1", "block_momentum", "trace@0", "trace@1"]);
        let difference = match_columns(&state, &mut columns);
        assert_eq!(difference.missing, ["outer_velocity"]);
        assert_eq!(difference.surplus, ["block_momentum", "trace"]);
        let mut expected = stored(&["first_moment@0", "first_moment@1"]);
        expected.push(("outer_velocity".into(), vec![0.0; 2]));
        assert_eq!(columns, expected);
        assert_eq!(
            difference.notices("diloco", 7),
            [
                "the checkpoint of step 7 has no `outer_velocity`: it begins anew in `diloco`",
                "`block_momentum` of the checkpoint of step 7 is dropped: `diloco` does not use it",
                "`trace` of the checkpoint of step 7 is dropped: `diloco` does not use it",
            ]
        );
        assert_eq!(match_columns(&state, &mut columns), ColumnDifference::default());
    }
}
