//! Sums over columns.

use super::dispatch::dispatch;

dispatch! {
    /// Adds every line to the sums, in double precision.
    pub fn add_lines(sums: &mut [f64], values: &[f32]) {
        for line in values.chunks_exact(sums.len().max(1)) {
            sums.iter_mut().zip(line).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }
}
