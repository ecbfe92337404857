//! Proves schedules by running them on symbols instead of numbers.
//!
//! In place of numbers every chunk holds how often each rank's contribution is in it, and which chunk that once was.
//! Sends have no buffer: chunks move only when the sender's and the receiver's current steps both name them, and a
//! rank goes to its next step when all of its current one has moved. If nothing moves any more before all are through,
//! that is the deadlock. A [`Goal`] says what must be where in the end.

use super::goal::Goal;
use super::schedule::{Action, Chunks, Schedule, Step};
use std::rc::Rc;
use thiserror::Error;

/// What is wrong with a set of schedules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// The ranks divide the buffer differently, or a step names a rank or chunk that does not exist.
    #[error("rank {rank} names a rank or chunk that does not exist, or divides the buffer differently")]
    Shape {
        /// The rank whose schedule it is.
        rank: usize,
    },
    /// Sender and receiver mean different chunks.
    #[error("rank {from} sends chunks {sent:?} while rank {to} expects {expected:?}")]
    Mismatch {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// What is sent.
        sent: Chunks,
        /// What is expected.
        expected: Chunks,
    },
    /// A chunk is overwritten in a step that also sends it or receives it a second time.
    #[error("rank {rank} overwrites chunk {chunk} in step {step} while it is in use")]
    Overwritten {
        /// The rank.
        rank: usize,
        /// The step of its schedule.
        step: usize,
        /// The first chunk of those that are overwritten.
        chunk: usize,
    },
    /// Nothing moves any more.
    #[error("deadlock: ranks {stuck:?} wait for each other in steps {steps:?}")]
    Deadlock {
        /// The ranks that are not through.
        stuck: Vec<usize>,
        /// The step each of them is in.
        steps: Vec<usize>,
    },
    /// A result does not hold the contributions it should, each exactly once.
    #[error("chunk {chunk} of rank {rank} holds the contribution of rank {of} {times} times")]
    Result {
        /// The rank that holds it.
        rank: usize,
        /// The chunk.
        chunk: usize,
        /// Whose contribution.
        of: usize,
        /// How often.
        times: u32,
    },
    /// A chunk ended in another place, or was added to a different one.
    #[error("what was chunk {was} ended as chunk {chunk} of rank {rank}")]
    Misplaced {
        /// The rank that holds it.
        rank: usize,
        /// Where it is.
        chunk: usize,
        /// Where it belongs.
        was: usize,
    },
}

/// What a chunk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Which chunk it was.
    pub chunk: usize,
    /// How often the contribution of each rank is in it.
    pub times: Vec<u32>,
}

/// What came of running schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What the chunks of every rank hold.
    pub chunks: Vec<Vec<Rc<Contents>>>,
    /// The longest chain of steps that wait for one another, if each takes as long as any other.
    pub rounds: usize,
}

/// Checks that these schedules, one per rank, achieve the goal; in how many rounds.
pub fn check(goal: Goal, schedules: &[Schedule]) -> Result<usize, Flaw> {
    let world = schedules.len();
    let end = run(schedules)?;
    for (rank, chunks) in end.chunks.iter().enumerate() {
        for (chunk, contents) in chunks.iter().enumerate() {
            let Some((wanted, was)) = wanted(goal, rank, chunk, world) else { continue };
            let right = |of: usize, times: u32| match wanted {
                Wanted::All if goal == Goal::Barrier => times > 0,
                Wanted::All => times == 1,
                Wanted::Only(rank) => times == u32::from(of == rank),
            };
            if let Some(of) = (0..world).find(|&of| !right(of, contents.times[of])) {
                return Err(Flaw::Result { rank, chunk, of, times: contents.times[of] });
            }
            if contents.chunk != was {
                return Err(Flaw::Misplaced { rank, chunk, was: contents.chunk });
            }
        }
    }
    Ok(end.rounds)
}

enum Wanted {
    All,
    Only(usize),
}

/// What a chunk must hold in the end and which chunk that was; `None` where it does not matter.
fn wanted(goal: Goal, rank: usize, chunk: usize, world: usize) -> Option<(Wanted, usize)> {
    match goal {
        Goal::AllReduce | Goal::Barrier => Some((Wanted::All, chunk)),
        Goal::Reduce { root } => (rank == root % world).then_some((Wanted::All, chunk)),
        Goal::Broadcast { root } => Some((Wanted::Only(root % world), chunk)),
        Goal::ReduceScatter => (rank == chunk).then_some((Wanted::All, chunk)),
        Goal::AllGather => Some((Wanted::Only(chunk), chunk)),
        Goal::AllToAll => Some((Wanted::Only(chunk), rank)),
    }
}

