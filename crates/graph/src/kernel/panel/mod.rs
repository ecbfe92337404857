//! The heart of the matrix product: a few rows of the left factor times a panel of the right one, summed in registers.
//!
//! The right factor is packed into panels of as many columns as a few vector registers hold, so that the innermost loop
//! reads it in order; the left factor is read where it lies. As in fast products since Goto and van de Geijn (2008), sums
//! stay in registers, a panel in the first cache, the rows of the left factor in the second.

mod plain;
mod tile;
mod turn;
mod vector;

use super::short;

pub use tile::tile_up;
pub use turn::turn;

/// Numbers of a row of the left factor that are multiplied in one go: a panel of as many lines fits the first cache.
pub const DEPTH: usize = 256;

/// A result seen in a slice: row `i` begins at `i * row_stride`.
pub struct Target<'a> {
    /// The numbers.
    pub values: &'a mut [f32],
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub columns: usize,
    /// Between the beginnings of two rows.
    pub row_stride: usize,
    /// Whether to add to what is there.
    pub add: bool,
}

/// The columns of a panel: what the machine's registers are good for.
pub fn width() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            return vector::avx512::WIDTH;
        }
        if super::dispatch::has_avx2() {
            return vector::avx2::WIDTH;
        }
    }
    plain::WIDTH
}

/// The left factor of a sweep.
#[derive(Clone, Copy)]
pub enum Left<'a> {
    /// Where it lies: the numbers, and what is between the beginnings of two rows.
    Rows(&'a [f32], usize),
    /// In [`tiles`](tile_up), so that the numbers of a step stand side by side.
    Tiles(&'a [f32]),
}

/// The most rows of a tile: with the columns of a panel, they fill the machine's registers.
fn most_rows() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            return vector::avx512::ROWS;
        }
        if super::dispatch::has_avx2() {
            return vector::avx2::ROWS;
        }
    }
    plain::ROWS
}

/// The right factor of a sweep: for every [`width`] columns a panel, with `depth` lines of as many numbers.
#[derive(Clone, Copy)]
pub struct Right<'a> {
    /// The numbers.
    pub values: &'a [f32],
    /// Between the beginnings of two lines.
    pub line: usize,
    /// Between the beginnings of two panels.
    pub panel: usize,
}

impl<'a> Right<'a> {
    /// Panels one after the other, each line by line.
    pub fn packed(values: &'a [f32], depth: usize) -> Right<'a> {
        Right { values, line: width(), panel: depth * width() }
    }

    /// A whole number of panels inside a matrix whose rows stand `stride` apart: as good as packed ones, unless the lines
    /// fight for the same places of a cache.
    pub fn in_place(values: &'a [f32], stride: usize) -> Right<'a> {
        Right { values, line: stride, panel: width() }
    }
}

/// Writes `left * right` over the result, or adds it. `left` has the rows of the result, with `depth` numbers each.
pub fn sweep(result: Target<'_>, left: Left<'_>, right: Right<'_>, depth: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            // SAFETY: the processor has every instruction set that it is compiled for.
            return unsafe { vector::avx512::sweep(result, left, right, depth) };
        }
        if super::dispatch::has_avx2() {
            // SAFETY: the processor has every instruction set that it is compiled for.
            return unsafe { vector::avx2::sweep(result, left, right, depth) };
        }
    }
    plain::sweep(result, left, right, depth);
}

/// Copies lines of a panel from where they stand, `stride` apart.
#[inline]
pub fn gather<'a>(lines: impl Iterator<Item = &'a mut [f32]>, source: &[f32], stride: usize) {
    for (number, line) in lines.enumerate() {
        let from = &source[number * stride..];
        short::copy(line, &from[..line.len()]);
    }
}

/// The tiles of a sweep: the rows in groups that are as equal as can be, since a tile of few rows leaves registers idle.
#[inline(always)]
fn tiles(rows: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let count = rows.div_ceil(most);
    (0..count).map(move |tile| rows * tile / count..rows * (tile + 1) / count)
}

/// Writes a line of a tile's sums into the result.
#[inline(always)]
fn store<const WIDTH: usize>(values: &mut [f32], sums: &[f32; WIDTH], add: bool) {
    match <&mut [f32; WIDTH]>::try_from(&mut *values) {
        Ok(values) if add => (0..WIDTH).for_each(|column| values[column] += sums[column]),
        Ok(values) => *values = *sums,
        Err(_) if add => values.iter_mut().zip(sums).for_each(|(value, sum)| *value += sum),
        Err(_) => values.iter_mut().zip(sums).for_each(|(value, sum)| *value = *sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::instructions::Instructions;

    /// Checks a sweep of given panel width against the definition.
    fn check(width: usize, most: usize, sweep: impl Fn(Target<'_>, Left<'_>, Right<'_>, usize)) {
        for (rows, columns, depth) in [(1, 1, 1), (5, 16, 3), (13, 37, 20), (32, 64, 64), (7, 33, 0)] {
            let number = |index: usize| (index * 7 % 11) as f32 - 5.0;
            let left: Vec<f32> = (0..rows * (depth + 2)).map(number).collect();
            let right = |line: usize, column: usize| number(line * 3 + column);
            let mut panels = Vec::new();
            for begin in (0..columns).step_by(width) {
                for line in 0..depth {
                    panels.extend(
                        (begin..begin + width).map(|c| if c < columns { right(line, c) } else { 9.0 }),
                    );
                }
            }
            let packed = Right { values: &panels, line: width, panel: width * depth };
            for add in [false, true] {
                let mut values = vec![1.0; rows * (columns + 3)];
                let row_stride = columns + 3;
                let target = Target { values: &mut values, rows, columns, row_stride, add };
                sweep(target, Left::Rows(&left, depth + 2), packed, depth);
                let mut columnwise = vec![0.0; (rows + 1) * depth];
                turn(&mut columnwise, rows + 1, &left, depth + 2, rows, depth);
                let mut tiles = vec![f32::NAN; rows * depth];
                tile::tile_up_by(&mut tiles, &columnwise, rows + 1, rows, depth, most);
                let mut again = vec![1.0; rows * (columns + 3)];
                let target = Target { values: &mut again, rows, columns, row_stride, add };
                sweep(target, Left::Tiles(&tiles), packed, depth);
                assert_eq!(again, values, "either way");
                for row in 0..rows {
                    for column in 0..columns {
                        let sum: f32 =
                            (0..depth).map(|line| left[row * (depth + 2) + line] * right(line, column)).sum();
                        let expected = if depth == 0 { 1.0 } else { sum + f32::from(add) };
                        assert_eq!(values[row * row_stride + column], expected, "{rows} {columns} {depth}");
                    }
                    assert!(values[row * row_stride + columns..][..3].iter().all(|value| *value == 1.0));
                }
            }
        }
    }

    #[test]
    fn sweeps_agree_with_the_definition() {
        check(width(), most_rows(), sweep);
        check(plain::WIDTH, plain::ROWS, plain::sweep);
        #[cfg(target_arch = "x86_64")]
        if Instructions::best() >= Instructions::Avx2 {
            use vector::avx2;
            // SAFETY: the processor has every instruction set that it is compiled for.
            check(avx2::WIDTH, avx2::ROWS, |result, left, right, depth| unsafe {
                avx2::sweep(result, left, right, depth);
            });
        }
    }
}
