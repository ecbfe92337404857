//! The sweep for any machine.

use super::{Left, Right, Target, store, tiles};

/// Columns of a panel.
pub const WIDTH: usize = 8;

/// Rows of a tile.
pub const ROWS: usize = 4;

/// See [`super::sweep`].
pub fn sweep(result: Target<'_>, left: Left<'_>, right: Right<'_>, depth: usize) {
    let Target { values, rows, columns, row_stride, add } = result;
    if depth == 0 {
        return;
    }
    for (index, begin) in (0..columns).step_by(WIDTH).enumerate() {
        let panel = &right.values[index * right.panel..][..(depth - 1) * right.line + WIDTH];
        let own = WIDTH.min(columns - begin);
        for tile in tiles(rows, ROWS) {
            let mut sums = [[0.0; WIDTH]; ROWS];
            for (sums, row) in sums.iter_mut().zip(tile.clone()) {
                let (factors, step) = match left {
                    Left::Rows(values, stride) => (&values[row * stride..][..depth], 1),
                    Left::Tiles(values) => (&values[tile.start * depth + row - tile.start..], tile.len()),
                };
                for (number, factor) in factors.iter().step_by(step).take(depth).enumerate() {
                    let line = &panel[number * right.line..][..WIDTH];
                    (0..WIDTH).for_each(|column| sums[column] += factor * line[column]);
                }
            }
            for (sums, row) in sums.iter().zip(tile) {
                store(&mut values[row * row_stride + begin..][..own], sums, add);
            }
        }
    }
}
