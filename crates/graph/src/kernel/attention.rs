//! One query's line of an attention.

use super::dispatch::dispatch;
use super::exponential::exp;
use super::reduce::{dot, largest, sum};

dispatch! {
    /// Turns a query's products into weights that add up to 1, 0 for the keys it does not see. Returns the logarithm of the
    /// sum, from which [`weights_from_logs`] finds the weights again.
    pub fn log_weights(line: &mut [f32], seen: usize, factor: f32) -> f32 {
        let (line, unseen) = line.split_at_mut(seen);
        unseen.fill(0.0);
        let most = largest(line) * factor;
        line.iter_mut().for_each(|value| *value = exp(*value * factor - most));
        let total = sum(line);
        let share = 1.0 / total;
        line.iter_mut().for_each(|value| *value *= share);
        most + total.ln()
    }
}

dispatch! {
    /// Finds a query's weights again, and turns the gradient of the weights into that of the products (`factor`
    /// included), given the query's result and its gradient.
    pub fn weights_from_logs(
        weights: &mut [f32],
        slopes: &mut [f32],
        factor: f32,
        log: f32,
        answer: &[f32],
        delta: &[f32],
    ) {
        let own = dot(answer, delta);
        for (weight, slope) in weights.iter_mut().zip(slopes) {
            *weight = exp(*weight * factor - log);
            *slope = *weight * (*slope - own) * factor;
        }
    }
}
