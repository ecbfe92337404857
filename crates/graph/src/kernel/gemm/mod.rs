//! The macro-kernel of the matrix product: a block of the left factor times panels of the right one.
//!
//! After Goto and van de Geijn (2008): the right factor is packed into panels as wide as two vector registers, so
//! that the micro-kernel reads it sequentially; the sums of a tile stay in registers, a panel in the first-level
//! cache, the rows of the left factor in the second. The left factor is read in place where its rows are contiguous.

mod pack_left;
mod portable;
mod simd;
mod transpose;

use super::short_copy::short_copy;
use crate::partition::chunk_range;
use std::ops::Range;

pub use pack_left::pack_left;
pub use transpose::transpose_strided;

/// Most inner elements of one macro-kernel call: a panel of that depth fits the first-level cache.
pub const BLOCK_DEPTH: usize = 256;

/// A block of the result; row `i` starts at `i * row_stride`.
pub struct ResultBlock<'a> {
    pub values: &'a mut [f32],
    pub rows: usize,
    pub columns: usize,
    pub row_stride: usize,
    /// Whether to add to the present values instead of overwriting them.
    pub accumulate: bool,
}

/// Columns of a panel: two vector registers.
pub fn panel_width() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            return simd::avx512::WIDTH;
        }
        if super::dispatch::has_avx2() {
            return simd::avx2::WIDTH;
        }
    }
    portable::WIDTH
}

/// A block of the left factor.
#[derive(Clone, Copy)]
pub enum LeftBlock<'a> {
    /// In place: the elements and the row stride.
    Rows(&'a [f32], usize),
    /// Packed by [`pack_left`] into tiles: the elements of one inner step are contiguous.
    Tiles(&'a [f32]),
}

/// Most rows of a tile: times the columns of a panel, its sums fill the vector registers.
fn max_tile_rows() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            return simd::avx512::ROWS;
        }
        if super::dispatch::has_avx2() {
            return simd::avx2::ROWS;
        }
    }
    portable::ROWS
}

/// A block of the right factor: for every [`panel_width`] columns a panel of `depth` rows.
#[derive(Clone, Copy)]
pub struct RightPanels<'a> {
    pub values: &'a [f32],
    pub row_stride: usize,
    /// Distance between the starts of two panels.
    pub panel_stride: usize,
}

impl<'a> RightPanels<'a> {
    /// Contiguous panels, each row-major.
    pub fn packed(values: &'a [f32], depth: usize) -> RightPanels<'a> {
        RightPanels { values, row_stride: panel_width(), panel_stride: depth * panel_width() }
    }

    /// Whole panels inside a row-major matrix: as fast as packed ones, unless the rows conflict for the same cache
    /// sets.
    pub fn in_place(values: &'a [f32], row_stride: usize) -> RightPanels<'a> {
        RightPanels { values, row_stride, panel_stride: panel_width() }
    }
}

/// `result = left * right`, or `+=` where the result accumulates. `left` has `depth` elements per row of the result.
pub fn macro_kernel(result: ResultBlock<'_>, left: LeftBlock<'_>, right: RightPanels<'_>, depth: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            // SAFETY: the processor has every instruction set that the function is compiled for.
            return unsafe { simd::avx512::macro_kernel(result, left, right, depth) };
        }
        if super::dispatch::has_avx2() {
            // SAFETY: the processor has every instruction set that the function is compiled for.
            return unsafe { simd::avx2::macro_kernel(result, left, right, depth) };
        }
    }
    portable::macro_kernel(result, left, right, depth);
}

/// Copies rows of a panel from a source with another stride.
#[inline]
pub fn copy_rows<'a>(rows: impl Iterator<Item = &'a mut [f32]>, source: &[f32], stride: usize) {
    for (index, row) in rows.enumerate() {
        let from = &source[index * stride..];
        short_copy(row, &from[..row.len()]);
    }
}

