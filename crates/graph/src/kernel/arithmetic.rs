//! Elementwise sums and products, in place.

use super::dispatch::dispatch;

dispatch! {
    /// Adds `vector` to every vector of its length.
    pub fn add_vector(values: &mut [f32], vector: &[f32]) {
        for values in values.chunks_exact_mut(vector.len().max(1)) {
            values.iter_mut().zip(vector).for_each(|(value, other)| *value += other);
        }
    }
}

dispatch! {
    /// Multiplies every vector of its length by `vector`, elementwise.
    pub fn multiply_vector(values: &mut [f32], vector: &[f32]) {
        for values in values.chunks_exact_mut(vector.len().max(1)) {
            values.iter_mut().zip(vector).for_each(|(value, other)| *value *= other);
        }
    }
}

dispatch! {
    /// `values += other`.
    pub fn add(values: &mut [f32], other: &[f32]) {
        values.iter_mut().zip(other).for_each(|(value, other)| *value += other);
    }
}

dispatch! {
    /// `values *= other`.
    pub fn multiply(values: &mut [f32], other: &[f32]) {
        values.iter_mut().zip(other).for_each(|(value, other)| *value *= other);
    }
}

dispatch! {
    /// `values *= factor`.
    pub fn scale(values: &mut [f32], factor: f32) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}
