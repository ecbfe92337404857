//! Multi-head attention over a sequence, without ever holding all heads' weights: one row, one head and a block of
//! queries at a time. The way back computes the weights again from one number per query.

use super::matrix::{Matrix, MatrixMut, multiply};
use super::{Op, Operator, expect_inputs, work};
use crate::autodiff::Tape;
use crate::executor::{Call, room};
use crate::graph::{NodeId, Shape};
use crate::kernel::attention::{log_weights, weights_from_logs};
use thalweg_core::{Batch, Result};

/// Most queries at a time.
const BLOCK: usize = 64;

/// A causal sequence up to this long goes in smaller blocks: the first queries see few of its keys.
const SHORT: usize = 128;

/// The input holds queries, keys and values side by side, `[positions, 3 * width]`; each head takes its share of every
/// one. Beside the result: per head and query the logarithm of the sum of its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// How many heads share the width.
    pub heads: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

/// The way back: the inputs are the gradient of the result, queries with keys and values, the result, the logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGradient {
    /// How many heads share the width.
    pub heads: usize,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

/// The sizes of one attention, and what a block of queries sees.
struct Sizes {
    positions: usize,
    width: usize,
    head: usize,
    causal: bool,
}

impl Sizes {
    fn new(shape: &Shape, heads: usize, causal: bool) -> Sizes {
        let (positions, width) = (shape.sizes()[0], shape.sizes()[1] / 3);
        Sizes { positions, width, head: width / heads, causal }
    }

    fn factor(&self) -> f32 {
        1.0 / (self.head as f32).sqrt()
    }

    /// The blocks of queries: first query, number of queries, number of keys that any of them sees.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let block = if self.causal && self.positions <= SHORT { BLOCK / 2 } else { BLOCK };
        (0..self.positions).step_by(block).map(move |begin| {
            let count = block.min(self.positions - begin);
            (begin, count, if self.causal { begin + count } else { self.positions })
        })
    }

    /// How many keys a query sees.
    fn seen(&self, query: usize) -> usize {
        if self.causal { query + 1 } else { self.positions }
    }
}

impl Operator for Attention {
    fn describe(&self) -> String {
        format!("attention of {} heads{}", self.heads, if self.causal { ", causal" } else { "" })
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        let &[positions, wide] = inputs[0].sizes() else {
            return Err(format!("expected a sequence (positions x numbers), got {}", inputs[0]));
        };
        match wide % 3 == 0 && self.heads > 0 && (wide / 3) % self.heads == 0 {
            true => Ok(inputs[0].with_sizes(&[positions, wide / 3])),
            false => Err(format!("expected a width that {} heads can share, got {}", self.heads, wide / 3)),
        }
    }

