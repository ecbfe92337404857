//! Lines with mean 0 and variance 1.

use super::dispatch::dispatch;
use super::reduce::{dot, spread, sum};

dispatch! {
    /// Normalises lines in place; keeps one over each line's deviation if somebody wants it.
    pub fn normalize(values: &mut [f32], width: usize, epsilon: f32, inverses: Option<&mut [f32]>) {
        let mut kept = inverses.unwrap_or_default().iter_mut();
        for line in values.chunks_exact_mut(width.max(1)) {
            let mean = sum(line) / width as f32;
            let inverse = 1.0 / (spread(line, mean) / width as f32 + epsilon).sqrt();
            line.iter_mut().for_each(|value| *value = (*value - mean) * inverse);
            if let Some(kept) = kept.next() {
                *kept = inverse;
            }
        }
    }
}

dispatch! {
    /// Turns the gradient of normalised lines into that of the lines, in place.
    pub fn gradient(deltas: &mut [f32], normals: &[f32], inverses: &[f32], width: usize) {
        let lines = deltas.chunks_exact_mut(width.max(1)).zip(normals.chunks_exact(width.max(1)));
        for ((delta, normal), inverse) in lines.zip(inverses) {
            let mean = sum(delta) / width as f32;
            let slope = dot(delta, normal) / width as f32;
            for (delta, normal) in delta.iter_mut().zip(normal) {
                *delta = (*delta - mean - normal * slope) * inverse;
            }
        }
    }
}
