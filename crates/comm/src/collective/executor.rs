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
