//! What holds after every run, whatever faults it had.

use crate::job::{EPOCHS, Finished, Run};
use crate::schedule::Schedule;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use thalweg_comm::transport::sim::SimulatedFaultKind;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::{Error, Kind};

/// What a strategy promises under faults.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Steps of a commit unit, of which at most one is redone for a fault.
    pub unit: u64,
    /// Of the final loss, beyond those of runs without faults, as a part of that of the first.
    pub loss: f64,
    /// Of the final accuracy, beyond those of runs without faults.
    pub accuracy: f64,
}

/// The result of a run without faults.
#[derive(Clone, Copy, Debug)]
pub struct Undisturbed {
    pub duration: Duration,
    pub loss: f64,
    pub accuracy: f64,
    /// The least and the greatest of groups that a run under faults may have.
    pub losses: (f64, f64),
    pub accuracies: (f64, f64),
}

impl Undisturbed {
    pub fn of(run: &Run) -> Undisturbed {
        let metric = |name| run.last(name).expect("an undisturbed run ends");
        let (loss, accuracy) = (metric("loss"), metric("accuracy"));
        let (losses, accuracies) = ((loss, loss), (accuracy, accuracy));
        Undisturbed { duration: run.duration(), loss, accuracy, losses, accuracies }
    }

    /// Includes another group, where the model depends on the group that trains it.
    pub fn include(self, run: &Run) -> Undisturbed {
        let other = Undisturbed::of(run);
        let widened = |(least, greatest): (f64, f64), value: f64| (least.min(value), greatest.max(value));
        let losses = widened(self.losses, other.loss);
        Undisturbed { losses, accuracies: widened(self.accuracies, other.accuracy), ..self }
    }
}

/// Sums are made of other parts, so they are rounded otherwise.
pub const ALL_REDUCE: Bounds = Bounds { unit: 1, loss: 1e-4, accuracy: 0.003 };

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub faults: u64,
    pub generations: u64,
    pub redone: u64,
    /// New members that received the state while the others trained.
    pub received: u64,
    /// Rows whose gradients were lost with the worker that had computed them.
    pub at_risk: u64,
    /// Rows that a policy has left out by design.
    pub dropped: u64,
    /// Whether any rank finished the job.
    pub finished: bool,
    /// From the run without faults.
    pub loss_difference: f64,
    pub accuracy_difference: f64,
}

/// Everything that must hold; the first thing that does not, in words.
pub fn check(
    schedule: &Schedule,
    run: &Run,
    expected: &Undisturbed,
    bounds: Bounds,
) -> Result<Figures, String> {
    let finished = check_ends(schedule, run)?;
    let (generations, redone) = check_generations(schedule, run, bounds.unit)?;
    let mut figures = Figures {
        faults: schedule.faults.len() as u64,
        generations,
        redone,
        received: received(run),
        at_risk: at_risk(run),
        dropped: dropped(run),
        finished: !finished.is_empty(),
        ..Figures::default()
    };
    if finished.is_empty() {
        return Ok(figures);
    }
    check_audits(run)?;
    // One that joined after the last validation has evaluated no model.
    let mut evaluated = finished.iter().filter(|(_, end)| !end.parameters.is_empty());
    let (first_rank, first) = evaluated.next().ok_or("no rank has evaluated a model")?;
    if let Some((rank, _)) = evaluated.find(|(_, other)| other.parameters != first.parameters) {
        return Err(format!("ranks {first_rank} and {rank} ended with different parameters"));
    }
    let loss = run.last("loss").ok_or("no rank reported the end")?;
    figures.loss_difference = loss - expected.loss;
    let ((least, greatest), margin) = (expected.losses, bounds.loss * expected.loss);
    if loss < least - margin || loss > greatest + margin {
        return Err(format!("the final loss is {loss}, without faults {least} to {greatest}"));
    }
    let accuracy = run.last("accuracy").ok_or("no rank reported the accuracy")?;
    figures.accuracy_difference = accuracy - expected.accuracy;
    let (least, greatest) = expected.accuracies;
    if accuracy < least - bounds.accuracy || accuracy > greatest + bounds.accuracy {
        return Err(format!("the accuracy is {accuracy}, without faults {least} to {greatest}"));
    }
    Ok(figures)
}

