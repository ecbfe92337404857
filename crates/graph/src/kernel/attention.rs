//! Softmax of the attention scores of one query, forward and backward.

use super::dispatch::dispatch;
use super::exponential::exp;
use super::reduce::{dot, max, sum};

dispatch! {
    /// Softmax of `factor * scores` over the first `visible` keys, in place; masked keys get 0. Returns the
    /// log-sum-exp, from which [`softmax_backward`] recomputes the weights.
    pub fn softmax_scores(scores: &mut [f32], visible: usize, factor: f32) -> f32 {
        let (scores, masked) = scores.split_at_mut(visible);
        masked.fill(0.0);
        let largest = max(scores) * factor;
        scores.iter_mut().for_each(|value| *value = exp(*value * factor - largest));
        let total = sum(scores);
        let inverse = 1.0 / total;
        scores.iter_mut().for_each(|value| *value *= inverse);
        largest + total.ln()
    }
}

dispatch! {
    /// Recomputes the weights of a query from its scores, and turns the gradient of the weights into that of the scores
    /// (`factor` included), both in place, given the result of the query and its gradient.
    pub fn softmax_backward(
        weights: &mut [f32],
        weight_deltas: &mut [f32],
        factor: f32,
        log_sum_exp: f32,
        result: &[f32],
        delta: &[f32],
    ) {
        let mean = dot(result, delta);
        for (weight, weight_delta) in weights.iter_mut().zip(weight_deltas) {
            *weight = exp(*weight * factor - log_sum_exp);
            *weight_delta = *weight * (*weight_delta - mean) * factor;
        }
    }
}