/// Runs the schedules, one per rank, each rank starting with its own contribution in every chunk. In a round everything
/// moves that can, and then every rank whose step is complete goes on by one.
pub fn run(schedules: &[Schedule]) -> Result<End, Flaw> {
    schedules.iter().enumerate().try_for_each(|(rank, schedule)| check_shape(rank, schedule, schedules))?;
    let mut ranks: Vec<Walker> = schedules
        .iter()
        .enumerate()
        .map(|(rank, schedule)| Walker::new(rank, schedules.len(), schedule))
        .collect();
    let mut rounds = 0;
    while ranks.iter().any(|rank| rank.step().is_some()) {
        rounds += 1;
        let mut moved = false;
        for from in 0..ranks.len() {
            while let Some(delivery) = meeting(&ranks, from)? {
                deliver(&mut ranks, from, delivery);
                moved = true;
            }
        }
        for rank in &mut ranks {
            moved |= rank.finish_step()?;
        }
        if !moved {
            let stuck: Vec<usize> = (0..ranks.len()).filter(|&rank| ranks[rank].step().is_some()).collect();
            let steps = stuck.iter().map(|&rank| ranks[rank].position).collect();
            return Err(Flaw::Deadlock { stuck, steps });
        }
    }
    Ok(End { chunks: ranks.into_iter().map(|rank| rank.chunks).collect(), rounds })
}

/// One rank on its way through its schedule.
struct Walker<'a> {
    rank: usize,
    schedule: &'a Schedule,
    position: usize,
    sent: Vec<bool>,
    arrived: Vec<Option<Vec<Rc<Contents>>>>,
    chunks: Vec<Rc<Contents>>,
}

impl<'a> Walker<'a> {
    fn new(rank: usize, world: usize, schedule: &'a Schedule) -> Walker<'a> {
        let times: Vec<u32> = (0..world).map(|of| u32::from(of == rank)).collect();
        let own = |chunk| Rc::new(Contents { chunk, times: times.clone() });
        let chunks = (0..schedule.chunks).map(own).collect();
        let mut walker = Walker { rank, schedule, position: 0, sent: vec![], arrived: vec![], chunks };
        walker.enter();
        walker
    }

    fn step(&self) -> Option<&'a Step> {
        self.schedule.steps.get(self.position)
    }

    fn enter(&mut self) {
        self.sent = vec![false; self.step().map_or(0, |step| step.sends.len())];
        self.arrived = vec![None; self.step().map_or(0, |step| step.receives.len())];
    }

    /// Applies what arrived and goes on, if all of the step has moved.
    fn finish_step(&mut self) -> Result<bool, Flaw> {
        let Some(step) = self.step() else { return Ok(false) };
        if !self.sent.iter().all(|sent| *sent) || !self.arrived.iter().all(Option::is_some) {
            return Ok(false);
        }
        for (receive, arrived) in step.receives.iter().zip(std::mem::take(&mut self.arrived)) {
            for (chunk, arrived) in receive.chunks.numbers().zip(arrived.into_iter().flatten()) {
                self.chunks[chunk] = match receive.action {
                    Action::Copy | Action::Exchange => arrived,
                    Action::Reduce => Rc::new(self.sum(chunk, &arrived)?),
                };
            }
        }
        self.position += 1;
        self.enter();
        Ok(true)
    }

    fn sum(&self, chunk: usize, arrived: &Contents) -> Result<Contents, Flaw> {
        let mine = &self.chunks[chunk];
        if mine.chunk != arrived.chunk {
            return Err(Flaw::Misplaced { rank: self.rank, chunk, was: arrived.chunk });
        }
        let times = mine.times.iter().zip(&arrived.times).map(|(a, b)| a + b).collect();
        Ok(Contents { chunk: mine.chunk, times })
    }
}

/// A send and the receive it meets, as places in the two steps.
struct Delivery {
    send: usize,
    to: usize,
    receive: usize,
}

/// The next send of `from` whose receiver is ready for it; between two ranks the order of the lists holds.
fn meeting(ranks: &[Walker<'_>], from: usize) -> Result<Option<Delivery>, Flaw> {
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
            return Err(Flaw::Mismatch { from, to: sending.to, sent: sending.chunks, expected });
        }
        return Ok(Some(Delivery { send, to: sending.to, receive }));
    }
    Ok(None)
}