    fn parts(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_sizes(&[self.heads, inputs[0].sizes()[0]])]
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let sizes = Sizes::new(&call.shapes[0], self.heads, self.causal);
        let Sizes { positions, width, head, .. } = sizes;
        let block = room(&mut call.pass.memory.scratch, BLOCK * positions);
        for row in 0..call.rows {
            let read = &call.inputs[0][row * positions * 3 * width..][..positions * 3 * width];
            let output = &mut call.output[row * positions * width..][..positions * width];
            for number in 0..self.heads {
                let columns = number * head;
                for (begin, count, keys) in sizes.blocks() {
                    let weights = &mut block[..count * keys];
                    scores(weights, read, &sizes, columns, begin, count, keys);
                    for query in 0..count {
                        let line = &mut weights[query * keys..][..keys];
                        let log = log_weights(line, sizes.seen(begin + query), sizes.factor());
                        if let Some(logs) = call.parts[0].as_deref_mut() {
                            logs[(row * self.heads + number) * positions + begin + query] = log;
                        }
                    }
                    let values = Matrix::strided(&read[2 * width + columns..], keys, head, 3 * width);
                    let result = &mut output[begin * width + columns..];
                    let result = MatrixMut::strided(result, count, head, width);
                    multiply(result, Matrix::new(weights, count, keys), values, false);
                }
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let read = tape.input(node, 0);
        let logs = tape.add(Op::Part(0), &[node]);
        let op = AttentionGradient { heads: self.heads, causal: self.causal };
        let gradient = tape.add(Op::AttentionGradient(op), &[delta, read, node, logs]);
        tape.give(read, gradient);
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        let seen = if self.causal { 2 } else { 1 };
        work(&[4, shape.per_row(), inputs[0].sizes()[0]]) / seen
    }
}

/// Writes the products of a block's queries with the keys it sees.
fn scores(
    weights: &mut [f32],
    read: &[f32],
    sizes: &Sizes,
    columns: usize,
    begin: usize,
    count: usize,
    keys: usize,
) {
    let Sizes { width, head, .. } = *sizes;
    let queries = Matrix::strided(&read[begin * 3 * width + columns..], count, head, 3 * width);
    let seen = Matrix::strided(&read[width + columns..], keys, head, 3 * width);
    multiply(MatrixMut::new(weights, count, keys), queries, seen.transposed(), false);
}

impl Operator for AttentionGradient {
    fn describe(&self) -> String {
        "attention'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 4)?;
        Ok(inputs[1].clone())
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let sizes = Sizes::new(&call.shapes[1], self.heads, self.causal);
        let Sizes { positions, width, head, .. } = sizes;
        let memory = room(&mut call.pass.memory.scratch, 2 * BLOCK * positions);
        let (block, block_delta) = memory.split_at_mut(BLOCK * positions);
        let [delta, read, answer, logs] = [call.inputs[0], call.inputs[1], call.inputs[2], call.inputs[3]];
        for row in 0..call.rows {
            let read = &read[row * positions * 3 * width..][..positions * 3 * width];
            let output = &mut call.output[row * positions * 3 * width..][..positions * 3 * width];
            let delta = &delta[row * positions * width..][..positions * width];
            let answer = &answer[row * positions * width..][..positions * width];
            for number in 0..self.heads {
                let columns = number * head;
                for (begin, count, keys) in sizes.blocks() {
                    let weights = &mut block[..count * keys];
                    let slopes = &mut block_delta[..count * keys];
                    scores(weights, read, &sizes, columns, begin, count, keys);
                    let deltas = Matrix::strided(&delta[begin * width + columns..], count, head, width);
                    let values = Matrix::strided(&read[2 * width + columns..], keys, head, 3 * width);
                    multiply(MatrixMut::new(slopes, count, keys), deltas, values.transposed(), false);
                    for query in 0..count {
                        let place = (begin + query) * width + columns;
                        let log = logs[(row * self.heads + number) * positions + begin + query];
                        let seen = sizes.seen(begin + query);
                        let (weights, unseen) = weights[query * keys..][..keys].split_at_mut(seen);
                        let (slopes, unseen_slopes) = slopes[query * keys..][..keys].split_at_mut(seen);
                        unseen.fill(0.0);
                        unseen_slopes.fill(0.0);
                        let (answer, delta) = (&answer[place..place + head], &delta[place..place + head]);
                        weights_from_logs(weights, slopes, sizes.factor(), log, answer, delta);
                    }
                    // What later blocks add to was written by the first that sees it.
                    let fresh = if self.causal {
                        begin
                    } else if begin == 0 {
                        0
                    } else {
                        positions
                    };
                    let (weights, slopes) =
                        (Matrix::new(weights, count, keys), Matrix::new(slopes, count, keys));
                    let queries =
                        Matrix::strided(&read[begin * 3 * width + columns..], count, head, 3 * width);
                    let seen = Matrix::strided(&read[width + columns..], keys, head, 3 * width);
                    clear(output, fresh..keys, columns, &sizes);
                    let result = &mut output[begin * 3 * width + columns..];
                    multiply(MatrixMut::strided(result, count, head, 3 * width), slopes, seen, false);
                    let result = &mut output[width + columns..];
                    let result = MatrixMut::strided(result, keys, head, 3 * width);
                    multiply(result, slopes.transposed(), queries, true);
                    let result = &mut output[2 * width + columns..];
                    let result = MatrixMut::strided(result, keys, head, 3 * width);
                    multiply(result, weights.transposed(), deltas, true);
                }
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        let seen = if self.causal { 2 } else { 1 };
        work(&[10, inputs[0].per_row(), inputs[0].sizes()[0]]) / seen
    }
}

/// Writes zeros over a head's gradients of some keys and their values.
fn clear(output: &mut [f32], keys: std::ops::Range<usize>, columns: usize, sizes: &Sizes) {
    let Sizes { width, head, .. } = *sizes;
    for key in keys {
        for part in [width, 2 * width] {
            output[key * 3 * width + part + columns..][..head].fill(0.0);
        }
    }
}
