//! Splits work into chunks for a thread team, and runs row-wise operators on chunks of the batch.

use crate::executor::{MAX_SIDE_OUTPUTS, OperatorCall, RunContext, Workspace};
use crate::graph::Shape;
use crate::op::Operator;
use crate::pass::MAX_INPUTS;
use crate::team::{MAX_CHUNKS, Team};
use std::ops::Range;
use thalweg_core::{NoHooks, Result, Tally};

/// A contiguous range of rows with its slices of every buffer.
struct Chunk<'a> {
    rows: Range<usize>,
    inputs: [&'a [f32]; MAX_INPUTS],
    preload: Option<&'a [f32]>,
    output: &'a mut [f32],
    side_outputs: [Option<&'a mut [f32]>; MAX_SIDE_OUTPUTS],
    workspace: &'a mut Workspace,
    tally: Tally,
    result: Result<()>,
}

/// The number of chunks for `items` independent items: at most one per item and thread, each with at least
/// [`Team::min_chunk_work`]. `work` is the total, in elements that can be read and written once in the same time.
pub fn chunk_count(team: &Team, items: usize, work: usize) -> usize {
    team.threads().min(items).min(work / team.min_chunk_work()).clamp(1, MAX_CHUNKS)
}

/// The items of chunk `index` of `count`. Inlined, since kernels compiled for a vector instruction set call it.
#[inline(always)]
pub fn chunk_range(items: usize, count: usize, index: usize) -> Range<usize> {
    items * index / count..items * (index + 1) / count
}

/// Runs a row-wise operator in `count` chunks of the batch. `preload` is copied into the output first, for a kernel
/// that works in place on an input with other readers.
pub fn run_rowwise(
    operator: &(dyn Operator + Sync),
    call: OperatorCall<'_, '_>,
    preload: Option<&[f32]>,
    count: usize,
    workspaces: &mut Vec<Workspace>,
) -> Result<()> {
    let OperatorCall { rows, inputs, shapes, shape, context, .. } = call;
    let (mut output, mut side_outputs) = (call.output, call.side_outputs);
    workspaces.resize_with(workspaces.len().max(count), Workspace::default);
    let side_sizes: [usize; MAX_SIDE_OUTPUTS] =
        std::array::from_fn(|index| side_outputs[index].as_ref().map_or(0, |side| side.len() / rows.max(1)));
    let mut rest = workspaces.iter_mut();
    let mut chunks: [Option<Chunk<'_>>; MAX_CHUNKS] = std::array::from_fn(|index| {
        let workspace = if index < count { rest.next()? } else { return None };
        let own = chunk_range(rows, count, index);
        Some(Chunk {
            inputs: std::array::from_fn(|input| match (inputs.get(input), shapes.get(input)) {
                (Some(values), Some(shape)) => slice_rows(values, shape, &own),
                _ => &[],
            }),
            preload: preload.map(|values| slice_rows(values, shape, &own)),
            output: split_front(&mut output, own.len() * shape.per_row()),
            side_outputs: std::array::from_fn(|side| {
                side_outputs[side].as_mut().map(|values| split_front(values, own.len() * side_sizes[side]))
            }),
            rows: own,
            workspace,
            tally: Tally::default(),
            result: Ok(()),
        })
    });
    let (team, batch, scale, seed) = (context.team, context.batch, context.scale, context.seed);
    team.for_each(&mut chunks[..count], |_, chunk| {
        let Some(chunk) = chunk else { return };
        if let Some(values) = chunk.preload {
            chunk.output.copy_from_slice(values);
        }
        let (tally, workspace, hooks) = (Tally::default(), &mut *chunk.workspace, &mut NoHooks);
        let mut context = RunContext { batch, scale, seed, tally, workspace, hooks, team };
        chunk.result = operator.run(&mut OperatorCall {
            first_row: chunk.rows.start,
            rows: chunk.rows.len(),
            inputs: &chunk.inputs[..inputs.len()],
            shapes,
            output: chunk.output,
            shape,
            side_outputs: chunk.side_outputs.each_mut().map(|side| side.as_deref_mut()),
            context: &mut context,
        });
        chunk.tally = context.tally;
    });
    // In the order of the chunks, so that the sum does not depend on scheduling.
    for chunk in chunks.into_iter().flatten() {
        context.tally.add(&chunk.tally);
        chunk.result?;
    }
    Ok(())
}

/// The elements of some rows; all elements of a value without rows.
fn slice_rows<'a>(values: &'a [f32], shape: &Shape, rows: &Range<usize>) -> &'a [f32] {
    match shape.has_rows() && !values.is_empty() {
        true => &values[rows.start * shape.per_row()..rows.end * shape.per_row()],
        false => values,
    }
}

/// Removes `len` elements from the front of a slice and returns them.
fn split_front<'a>(values: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (front, rest) = std::mem::take(values).split_at_mut(len);
    *values = rest;
    front
}
