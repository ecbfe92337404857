//! Proves schedules by symbolic execution.
//!
//! Instead of numbers, a chunk holds how often it contains each rank's contribution, and its original index. Sends are
//! unbuffered: chunks move only if the current steps of sender and receiver both contain them, and a rank enters its next
//! step when its current one is complete. If nothing moves before all ranks are done, the schedules deadlock. The
//! [`Collective`] defines the expected result.

use super::kind::Collective;
use super::schedule::{Action, Chunks, Schedule, Step};
use std::rc::Rc;
use thiserror::Error;

/// A defect of a set of schedules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    #[error("rank {rank} uses a rank or chunk that does not exist, or divides the buffer differently")]
    Shape { rank: usize },
    #[error("rank {from} sends chunks {sent:?} while rank {to} expects {expected:?}")]
    Mismatch { from: usize, to: usize, sent: Chunks, expected: Chunks },
    /// A chunk is overwritten in a step that also sends it or receives it a second time.
    #[error("rank {rank} overwrites chunk {chunk} in step {step} while it is in use")]
    Overwritten { rank: usize, step: usize, chunk: usize },
    #[error("deadlock: ranks {stuck:?} wait for each other in steps {steps:?}")]
    Deadlock { stuck: Vec<usize>, steps: Vec<usize> },
    /// A result lacks a contribution or contains one more than once.
    #[error("chunk {chunk} of rank {rank} contains the contribution of rank {of} {times} times")]
    Result { rank: usize, chunk: usize, of: usize, times: u32 },
    /// A chunk ended at a wrong index, or was added to another one.
    #[error("original chunk {was} ended as chunk {chunk} of rank {rank}")]
    Misplaced { rank: usize, chunk: usize, was: usize },
}

/// The symbolic value of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Its original index.
    pub chunk: usize,
    /// By rank: how often its contribution is included.
    pub times: Vec<u32>,
}

/// The result of a symbolic run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolicResult {
    /// By rank and chunk.
    pub chunks: Vec<Vec<Rc<Contents>>>,
    /// The longest chain of dependent steps, if all steps take equally long.
    pub rounds: usize,
}

/// Checks that the schedules, one per rank, implement the collective; returns the number of rounds.
pub fn check(collective: Collective, schedules: &[Schedule]) -> Result<usize, ScheduleError> {
    let world = schedules.len();
    let end = run(schedules)?;
    for (rank, chunks) in end.chunks.iter().enumerate() {
        for (chunk, contents) in chunks.iter().enumerate() {
            let Some((expected, was)) = expected(collective, rank, chunk, world) else { continue };
            let right = |of: usize, times: u32| match expected {
                Expected::All if collective == Collective::Barrier => times > 0,
                Expected::All => times == 1,
                Expected::Only(rank) => times == u32::from(of == rank),
            };
            if let Some(of) = (0..world).find(|&of| !right(of, contents.times[of])) {
                return Err(ScheduleError::Result { rank, chunk, of, times: contents.times[of] });
            }
            if contents.chunk != was {
                return Err(ScheduleError::Misplaced { rank, chunk, was: contents.chunk });
            }
        }
    }
    Ok(end.rounds)
}

enum Expected {
    All,
    Only(usize),
}

/// The expected contents of a chunk and their original index; `None` if any contents are valid.
fn expected(collective: Collective, rank: usize, chunk: usize, world: usize) -> Option<(Expected, usize)> {
    match collective {
        Collective::AllReduce | Collective::Barrier => Some((Expected::All, chunk)),
        Collective::Reduce { root } => (rank == root % world).then_some((Expected::All, chunk)),
        Collective::Broadcast { root } => Some((Expected::Only(root % world), chunk)),
        Collective::ReduceScatter => (rank == chunk).then_some((Expected::All, chunk)),
        Collective::AllGather => Some((Expected::Only(chunk), chunk)),
        Collective::AllToAll => Some((Expected::Only(chunk), rank)),
    }
}

/// Runs the schedules, one per rank; every rank starts with its own contribution in every chunk. In one round all possible
/// transfers happen, then every rank whose step is complete enters its next step.
pub fn run(schedules: &[Schedule]) -> Result<SymbolicResult, ScheduleError> {
    schedules.iter().enumerate().try_for_each(|(rank, schedule)| check_shape(rank, schedule, schedules))?;
    let mut ranks: Vec<SymbolicRank> = schedules
        .iter()
        .enumerate()
        .map(|(rank, schedule)| SymbolicRank::new(rank, schedules.len(), schedule))
        .collect();
    let mut rounds = 0;
    while ranks.iter().any(|rank| rank.step().is_some()) {
        rounds += 1;
        let mut moved = false;
        for from in 0..ranks.len() {
            while let Some(matched) = next_match(&ranks, from)? {
                deliver(&mut ranks, from, matched);
                moved = true;
            }
        }
        for rank in &mut ranks {
            moved |= rank.finish_step()?;
        }
        if !moved {
            let stuck: Vec<usize> = (0..ranks.len()).filter(|&rank| ranks[rank].step().is_some()).collect();
            let steps = stuck.iter().map(|&rank| ranks[rank].position).collect();
            return Err(ScheduleError::Deadlock { stuck, steps });
        }
    }
    Ok(SymbolicResult { chunks: ranks.into_iter().map(|rank| rank.chunks).collect(), rounds })
}

