//! A step whose rows do not look at each other, cut into shares of the batch: one for each thread of the team.

use crate::executor::{Call, MOST_PARTS, Memory, Pass};
use crate::graph::Shape;
use crate::op::Operator;
use crate::pass::MOST_INPUTS;
use crate::team::{MOST_SHARES, Team};
use std::ops::Range;
use thalweg_core::{NoHooks, Result, Tally};

/// Some rows of a step.
struct Share<'a> {
    rows: Range<usize>,
    inputs: [&'a [f32]; MOST_INPUTS],
    load: Option<&'a [f32]>,
    output: &'a mut [f32],
    parts: [Option<&'a mut [f32]>; MOST_PARTS],
    memory: &'a mut Memory,
    tally: Tally,
    result: Result<()>,
}

/// How many shares a piece of work is cut into: at most so many `pieces`, each worth its while. Work is counted in
/// elements that could be read and written once in the same time.
pub fn count(team: &Team, pieces: usize, work: usize) -> usize {
    team.threads().min(pieces).min(work / team.least_work()).clamp(1, MOST_SHARES)
}

/// The bounds of share `index` of `count`, of so many pieces.
pub fn bounds(pieces: usize, index: usize, count: usize) -> Range<usize> {
    pieces * index / count..pieces * (index + 1) / count
}

/// Runs an operator on its rows in so many shares. `load` is what the output begins with, if it works in place on what
/// somebody else still needs.
pub fn run(
    operator: &(dyn Operator + Sync),
    call: Call<'_, '_>,
    load: Option<&[f32]>,
    count: usize,
    memories: &mut Vec<Memory>,
) -> Result<()> {
    let Call { rows, inputs, shapes, shape, pass, .. } = call;
    let (mut output, mut parts) = (call.output, call.parts);
    memories.resize_with(memories.len().max(count), Memory::default);
    let part_sizes: [usize; MOST_PARTS] =
        std::array::from_fn(|index| parts[index].as_ref().map_or(0, |part| part.len() / rows.max(1)));
    let mut rest = memories.iter_mut();
    let mut shares: [Option<Share<'_>>; MOST_SHARES] = std::array::from_fn(|index| {
        let memory = if index < count { rest.next()? } else { return None };
        let own = bounds(rows, index, count);
        Some(Share {
            inputs: std::array::from_fn(|input| match (inputs.get(input), shapes.get(input)) {
                (Some(values), Some(shape)) => some_rows(values, shape, &own),
                _ => &[],
            }),
            load: load.map(|values| some_rows(values, shape, &own)),
            output: cut(&mut output, own.len() * shape.per_row()),
            parts: std::array::from_fn(|part| {
                parts[part].as_mut().map(|values| cut(values, own.len() * part_sizes[part]))
            }),
            rows: own,
            memory,
            tally: Tally::default(),
            result: Ok(()),
        })
    });
    let (team, batch, scale, seed) = (pass.team, pass.batch, pass.scale, pass.seed);
    team.each(&mut shares[..count], |_, share| {
        let Some(share) = share else { return };
        if let Some(values) = share.load {
            share.output.copy_from_slice(values);
        }
        let tally = Tally::default();
        let mut pass = Pass { batch, scale, seed, tally, memory: share.memory, hooks: &mut NoHooks, team };
        share.result = operator.run(&mut Call {
            first: share.rows.start,
            rows: share.rows.len(),
            inputs: &share.inputs[..inputs.len()],
            shapes,
            output: share.output,
            shape,
            parts: share.parts.each_mut().map(|part| part.as_deref_mut()),
            pass: &mut pass,
        });
        share.tally = pass.tally;
    });
    for share in shares.into_iter().flatten() {
        pass.tally.add(&share.tally);
        share.result?;
    }
    Ok(())
}

/// The part of a value that belongs to some rows; all of it if it has none.
fn some_rows<'a>(values: &'a [f32], shape: &Shape, rows: &Range<usize>) -> &'a [f32] {
    match shape.has_rows() && !values.is_empty() {
        true => &values[rows.start * shape.per_row()..rows.end * shape.per_row()],
        false => values,
    }
}

/// Takes that many elements off the front.
fn cut<'a>(values: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (front, rest) = std::mem::take(values).split_at_mut(len);
    *values = rest;
    front
}
