//! Sums and products, element by element.

use super::dispatch::dispatch;

dispatch! {
    /// Adds one number per column to every line.
    pub fn add_to_lines(values: &mut [f32], line: &[f32]) {
        for values in values.chunks_exact_mut(line.len().max(1)) {
            values.iter_mut().zip(line).for_each(|(value, line)| *value += line);
        }
    }
}

dispatch! {
    /// Multiplies every line by one number per column.
    pub fn multiply_lines(values: &mut [f32], line: &[f32]) {
        for values in values.chunks_exact_mut(line.len().max(1)) {
            values.iter_mut().zip(line).for_each(|(value, line)| *value *= line);
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