struct SymbolicRank<'a> {
    rank: usize,
    schedule: &'a Schedule,
    position: usize,
    sent: Vec<bool>,
    arrived: Vec<Option<Vec<Rc<Contents>>>>,
    chunks: Vec<Rc<Contents>>,
}

impl<'a> SymbolicRank<'a> {
    fn new(rank: usize, world: usize, schedule: &'a Schedule) -> SymbolicRank<'a> {
        let times: Vec<u32> = (0..world).map(|of| u32::from(of == rank)).collect();
        let own = |chunk| Rc::new(Contents { chunk, times: times.clone() });
        let chunks = (0..schedule.chunks).map(own).collect();
        let mut state = SymbolicRank { rank, schedule, position: 0, sent: vec![], arrived: vec![], chunks };
        state.enter_step();
        state
    }

    fn step(&self) -> Option<&'a Step> {
        self.schedule.steps.get(self.position)
    }

    fn enter_step(&mut self) {
        self.sent = vec![false; self.step().map_or(0, |step| step.sends.len())];
        self.arrived = vec![None; self.step().map_or(0, |step| step.receives.len())];
    }

    /// Applies the received chunks and enters the next step, if the current one is complete.
    fn finish_step(&mut self) -> Result<bool, ScheduleError> {
        let Some(step) = self.step() else { return Ok(false) };
        if !self.sent.iter().all(|sent| *sent) || !self.arrived.iter().all(Option::is_some) {
            return Ok(false);
        }
        for (receive, arrived) in step.receives.iter().zip(std::mem::take(&mut self.arrived)) {
            for (chunk, arrived) in receive.chunks.indices().zip(arrived.into_iter().flatten()) {
                self.chunks[chunk] = match receive.action {
                    Action::Copy | Action::Exchange => arrived,
                    Action::Reduce => Rc::new(self.sum(chunk, &arrived)?),
                };
            }
        }
        self.position += 1;
        self.enter_step();
        Ok(true)
    }

    fn sum(&self, chunk: usize, arrived: &Contents) -> Result<Contents, ScheduleError> {
        let mine = &self.chunks[chunk];
        if mine.chunk != arrived.chunk {
            return Err(ScheduleError::Misplaced { rank: self.rank, chunk, was: arrived.chunk });
        }
        let times = mine.times.iter().zip(&arrived.times).map(|(a, b)| a + b).collect();
        Ok(Contents { chunk: mine.chunk, times })
    }
}

/// A send and its matching receive, as indices in the two steps.
struct Match {
    send: usize,
    to: usize,
    receive: usize,
}

