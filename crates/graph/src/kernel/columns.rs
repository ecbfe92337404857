//! Sums over columns.

use super::dispatch::dispatch;

/// Lines that are added while a sum is at hand.
const LINES: usize = 8;

dispatch! {
    /// Adds every line to the sums, in double precision, one line after the other.
    pub fn add_lines(sums: &mut [f64], values: &[f32]) {
        let width = sums.len();
        if width == 0 {
            return;
        }
        let mut blocks = values.chunks_exact(LINES * width);
        for block in &mut blocks {
            let lines: [&[f32]; LINES] = std::array::from_fn(|line| &block[line * width..][..width]);
            for (column, sum) in sums.iter_mut().enumerate() {
                let mut total = *sum;
                for line in lines {
                    total += f64::from(line[column]);
                }
                *sum = total;
            }
        }
        for line in blocks.remainder().chunks_exact(width) {
            sums.iter_mut().zip(line).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }
}