/// Every rank ended as it should: it finished, left, or was lost to a fault of its own. Returns those that finished, with
/// their results.
fn check_ends<'a>(schedule: &Schedule, run: &'a Run) -> Result<Vec<(usize, &'a Finished)>, String> {
    let mut finished = Vec::new();
    let (left, lost) = (left(run), lost(run));
    let gone: BTreeSet<usize> = left.union(&lost).copied().collect();
    // It may have received all it waited for when it was killed or given up, or when another was that had to tell the rest.
    let may_be_missed = |rank| may_be_lost(schedule, rank) || lost.contains(&rank) && !left.contains(&rank);
    for (rank, ended) in run.ended.iter().enumerate() {
        match &ended.result {
            Ok(end)
                if end.outcome == Outcome::Completed
                    && may_be_missed(rank)
                    && !schedule.has(|kind| *kind == SimulatedFaultKind::Leave { rank }) =>
            {
                finished.push((rank, end));
            }
            // If no rank finished the job, none reported which ranks had left before.
            Ok(end) if gone.contains(&rank) || run.last("loss").is_none() => {
                if !schedule.may_leave(rank) {
                    return Err(format!("rank {rank} left and was not asked to: {end:?}"));
                }
            }
            Ok(end) => finished.push((rank, end)),
            Err(error)
                if did_not_meet(schedule, run, error) || was_left_alone(schedule, run, rank, error) => {}
            Err(error) => check_error(schedule, rank, error)?,
        }
    }
    let outcomes: BTreeSet<&str> = finished.iter().map(|(_, end)| outcome(end.outcome)).collect();
    let everybody_left = finished.iter().all(|(rank, _)| schedule.may_leave(*rank));
    match outcomes.into_iter().collect::<Vec<_>>()[..] {
        ["completed"] | [] => Ok(finished),
        // The last ones were asked to leave: that is a stop.
        ["interrupted"] if everybody_left => Ok(Vec::new()),
        ref others => Err(format!("ranks ended differently: {others:?}")),
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Interrupted => "interrupted",
        _ => "otherwise",
    }
}

/// Whether there never was a group: the ranks waited for one that hung before the first, and the error names it.
fn did_not_meet(schedule: &Schedule, run: &Run, error: &Error) -> bool {
    let hangs = |missing: usize| {
        schedule.has(|kind| match kind {
            SimulatedFaultKind::Stop { rank, .. } | SimulatedFaultKind::Livelock { rank } => *rank == missing,
            _ => false,
        })
    };
    let culprit = error.culprit.as_ref().filter(|_| error.message.contains("did not arrive"));
    let began = run.events().any(|event| !matches!(event, Event::Failed { .. }));
    !began && culprit.is_some_and(|culprit| hangs(culprit.rank))
}

/// Whether a new rank waited for a group of which no member is left to admit it.
fn was_left_alone(schedule: &Schedule, run: &Run, rank: usize, error: &Error) -> bool {
    let are_lost = run.ended[..schedule.world].iter().all(|ended| ended.result.is_err());
    rank >= schedule.world && are_lost && error.message.starts_with("no group was formed")
}

/// Whether a rank ended because all ranks with the job's state were lost before it had received all of it.
fn is_orphaned(error: &Error) -> bool {
    error.message.contains("no rank is left that has the job's state")
}

/// New members that received the state while the others trained.
fn received(run: &Run) -> u64 {
    let received = run.events().map(|event| match event {
        Event::CaughtUp { ranks, .. } => ranks.len() as u64,
        _ => 0,
    });
    received.sum()
}

/// Rows of updates that were lost with a worker.
fn at_risk(run: &Run) -> u64 {
    let at_risk = run.events().map(|event| match event {
        Event::Epoch { audit, .. } => audit.at_risk.unwrap_or(0),
        _ => 0,
    });
    at_risk.sum()
}

/// Rows that a policy has left out by design.
fn dropped(run: &Run) -> u64 {
    let dropped = run.events().map(|event| match event {
        Event::Epoch { audit, .. } => audit.dropped,
        _ => 0,
    });
    dropped.sum()
}

/// Ranks that left in good order.
pub fn left(run: &Run) -> BTreeSet<usize> {
    let left = run.events().filter_map(|event| match event {
        Event::Regrouped { left, .. } => Some(left.iter().copied()),
        _ => None,
    });
    left.flatten().collect()
}

/// Ranks that were lost. One of them may have left in good order a moment before, unknown to the others.
fn lost(run: &Run) -> BTreeSet<usize> {
    let lost = run.events().filter_map(|event| match event {
        Event::Regrouped { lost, members, .. } => {
            Some(lost.iter().map(|culprit| culprit.rank).filter(|rank| !members.contains(rank)))
        }
        _ => None,
    });
    lost.flatten().collect()
}