/// The next send of `from` whose receiver is ready; between two ranks the order of the lists holds.
fn next_match(ranks: &[SymbolicRank<'_>], from: usize) -> Result<Option<Match>, ScheduleError> {
    let Some(step) = ranks[from].step() else { return Ok(None) };
    for (send, sending) in step.sends.iter().enumerate() {
        let earlier =
            || (0..send).any(|other| step.sends[other].to == sending.to && !ranks[from].sent[other]);
        if ranks[from].sent[send] || earlier() {
            continue;
        }
        let to = &ranks[sending.to];
        let receives = to.step().map_or(&[][..], |step| &step.receives);
        let open = |index: &usize| receives[*index].from == from && to.arrived[*index].is_none();
        let Some(receive) = (0..receives.len()).find(open) else { continue };
        let expected = Chunks { first: receives[receive].sent, count: receives[receive].chunks.count };
        if expected != sending.chunks {
            return Err(ScheduleError::Mismatch { from, to: sending.to, sent: sending.chunks, expected });
        }
        return Ok(Some(Match { send, to: sending.to, receive }));
    }
    Ok(None)
}

fn deliver(ranks: &mut [SymbolicRank<'_>], from: usize, matched: Match) {
    let Some(step) = ranks[from].step() else { return };
    let contents = ranks[from].chunks[step.sends[matched.send].chunks.indices()].to_vec();
    ranks[from].sent[matched.send] = true;
    ranks[matched.to].arrived[matched.receive] = Some(contents);
}

/// Checks that all ranks and chunks exist and that no chunk is overwritten while it is in use.
fn check_shape(rank: usize, schedule: &Schedule, schedules: &[Schedule]) -> Result<(), ScheduleError> {
    if schedule.chunks != schedules[0].chunks {
        return Err(ScheduleError::Shape { rank });
    }
    for (step, number) in schedule.steps.iter().zip(0..) {
        if !step.is_valid(rank, schedules.len(), schedule.chunks) {
            return Err(ScheduleError::Shape { rank });
        }
        if let Some(chunks) = step.overwritten_chunks() {
            return Err(ScheduleError::Overwritten { rank, step: number, chunk: chunks.first });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ring;
    use super::*;

    fn world(n: usize, schedule: fn(usize, usize) -> Schedule) -> Vec<Schedule> {
        (0..n).map(|rank| schedule(rank, n)).collect()
    }

    fn one_chunk(steps: Vec<Step>) -> Schedule {
        Schedule { chunks: 1, steps }
    }

    fn send(to: usize) -> Step {
        Step::sending(to, Chunks::one(0))
    }

    fn receive(from: usize, action: Action) -> Step {
        Step::receiving(from, Chunks::one(0), action)
    }

    fn both(peer: usize, action: Action) -> Schedule {
        one_chunk(vec![Step { sends: send(peer).sends, receives: receive(peer, action).receives }])
    }

    #[test]
    fn a_missing_step_is_a_deadlock() {
        let mut schedules = world(3, ring::all_reduce);
        schedules[1].steps.pop();
        let result = check(Collective::AllReduce, &schedules);
        assert!(matches!(result, Err(ScheduleError::Deadlock { stuck, .. }) if stuck == [0, 2]));
    }

    #[test]
    fn a_shortened_ring_misses_contributions() {
        let mut schedules = world(3, ring::all_reduce);
        schedules.iter_mut().for_each(|schedule| drop(schedule.steps.pop()));
        assert!(matches!(check(Collective::AllReduce, &schedules), Err(ScheduleError::Result { .. })));
    }

    #[test]
    fn sends_that_need_a_buffer_are_a_deadlock() {
        let schedule = |peer| one_chunk(vec![send(peer), receive(peer, Action::Reduce)]);
        assert!(matches!(run(&[schedule(1), schedule(0)]), Err(ScheduleError::Deadlock { .. })));
    }

    #[test]
    fn adding_twice_is_detected() {
        let zero = one_chunk(vec![receive(1, Action::Reduce), receive(1, Action::Reduce), send(1)]);
        let one = one_chunk(vec![send(0), send(0), receive(0, Action::Copy)]);
        let result = check(Collective::AllReduce, &[zero, one]);
        assert_eq!(result, Err(ScheduleError::Result { rank: 0, chunk: 0, of: 1, times: 2 }));
    }

    #[test]
    fn overwriting_a_chunk_in_flight_is_an_error_and_exchanging_is_not() {
        let result = run(&[both(1, Action::Copy), both(0, Action::Copy)]);
        assert_eq!(result, Err(ScheduleError::Overwritten { rank: 0, step: 0, chunk: 0 }));
        assert!(run(&[both(1, Action::Exchange), both(0, Action::Exchange)]).is_ok());
        let sums = [both(1, Action::Reduce), both(0, Action::Reduce)];
        assert_eq!(check(Collective::AllReduce, &sums), Ok(1));
    }

    #[test]
    fn schedules_of_another_collective_are_detected() {
        let schedules = world(4, ring::reduce_scatter);
        assert_eq!(check(Collective::ReduceScatter, &schedules), Ok(3));
        assert!(matches!(check(Collective::AllReduce, &schedules), Err(ScheduleError::Result { .. })));
        assert!(matches!(check(Collective::AllGather, &schedules), Err(ScheduleError::Result { .. })));
        let gathered = world(4, ring::all_gather);
        assert!(matches!(check(Collective::AllToAll, &gathered), Err(ScheduleError::Misplaced { .. })));
    }

    #[test]
    fn unknown_ranks_and_different_chunks_are_detected() {
        assert_eq!(run(&[one_chunk(vec![send(7)])]), Err(ScheduleError::Shape { rank: 0 }));
        let wrong = Schedule { chunks: 2, steps: vec![Step::sending(0, Chunks::one(1))] };
        let zero = Schedule { chunks: 2, steps: vec![receive(1, Action::Copy)] };
        let (sent, expected) = (Chunks::one(1), Chunks::one(0));
        assert_eq!(run(&[zero, wrong]), Err(ScheduleError::Mismatch { from: 1, to: 0, sent, expected }));
    }
}
