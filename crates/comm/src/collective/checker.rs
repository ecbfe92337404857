//! Proves schedules by running them on symbols instead of numbers.
//!
//! In place of a number every chunk holds how often each rank's contribution is in it. Sends have no buffer: a chunk
//! moves only when the sender's and the receiver's current steps both name it, and a rank goes to its next step when
//! all of its current one has moved. If nothing moves any more before all are through, that is the deadlock.

use super::{Action, Schedule, Step};
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
    #[error("rank {from} sends chunk {sent} while rank {to} expects chunk {expected}")]
    Mismatch {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// What is sent.
        sent: usize,
        /// What is expected.
        expected: usize,
    },
    /// A chunk is overwritten in a step that also sends it or receives it a second time.
    #[error("rank {rank} overwrites chunk {chunk} in step {step} while it is in use")]
    Overwritten {
        /// The rank.
        rank: usize,
        /// The step of its schedule.
        step: usize,
        /// The chunk.
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
    /// A result does not hold every contribution exactly once.
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
}

/// What a chunk holds: how often the contribution of each rank.
pub type Contents = Rc<Vec<u32>>;

/// Checks that after these schedules, one per rank, every chunk of every rank is the sum over all ranks.
pub fn check_all_reduce(schedules: &[Schedule]) -> Result<(), Flaw> {
    for (rank, chunks) in run(schedules)?.iter().enumerate() {
        for (chunk, contents) in chunks.iter().enumerate() {
            if let Some(of) = contents.iter().position(|&times| times != 1) {
                return Err(Flaw::Result { rank, chunk, of, times: contents[of] });
            }
        }
    }
    Ok(())
}

/// Runs the schedules, one per rank, each rank starting with its own contribution in every chunk, and returns what
/// the chunks of every rank hold in the end.
pub fn run(schedules: &[Schedule]) -> Result<Vec<Vec<Contents>>, Flaw> {
    schedules.iter().enumerate().try_for_each(|(rank, schedule)| check_shape(rank, schedule, schedules))?;
    let mut ranks: Vec<Walker> = schedules
        .iter()
        .enumerate()
        .map(|(rank, schedule)| Walker::new(rank, schedules.len(), schedule))
        .collect();
    while ranks.iter().any(|rank| rank.step().is_some()) {
        let mut moved = false;
        for from in 0..ranks.len() {
            while let Some(delivery) = meeting(&ranks, from)? {
                deliver(&mut ranks, from, delivery);
                moved = true;
            }
        }
        for rank in &mut ranks {
            moved |= rank.finish_step();
        }
        if !moved {
            let stuck: Vec<usize> = (0..ranks.len()).filter(|&rank| ranks[rank].step().is_some()).collect();
            let steps = stuck.iter().map(|&rank| ranks[rank].position).collect();
            return Err(Flaw::Deadlock { stuck, steps });
        }
    }
    Ok(ranks.into_iter().map(|rank| rank.chunks).collect())
}

/// One rank on its way through its schedule.
struct Walker<'a> {
    schedule: &'a Schedule,
    position: usize,
    sent: Vec<bool>,
    arrived: Vec<Option<Contents>>,
    chunks: Vec<Contents>,
}

