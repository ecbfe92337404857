//! Multi-head attention over a sequence, one row, head and block of queries at a time, so that the attention weights
//! of all heads are never in memory together. The backward pass recomputes the weights from one number per query.

use super::matrix::{Matrix, MatrixMut, multiply};
use super::{Op, Operator, expect_inputs, flop_count};
use crate::autodiff::Tape;
use crate::executor::{OperatorCall, scratch_slice};
use crate::graph::{NodeId, Shape};
use crate::kernel::attention::{softmax_backward, softmax_scores};
use thalweg_core::{Batch, Result};

/// Most queries of a block.
const BLOCK: usize = 64;

/// Causal sequences up to this length are split into smaller blocks, since their first queries see few keys.
const SHORT_SEQUENCE: usize = 128;

/// The input is queries, keys and values concatenated, `[positions, 3 * width]`, each split evenly among the heads.
/// Side output: the log-sum-exp of the scores per head and query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    pub heads: usize,
    /// Whether a position sees only itself and earlier ones.
    pub causal: bool,
}

/// The inputs are the gradient of the result, the input of the forward pass, its result and its side output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionGradient {
    pub heads: usize,
    /// Whether a position sees only itself and earlier ones.
    pub causal: bool,
}

struct AttentionSizes {
    positions: usize,
    width: usize,
    head_width: usize,
    causal: bool,
}

impl AttentionSizes {
    fn new(shape: &Shape, heads: usize, causal: bool) -> AttentionSizes {
        let (positions, width) = (shape.sizes()[0], shape.sizes()[1] / 3);
        AttentionSizes { positions, width, head_width: width / heads, causal }
    }

    /// The factor on the scores.
    fn factor(&self) -> f32 {
        1.0 / (self.head_width as f32).sqrt()
    }

    /// The blocks of queries: first query, number of queries, number of keys visible to any of them.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let block = if self.causal && self.positions <= SHORT_SEQUENCE { BLOCK / 2 } else { BLOCK };
        (0..self.positions).step_by(block).map(move |begin| {
            let count = block.min(self.positions - begin);
            (begin, count, if self.causal { begin + count } else { self.positions })
        })
    }

    /// The number of keys visible to a query.
    fn visible(&self, query: usize) -> usize {
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
            false => Err(format!("expected a width divisible by {} heads, got {}", self.heads, wide / 3)),
        }
    }

    fn side_outputs(&self, inputs: &[&Shape]) -> Vec<Shape> {
        vec![inputs[0].with_sizes(&[self.heads, inputs[0].sizes()[0]])]
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let sizes = AttentionSizes::new(&call.shapes[0], self.heads, self.causal);
        let AttentionSizes { positions, width, head_width, .. } = sizes;
        let block = scratch_slice(&mut call.context.workspace.scratch, BLOCK * positions);
        for row in 0..call.rows {
            let input = &call.inputs[0][row * positions * 3 * width..][..positions * 3 * width];
            let output = &mut call.output[row * positions * width..][..positions * width];
            for head in 0..self.heads {
                let column = head * head_width;
                for (begin, count, keys) in sizes.blocks() {
                    let weights = &mut block[..count * keys];
                    scores(weights, input, &sizes, column, begin, count, keys);
                    for query in 0..count {
                        let scores = &mut weights[query * keys..][..keys];
                        let log = softmax_scores(scores, sizes.visible(begin + query), sizes.factor());
                        if let Some(logs) = call.side_outputs[0].as_deref_mut() {
                            logs[(row * self.heads + head) * positions + begin + query] = log;
                        }
                    }
                    let values = Matrix::strided(&input[2 * width + column..], keys, head_width, 3 * width);
                    let result = &mut output[begin * width + column..];
                    let result = MatrixMut::strided(result, count, head_width, width);
                    multiply(result, Matrix::new(weights, count, keys), values, false);
                }
            }
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let input = tape.input(node, 0);
        let logs = tape.add(Op::SideOutput(0), &[node]);
        let op = AttentionGradient { heads: self.heads, causal: self.causal };
        let gradient = tape.add(Op::AttentionGradient(op), &[delta, input, node, logs]);
        tape.accumulate(input, gradient);
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        let masked = if self.causal { 2 } else { 1 };
        flop_count(&[4, shape.per_row(), inputs[0].sizes()[0]]) / masked
    }
}

