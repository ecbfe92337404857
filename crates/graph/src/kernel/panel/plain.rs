//! The sweep for any machine.

use super::{Target, store, tiles};

/// Columns of a panel.
pub const WIDTH: usize = 8;

/// Rows of a tile.
const ROWS: usize = 4;

/// See [`super::sweep`].
pub fn sweep(result: Target<'_>, left: &[f32], left_stride: usize, panels: &[f32], depth: usize) {
    let Target { values, rows, columns, row_stride, add } = result;
    for (index, panel) in panels.chunks_exact((depth * WIDTH).max(1)).enumerate() {
        let begin = index * WIDTH;
        let own = WIDTH.min(columns - begin);
        for tile in tiles(rows, ROWS) {
            let mut sums = [[0.0; WIDTH]; ROWS];
            for (sums, row) in sums.iter_mut().zip(tile.clone()) {
                let factors = &left[row * left_stride..][..depth];
                for (factor, line) in factors.iter().zip(panel.as_chunks::<WIDTH>().0) {
                    (0..WIDTH).for_each(|column| sums[column] += factor * line[column]);
                }
            }
            for (sums, row) in sums.iter().zip(tile) {
                store(&mut values[row * row_stride + begin..][..own], sums, add);
            }
        }
    }
}
