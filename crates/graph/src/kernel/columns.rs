//! Column sums.

use super::dispatch::dispatch;

/// Vectors that are added while a sum is in a register.
const UNROLL: usize = 8;

dispatch! {
    /// Adds every vector to the sums, in double precision and in order.
    pub fn add_vectors(sums: &mut [f64], values: &[f32]) {
        let width = sums.len();
        if width == 0 {
            return;
        }
        let mut blocks = values.chunks_exact(UNROLL * width);
        for block in &mut blocks {
            let vectors: [&[f32]; UNROLL] = std::array::from_fn(|index| &block[index * width..][..width]);
            for (column, sum) in sums.iter_mut().enumerate() {
                let mut total = *sum;
                for vector in vectors {
                    total += f64::from(vector[column]);
                }
                *sum = total;
            }
        }
        for vector in blocks.remainder().chunks_exact(width) {
            sums.iter_mut().zip(vector).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }
}