/// Writes the products of a block's queries with its visible keys.
fn scores(
    weights: &mut [f32],
    input: &[f32],
    sizes: &AttentionSizes,
    column: usize,
    begin: usize,
    count: usize,
    keys: usize,
) {
    let AttentionSizes { width, head_width, .. } = *sizes;
    let queries = Matrix::strided(&input[begin * 3 * width + column..], count, head_width, 3 * width);
    let visible = Matrix::strided(&input[width + column..], keys, head_width, 3 * width);
    multiply(MatrixMut::new(weights, count, keys), queries, visible.transposed(), false);
}

impl Operator for AttentionGradient {
    fn describe(&self) -> String {
        "attention'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 4)?;
        Ok(inputs[1].clone())
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let sizes = AttentionSizes::new(&call.shapes[1], self.heads, self.causal);
        let AttentionSizes { positions, width, head_width, .. } = sizes;
        let scratch = scratch_slice(&mut call.context.workspace.scratch, 2 * BLOCK * positions);
        let (block, block_delta) = scratch.split_at_mut(BLOCK * positions);
        let [delta, input, result, logs] = [call.inputs[0], call.inputs[1], call.inputs[2], call.inputs[3]];
        for row in 0..call.rows {
            let input = &input[row * positions * 3 * width..][..positions * 3 * width];
            let output = &mut call.output[row * positions * 3 * width..][..positions * 3 * width];
            let delta = &delta[row * positions * width..][..positions * width];
            let result = &result[row * positions * width..][..positions * width];
            for head in 0..self.heads {
                let column = head * head_width;
                for (begin, count, keys) in sizes.blocks() {
                    let weights = &mut block[..count * keys];
                    let weight_deltas = &mut block_delta[..count * keys];
                    scores(weights, input, &sizes, column, begin, count, keys);
                    let deltas = Matrix::strided(&delta[begin * width + column..], count, head_width, width);
                    let values = Matrix::strided(&input[2 * width + column..], keys, head_width, 3 * width);
                    multiply(MatrixMut::new(weight_deltas, count, keys), deltas, values.transposed(), false);
                    for query in 0..count {
                        let offset = (begin + query) * width + column;
                        let log = logs[(row * self.heads + head) * positions + begin + query];
                        let visible = sizes.visible(begin + query);
                        let (weights, masked) = weights[query * keys..][..keys].split_at_mut(visible);
                        let (weight_deltas, masked_deltas) =
                            weight_deltas[query * keys..][..keys].split_at_mut(visible);
                        masked.fill(0.0);
                        masked_deltas.fill(0.0);
                        let result = &result[offset..offset + head_width];
                        let delta = &delta[offset..offset + head_width];
                        softmax_backward(weights, weight_deltas, sizes.factor(), log, result, delta);
                    }
                    // Later blocks accumulate, so the first block that sees a key clears its gradients.
                    let first_seen = if self.causal {
                        begin
                    } else if begin == 0 {
                        0
                    } else {
                        positions
                    };
                    let weights = Matrix::new(weights, count, keys);
                    let weight_deltas = Matrix::new(weight_deltas, count, keys);
                    let queries =
                        Matrix::strided(&input[begin * 3 * width + column..], count, head_width, 3 * width);
                    let visible = Matrix::strided(&input[width + column..], keys, head_width, 3 * width);
                    clear(output, first_seen..keys, column, &sizes);
                    let of_queries = &mut output[begin * 3 * width + column..];
                    let of_queries = MatrixMut::strided(of_queries, count, head_width, 3 * width);
                    multiply(of_queries, weight_deltas, visible, false);
                    let of_keys = &mut output[width + column..];
                    let of_keys = MatrixMut::strided(of_keys, keys, head_width, 3 * width);
                    multiply(of_keys, weight_deltas.transposed(), queries, true);
                    let of_values = &mut output[2 * width + column..];
                    let of_values = MatrixMut::strided(of_values, keys, head_width, 3 * width);
                    multiply(of_values, weights.transposed(), deltas, true);
                }
            }
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        let masked = if self.causal { 2 } else { 1 };
        flop_count(&[10, inputs[0].per_row(), inputs[0].sizes()[0]]) / masked
    }
}

/// Zeroes a head's gradients of some keys and their values.
fn clear(output: &mut [f32], keys: std::ops::Range<usize>, column: usize, sizes: &AttentionSizes) {
    let AttentionSizes { width, head_width, .. } = *sizes;
    for key in keys {
        for part in [width, 2 * width] {
            output[key * 3 * width + part + column..][..head_width].fill(0.0);
        }
    }
}