/// The tiles of a block: row ranges of about equal size, since a tile of few rows leaves registers idle.
#[inline(always)]
fn tiles(rows: usize, max_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let count = rows.div_ceil(max_rows);
    (0..count).map(move |tile| chunk_range(rows, count, tile))
}

/// Stores one row of a tile's sums.
#[inline(always)]
fn store<const WIDTH: usize>(values: &mut [f32], sums: &[f32; WIDTH], accumulate: bool) {
    match <&mut [f32; WIDTH]>::try_from(&mut *values) {
        Ok(values) if accumulate => (0..WIDTH).for_each(|column| values[column] += sums[column]),
        Ok(values) => *values = *sums,
        Err(_) if accumulate => values.iter_mut().zip(sums).for_each(|(value, sum)| *value += sum),
        Err(_) => values.iter_mut().zip(sums).for_each(|(value, sum)| *value = *sum),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::instruction_set::InstructionSet;

    /// Checks a macro-kernel with these tile sizes against the definition.
    fn check(
        width: usize,
        max_rows: usize,
        kernel: impl Fn(ResultBlock<'_>, LeftBlock<'_>, RightPanels<'_>, usize),
    ) {
        for (rows, columns, depth) in [(1, 1, 1), (5, 16, 3), (13, 37, 20), (32, 64, 64), (7, 33, 0)] {
            let number = |index: usize| (index * 7 % 11) as f32 - 5.0;
            let left: Vec<f32> = (0..rows * (depth + 2)).map(number).collect();
            let right = |inner: usize, column: usize| number(inner * 3 + column);
            let mut panels = Vec::new();
            for begin in (0..columns).step_by(width) {
                for inner in 0..depth {
                    panels.extend(
                        (begin..begin + width).map(|c| if c < columns { right(inner, c) } else { 9.0 }),
                    );
                }
            }
            let packed = RightPanels { values: &panels, row_stride: width, panel_stride: width * depth };
            for accumulate in [false, true] {
                let mut values = vec![1.0; rows * (columns + 3)];
                let row_stride = columns + 3;
                let target = ResultBlock { values: &mut values, rows, columns, row_stride, accumulate };
                kernel(target, LeftBlock::Rows(&left, depth + 2), packed, depth);
                let mut columnwise = vec![0.0; (rows + 1) * depth];
                transpose_strided(&mut columnwise, rows + 1, &left, depth + 2, rows, depth);
                let mut tiles = vec![f32::NAN; rows * depth];
                pack_left::pack_tiles(&mut tiles, &columnwise, rows + 1, rows, depth, max_rows);
                let mut again = vec![1.0; rows * (columns + 3)];
                let target = ResultBlock { values: &mut again, rows, columns, row_stride, accumulate };
                kernel(target, LeftBlock::Tiles(&tiles), packed, depth);
                assert_eq!(again, values, "in place and packed");
                for row in 0..rows {
                    for column in 0..columns {
                        let sum: f32 = (0..depth)
                            .map(|inner| left[row * (depth + 2) + inner] * right(inner, column))
                            .sum();
                        let expected = if depth == 0 { 1.0 } else { sum + f32::from(accumulate) };
                        assert_eq!(values[row * row_stride + column], expected, "{rows} {columns} {depth}");
                    }
                    assert!(values[row * row_stride + columns..][..3].iter().all(|value| *value == 1.0));
                }
            }
        }
    }

    #[test]
    fn macro_kernels_match_the_definition() {
        check(panel_width(), max_tile_rows(), macro_kernel);
        check(portable::WIDTH, portable::ROWS, portable::macro_kernel);
        #[cfg(target_arch = "x86_64")]
        if InstructionSet::best() >= InstructionSet::Avx2 {
            use simd::avx2;
            // SAFETY: the processor has every instruction set that the function is compiled for.
            check(avx2::WIDTH, avx2::ROWS, |result, left, right, depth| unsafe {
                avx2::macro_kernel(result, left, right, depth);
            });
        }
    }
}
