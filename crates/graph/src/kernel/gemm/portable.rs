//! The macro-kernel without vector intrinsics.

use super::{LeftBlock, ResultBlock, RightPanels, store, tiles};

/// Columns of a panel.
pub const WIDTH: usize = 8;

/// Most rows of a tile.
pub const ROWS: usize = 4;

/// See [`super::macro_kernel`].
pub fn macro_kernel(result: ResultBlock<'_>, left: LeftBlock<'_>, right: RightPanels<'_>, depth: usize) {
    let ResultBlock { values, rows, columns, row_stride, accumulate } = result;
    if depth == 0 {
        return;
    }
    for (index, begin) in (0..columns).step_by(WIDTH).enumerate() {
        let panel = &right.values[index * right.panel_stride..][..(depth - 1) * right.row_stride + WIDTH];
        let panel_columns = WIDTH.min(columns - begin);
        for tile in tiles(rows, ROWS) {
            let mut sums = [[0.0; WIDTH]; ROWS];
            for (sums, row) in sums.iter_mut().zip(tile.clone()) {
                let (factors, step) = match left {
                    LeftBlock::Rows(values, stride) => (&values[row * stride..][..depth], 1),
                    LeftBlock::Tiles(values) => {
                        (&values[tile.start * depth + row - tile.start..], tile.len())
                    }
                };
                for (inner, factor) in factors.iter().step_by(step).take(depth).enumerate() {
                    let right_row = &panel[inner * right.row_stride..][..WIDTH];
                    (0..WIDTH).for_each(|column| sums[column] += factor * right_row[column]);
                }
            }
            for (sums, row) in sums.iter().zip(tile) {
                store(&mut values[row * row_stride + begin..][..panel_columns], sums, accumulate);
            }
        }
    }
}
