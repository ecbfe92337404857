//! Runs a schedule on a transport, in place.
//!
//! Chunks that replace are received straight into the buffer; chunks that are added wait in a staging area until the
//! step is over and are then added in the order of the schedule, so that a repeat gives the same bits.

use super::{Action, Schedule, Step, chunk_range};
use crate::transport::{Cause, Fault, Incoming, Outgoing, Tag, Transport};
use std::time::{Duration, Instant};

// Elements travel as they lie in memory, and frames are little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// Runs schedules; keeps its staging area between runs.
#[derive(Default)]
pub struct Executor {
    staging: Vec<f32>,
}

impl Executor {
    /// An executor without staging area; it grows with the first run.
    pub fn new() -> Executor {
        Executor::default()
    }

    /// Runs `schedule` over `buffer`, all of it within `deadline`; all ranks must call it with schedules of the same
    /// collective, the same tag and the same buffer length (a different length is a protocol fault).
    ///
    /// After a fault the buffer's contents are unspecified.
    pub fn run(
        &mut self,
        schedule: &Schedule,
        transport: &mut dyn Transport,
        tag: Tag,
        buffer: &mut [f32],
        deadline: Duration,
    ) -> Result<(), Fault> {
        let start = Instant::now();
        for step in &schedule.steps {
            let left = deadline.saturating_sub(start.elapsed());
            self.run_step(step, schedule.chunks, transport, tag, buffer, left)?;
        }
        Ok(())
    }

    fn run_step(
        &mut self,
        step: &Step,
        chunks: usize,
        transport: &mut dyn Transport,
        tag: Tag,
        buffer: &mut [f32],
        deadline: Duration,
    ) -> Result<(), Fault> {
        let length = buffer.len();
        let size = |chunk: usize| chunk_range(length, chunks, chunk).len();
        let reduces = || step.receives.iter().filter(|receive| receive.action == Action::Reduce);
        let staged: usize = reduces().map(|receive| size(receive.chunk)).sum();
        if self.staging.len() < staged {
            self.staging.resize(staged, 0.0);
        }
        let lists = transfers(step, chunks, buffer, &mut self.staging[..staged]);
        let (sends, mut receives) = lists.ok_or_else(|| misuse(transport.rank()))?;
        transport.transfer(tag, &sends, &mut receives, deadline)?;
        let mut staging = &self.staging[..staged];
        for receive in reduces() {
            let range = chunk_range(length, chunks, receive.chunk);
            let (arrived, rest) = staging.split_at(range.len());
            add(&mut buffer[range], arrived);
            staging = rest;
        }
        Ok(())
    }
}

/// What a step transfers, as slices of the buffer and the staging area; `None` if the step makes no sense.
fn transfers<'a>(
    step: &Step,
    chunks: usize,
    buffer: &'a mut [f32],
    mut staging: &'a mut [f32],
) -> Option<(Vec<Outgoing<'a>>, Vec<Incoming<'a>>)> {
    let length = buffer.len();
    let mut rest = buffer;
    let mut parts: Vec<Option<&'a mut [f32]>> = Vec::with_capacity(chunks);
    for chunk in 0..chunks {
        parts.push(rest.split_off_mut(..chunk_range(length, chunks, chunk).len()));
    }
    let mut receives = Vec::with_capacity(step.receives.len());
    for receive in &step.receives {
        let memory = match receive.action {
            Action::Copy => parts.get_mut(receive.chunk)?.take()?,
            Action::Reduce => staging.split_off_mut(..chunk_range(length, chunks, receive.chunk).len())?,
        };
        let (from, chunk) = (receive.from, receive.chunk as u32);
        receives.push(Incoming { from, chunk, bytes: bytemuck::cast_slice_mut(memory) });
    }
    let parts: Vec<Option<&'a [f32]>> = parts.into_iter().map(|part| part.map(|part| &*part)).collect();
    let mut sends = Vec::with_capacity(step.sends.len());
    for send in &step.sends {
        let memory = (*parts.get(send.chunk)?)?;
        sends.push(Outgoing { to: send.to, chunk: send.chunk as u32, bytes: bytemuck::cast_slice(memory) });
    }
    Some((sends, receives))
}

/// A schedule the checker would have refused.
fn misuse(rank: usize) -> Fault {
    let what = "the schedule overwrites a chunk while it is in use or names one that does not exist";
    Fault::of(rank, Cause::Protocol(what.into()))
}

/// `sum += part`, element by element; a plain loop that the compiler vectorises.
fn add(sum: &mut [f32], part: &[f32]) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum += part;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ReceiveChunk, SendChunk};
    use super::*;
    use crate::transport::mesh;

    #[test]
    fn schedules_that_make_no_sense_are_refused() {
        let copy = |chunk| ReceiveChunk { from: 1, chunk, action: Action::Copy };
        let send = |chunk| SendChunk { to: 1, chunk };
        let overwritten = Step { sends: vec![send(0)], receives: vec![copy(0)] };
        let twice = Step { sends: vec![], receives: vec![copy(0), copy(0)] };
        let unknown = Step { sends: vec![send(7)], receives: vec![] };
        for step in [overwritten, twice, unknown] {
            let schedule = Schedule { chunks: 2, steps: vec![step] };
            let mut ranks = mesh(2);
            let tag = Tag { generation: 0, operation: 0, tensor: 0 };
            let run = Executor::new().run(&schedule, &mut ranks[0], tag, &mut [0.0; 8], Duration::ZERO);
            assert!(matches!(run, Err(Fault { peer: Some(0), cause: Cause::Protocol(_), .. })), "{run:?}");
        }
    }

    #[test]
    fn additions_follow_the_order_of_the_list() {
        // Two large numbers that cancel and a small one: it survives only if it comes last.
        let receive = |from| ReceiveChunk { from, chunk: 0, action: Action::Reduce };
        let send = Step { sends: vec![SendChunk { to: 0, chunk: 0 }], receives: vec![] };
        let steps = |rank, order: [usize; 2]| match rank {
            0 => Step { sends: vec![], receives: order.map(receive).to_vec() },
            _ => send.clone(),
        };
        for (order, sum) in [([1, 2], 1.0), ([2, 1], 0.0)] {
            std::thread::scope(|scope| {
                for (rank, mut transport) in mesh(3).into_iter().enumerate() {
                    let schedule = Schedule { chunks: 1, steps: vec![steps(rank, order)] };
                    scope.spawn(move || {
                        let mut buffer = [[-1e8f32, 1e8, 1.0][rank]];
                        let tag = Tag { generation: 0, operation: 0, tensor: 0 };
                        let deadline = Duration::from_secs(60);
                        Executor::new()
                            .run(&schedule, &mut transport, tag, &mut buffer, deadline)
                            .expect("a run");
                        assert!(rank > 0 || buffer == [sum]);
                        transport.close();
                    });
                }
            });
        }
    }
}