impl<'a> Walker<'a> {
    fn new(rank: usize, world: usize, schedule: &'a Schedule) -> Walker<'a> {
        let own: Contents = Rc::new((0..world).map(|of| u32::from(of == rank)).collect());
        let chunks = vec![own; schedule.chunks];
        let mut walker = Walker { schedule, position: 0, sent: Vec::new(), arrived: Vec::new(), chunks };
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
    fn finish_step(&mut self) -> bool {
        let Some(step) = self.step() else { return false };
        if !self.sent.iter().all(|sent| *sent) || !self.arrived.iter().all(Option::is_some) {
            return false;
        }
        for (receive, arrived) in step.receives.iter().zip(self.arrived.drain(..)) {
            let Some(arrived) = arrived else { continue };
            let chunk = &mut self.chunks[receive.chunk];
            *chunk = match receive.action {
                Action::Copy => arrived,
                Action::Reduce => Rc::new(chunk.iter().zip(&*arrived).map(|(a, b)| a + b).collect()),
            };
        }
        self.position += 1;
        self.enter();
        true
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
        let expected = receives[receive].chunk;
        if expected != sending.chunk {
            return Err(Flaw::Mismatch { from, to: sending.to, sent: sending.chunk, expected });
        }
        return Ok(Some(Delivery { send, to: sending.to, receive }));
    }
    Ok(None)
}

fn deliver(ranks: &mut [Walker<'_>], from: usize, delivery: Delivery) {
    let Some(step) = ranks[from].step() else { return };
    let contents = ranks[from].chunks[step.sends[delivery.send].chunk].clone();
    ranks[from].sent[delivery.send] = true;
    ranks[delivery.to].arrived[delivery.receive] = Some(contents);
}

/// Everything named exists, and nothing is overwritten while it is in use.
fn check_shape(rank: usize, schedule: &Schedule, schedules: &[Schedule]) -> Result<(), Flaw> {
    let fits = |peer: usize, chunk: usize| peer < schedules.len() && peer != rank && chunk < schedule.chunks;
    for (number, step) in schedule.steps.iter().enumerate() {
        let sends = step.sends.iter().all(|send| fits(send.to, send.chunk));
        let receives = step.receives.iter().all(|receive| fits(receive.from, receive.chunk));
        if schedule.chunks != schedules[0].chunks || !sends || !receives {
            return Err(Flaw::Shape { rank });
        }
        for receive in step.receives.iter().filter(|receive| receive.action == Action::Copy) {
            let chunk = receive.chunk;
            let sent = step.sends.iter().any(|send| send.chunk == chunk);
            if sent || step.receives.iter().filter(|other| other.chunk == chunk).count() > 1 {
                return Err(Flaw::Overwritten { rank, step: number, chunk });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{ReceiveChunk, SendChunk, ring};
    use super::*;

    fn ring(world: usize) -> Vec<Schedule> {
        (0..world).map(|rank| ring::all_reduce(rank, world)).collect()
    }

    fn one_chunk(steps: Vec<Step>) -> Schedule {
        Schedule { chunks: 1, steps }
    }

    fn send(to: usize) -> Step {
        Step { sends: vec![SendChunk { to, chunk: 0 }], receives: vec![] }
    }

    fn receive(from: usize, action: Action) -> Step {
        Step { sends: vec![], receives: vec![ReceiveChunk { from, chunk: 0, action }] }
    }

    #[test]
    fn a_lost_step_is_a_deadlock() {
        let mut schedules = ring(3);
        schedules[1].steps.pop();
        assert!(matches!(check_all_reduce(&schedules), Err(Flaw::Deadlock { stuck, .. }) if stuck == [0, 2]));
    }

    #[test]
    fn a_ring_cut_short_leaves_contributions_out() {
        let mut schedules = ring(3);
        schedules.iter_mut().for_each(|schedule| drop(schedule.steps.pop()));
        assert!(matches!(check_all_reduce(&schedules), Err(Flaw::Result { .. })));
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
        let flaw = check_all_reduce(&[zero, one]);
        assert_eq!(flaw, Err(Flaw::Result { rank: 0, chunk: 0, of: 1, times: 2 }));
    }

    #[test]
    fn overwriting_what_is_being_sent_is_noticed() {
        let both = |peer| {
            one_chunk(vec![Step { sends: send(peer).sends, receives: receive(peer, Action::Copy).receives }])
        };
        assert!(matches!(run(&[both(1), both(0)]), Err(Flaw::Overwritten { rank: 0, step: 0, chunk: 0 })));
    }

    #[test]
    fn an_exchange_that_adds_is_fine_in_one_step() {
        let both = |peer| {
            one_chunk(vec![Step {
                sends: send(peer).sends,
                receives: receive(peer, Action::Reduce).receives,
            }])
        };
        assert_eq!(check_all_reduce(&[both(1), both(0)]), Ok(()));
    }

    #[test]
    fn unknown_ranks_and_different_chunks_are_noticed() {
        assert_eq!(run(&[one_chunk(vec![send(7)])]), Err(Flaw::Shape { rank: 0 }));
        let wrong = Schedule {
            chunks: 2,
            steps: vec![Step { sends: vec![SendChunk { to: 0, chunk: 1 }], receives: vec![] }],
        };
        let zero = Schedule { chunks: 2, steps: vec![receive(1, Action::Copy)] };
        assert_eq!(run(&[zero, wrong]), Err(Flaw::Mismatch { from: 1, to: 0, sent: 1, expected: 0 }));
    }
}