/// Whether a rank was hit by a fault for which the others may give it up.
fn held_up(schedule: &Schedule, rank: usize) -> bool {
    schedule.has(|kind| match kind {
        SimulatedFaultKind::Stop { rank: stopped, .. } => *stopped == rank,
        SimulatedFaultKind::Livelock { rank: stuck } | SimulatedFaultKind::FalseReport { rank: stuck } => {
            *stuck == rank
        }
        SimulatedFaultKind::Cut { one, other } | SimulatedFaultKind::CutOneWay { from: one, to: other } => {
            *one == rank || *other == rank
        }
        // Of two that blame each other the one that joined later is removed.
        SimulatedFaultKind::Garbage { from, to } | SimulatedFaultKind::Forge { from, to, .. } => {
            *from == rank || *to == rank
        }
        _ => false,
    })
}

fn may_be_lost(schedule: &Schedule, rank: usize) -> bool {
    held_up(schedule, rank) || schedule.has(|kind| *kind == SimulatedFaultKind::Kill { rank })
}

/// Whether a rank may end like this.
fn check_error(schedule: &Schedule, rank: usize, error: &Error) -> Result<(), String> {
    let words = &error.message;
    let right = match error.kind {
        // A rank that is removed is killed if it livelocks or has the role of the coordinator.
        Kind::RankFailed if words.ends_with("was killed") => may_be_lost(schedule, rank),
        Kind::RankFailed if words.contains("was removed") => held_up(schedule, rank),
        // A server does not go on without workers.
        Kind::RankFailed if is_orphaned(error) || words.contains("fault.min_workers") => true,
        Kind::Rendezvous => rank >= schedule.world && words.contains("cannot join"),
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("rank {rank} ended with {error:?}")) }
}

/// Generations grow; a member that is in none any more was named; at most one commit unit is repeated for each fault.
/// Returns the number of generations and of repeated steps.
fn check_generations(schedule: &Schedule, run: &Run, unit: u64) -> Result<(u64, u64), String> {
    let mut groups: BTreeMap<u32, (&[usize], u64)> = BTreeMap::new();
    let mut named: BTreeSet<usize> = BTreeSet::new();
    for ended in &run.ended {
        let mut last = 0;
        for event in &ended.events {
            let Event::Regrouped { generation, members, lost, left, steps_redone, .. } = event else {
                continue;
            };
            if *generation <= last || groups.contains_key(generation) {
                return Err(format!("generation {generation} came after {last}, or twice"));
            }
            last = *generation;
            if *steps_redone > unit {
                return Err(format!("{steps_redone} steps redone in generation {generation}"));
            }
            groups.insert(*generation, (members, *steps_redone));
            named.extend(lost.iter().map(|culprit| culprit.rank).chain(left.iter().copied()));
        }
    }
    let redone: u64 = groups.values().map(|(_, redone)| redone).sum();
    if redone > unit * schedule.faults.len() as u64 {
        return Err(format!("{redone} steps redone for {} faults", schedule.faults.len()));
    }
    let first: Vec<usize> = (0..schedule.world).collect();
    let mut before: &[usize] = &first;
    for (members, _) in groups.values() {
        // Some may have finished while others were lost at the very end.
        let finished = |rank: usize| run.ended[rank].result.is_ok();
        let stays = |rank: usize| members.contains(&rank) || named.contains(&rank) || finished(rank);
        if let Some(rank) = before.iter().find(|rank| !stays(**rank)) {
            return Err(format!("rank {rank} is missing from {members:?} without a reason"));
        }
        before = members;
    }
    Ok((groups.len() as u64 + 1, redone))
}

/// Every row exactly once in every epoch, or dropped by design.
fn check_audits(run: &Run) -> Result<(), String> {
    let mut epochs = BTreeSet::new();
    for event in run.events() {
        let Event::Epoch { epoch, audit, .. } = event else { continue };
        if audit.missed + audit.repeated > 0 || audit.once + audit.dropped != audit.expected {
            return Err(format!("epoch {epoch}: {audit:?}"));
        }
        epochs.insert(*epoch);
    }
    let all: BTreeSet<u64> = (0..EPOCHS).collect();
    if epochs == all { Ok(()) } else { Err(format!("only epochs {epochs:?} were audited")) }
}
