//! Layer normalisation: vectors with mean 0 and variance 1.

use super::dispatch::dispatch;
use super::reduce::{dot, squared_deviations, sum};

dispatch! {
    /// Normalises vectors in place; `inverses` receives the inverse standard deviation of each.
    pub fn normalize(values: &mut [f32], width: usize, epsilon: f32, inverses: Option<&mut [f32]>) {
        let mut inverses = inverses.unwrap_or_default().iter_mut();
        for vector in values.chunks_exact_mut(width.max(1)) {
            let mean = sum(vector) / width as f32;
            let inverse = 1.0 / (squared_deviations(vector, mean) / width as f32 + epsilon).sqrt();
            vector.iter_mut().for_each(|value| *value = (*value - mean) * inverse);
            if let Some(slot) = inverses.next() {
                *slot = inverse;
            }
        }
    }
}

dispatch! {
    /// Turns the gradient of the normalised vectors into that of the inputs, in place.
    pub fn normalize_backward(deltas: &mut [f32], normals: &[f32], inverses: &[f32], width: usize) {
        let vectors = deltas.chunks_exact_mut(width.max(1)).zip(normals.chunks_exact(width.max(1)));
        for ((delta, normal), inverse) in vectors.zip(inverses) {
            let mean = sum(delta) / width as f32;
            let projection = dot(delta, normal) / width as f32;
            for (delta, normal) in delta.iter_mut().zip(normal) {
                *delta = (*delta - mean - normal * projection) * inverse;
            }
        }
    }
}