fn deliver(ranks: &mut [Walker<'_>], from: usize, delivery: Delivery) {
    let Some(step) = ranks[from].step() else { return };
    let contents = ranks[from].chunks[step.sends[delivery.send].chunks.numbers()].to_vec();
    ranks[from].sent[delivery.send] = true;
    ranks[delivery.to].arrived[delivery.receive] = Some(contents);
}

/// Everything named exists, and nothing is overwritten while it is in use.
fn check_shape(rank: usize, schedule: &Schedule, schedules: &[Schedule]) -> Result<(), Flaw> {
    if schedule.chunks != schedules[0].chunks {
        return Err(Flaw::Shape { rank });
    }
    for (step, number) in schedule.steps.iter().zip(0..) {
        if !step.is_within(rank, schedules.len(), schedule.chunks) {
            return Err(Flaw::Shape { rank });
        }
        if let Some(chunks) = step.overwritten() {
            return Err(Flaw::Overwritten { rank, step: number, chunk: chunks.first });
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
    fn a_lost_step_is_a_deadlock() {
        let mut schedules = world(3, ring::all_reduce);
        schedules[1].steps.pop();
        let flaw = check(Goal::AllReduce, &schedules);
        assert!(matches!(flaw, Err(Flaw::Deadlock { stuck, .. }) if stuck == [0, 2]));
    }

    #[test]
    fn a_ring_cut_short_leaves_contributions_out() {
        let mut schedules = world(3, ring::all_reduce);
        schedules.iter_mut().for_each(|schedule| drop(schedule.steps.pop()));
        assert!(matches!(check(Goal::AllReduce, &schedules), Err(Flaw::Result { .. })));
    }

    #[test]
    fn sends_that_need_a_buffer_are_a_deadlock() {
        let schedule = |peer| one_chunk(vec![send(peer), receive(peer, Action::Reduce)]);
        assert!(matches!(run(&[schedule(1), schedule(0)]), Err(Flaw::Deadlock { .. })));
    }

    #[test]
    fn adding_twice_is_noticed() {
        let zero = one_chunk(vec![receive(1, Action::Reduce), receive(1, Action::Reduce), send(1)]);
        let one = one_chunk(vec![send(0), send(0), receive(0, Action::Copy)]);
        let flaw = check(Goal::AllReduce, &[zero, one]);
        assert_eq!(flaw, Err(Flaw::Result { rank: 0, chunk: 0, of: 1, times: 2 }));
    }

    #[test]
    fn overwriting_what_is_being_sent_is_noticed_and_exchanging_is_not() {
        let flaw = run(&[both(1, Action::Copy), both(0, Action::Copy)]);
        assert_eq!(flaw, Err(Flaw::Overwritten { rank: 0, step: 0, chunk: 0 }));
        assert!(run(&[both(1, Action::Exchange), both(0, Action::Exchange)]).is_ok());
        let sums = [both(1, Action::Reduce), both(0, Action::Reduce)];
        assert_eq!(check(Goal::AllReduce, &sums), Ok(1));
    }

    #[test]
    fn another_collective_is_not_what_was_asked_for() {
        let schedules = world(4, ring::reduce_scatter);
        assert_eq!(check(Goal::ReduceScatter, &schedules), Ok(3));
        assert!(matches!(check(Goal::AllReduce, &schedules), Err(Flaw::Result { .. })));
        assert!(matches!(check(Goal::AllGather, &schedules), Err(Flaw::Result { .. })));
        let gathered = world(4, ring::all_gather);
        assert!(matches!(check(Goal::AllToAll, &gathered), Err(Flaw::Misplaced { .. })));
    }

    #[test]
    fn unknown_ranks_and_different_chunks_are_noticed() {
        assert_eq!(run(&[one_chunk(vec![send(7)])]), Err(Flaw::Shape { rank: 0 }));
        let wrong = Schedule { chunks: 2, steps: vec![Step::sending(0, Chunks::one(1))] };
        let zero = Schedule { chunks: 2, steps: vec![receive(1, Action::Copy)] };
        let (sent, expected) = (Chunks::one(1), Chunks::one(0));
        assert_eq!(run(&[zero, wrong]), Err(Flaw::Mismatch { from: 1, to: 0, sent, expected }));
    }
}
