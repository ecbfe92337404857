//! Rows and columns exchanged, in blocks that fit registers.

#[cfg(target_arch = "x86_64")]
use crate::kernel::dispatch;
use std::ops::Range;

/// Writes `target[column * target_stride + row] = source[row * source_stride + column]`.
pub fn turn(
    target: &mut [f32],
    target_stride: usize,
    source: &[f32],
    source_stride: usize,
    rows: usize,
    columns: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if dispatch::has_avx2() {
        // SAFETY: the processor has every instruction set that it is compiled for.
        return unsafe { vector::turn(target, target_stride, source, source_stride, rows, columns) };
    }
    rest(target, target_stride, source, source_stride, 0..rows, 0..columns);
}

/// Element by element.
#[inline(always)]
fn rest(
    target: &mut [f32],
    target_stride: usize,
    source: &[f32],
    source_stride: usize,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    for row in rows {
        for column in columns.clone() {
            target[column * target_stride + row] = source[row * source_stride + column];
        }
    }
}

/// Blocks in eight registers: pairs, then pairs of pairs, then halves change places.
#[cfg(target_arch = "x86_64")]
mod vector {
    use super::rest;
    use std::arch::x86_64::{
        _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps,
        _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };

    /// Rows and columns of a block.
    const SIDE: usize = 8;

    /// See [`super::turn`].
    #[target_feature(enable = "avx2,fma")]
    pub fn turn(
        target: &mut [f32],
        target_stride: usize,
        source: &[f32],
        source_stride: usize,
        rows: usize,
        columns: usize,
    ) {
        let (whole_rows, whole_columns) = (rows - rows % SIDE, columns - columns % SIDE);
        for row in (0..whole_rows).step_by(SIDE) {
            for column in (0..whole_columns).step_by(SIDE) {
                let from = &source[row * source_stride + column..];
                block(&mut target[column * target_stride + row..], target_stride, from, source_stride);
            }
        }
        rest(target, target_stride, source, source_stride, 0..whole_rows, whole_columns..columns);
        rest(target, target_stride, source, source_stride, whole_rows..rows, 0..columns);
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn block(target: &mut [f32], target_stride: usize, source: &[f32], source_stride: usize) {
        let mut lines = [_mm256_setzero_ps(); SIDE];
        for row in 0..SIDE {
            let line = &source[row * source_stride..][..SIDE];
            // SAFETY: a line has as many numbers as a vector.
            lines[row] = unsafe { _mm256_loadu_ps(line.as_ptr()) };
        }
        let mut pairs = lines;
        for pair in 0..SIDE / 2 {
            pairs[2 * pair] = _mm256_unpacklo_ps(lines[2 * pair], lines[2 * pair + 1]);
            pairs[2 * pair + 1] = _mm256_unpackhi_ps(lines[2 * pair], lines[2 * pair + 1]);
        }
        let mut fours = pairs;
        for half in [0, SIDE / 2] {
            fours[half] = _mm256_shuffle_ps::<0x44>(pairs[half], pairs[half + 2]);
            fours[half + 1] = _mm256_shuffle_ps::<0xee>(pairs[half], pairs[half + 2]);
            fours[half + 2] = _mm256_shuffle_ps::<0x44>(pairs[half + 1], pairs[half + 3]);
            fours[half + 3] = _mm256_shuffle_ps::<0xee>(pairs[half + 1], pairs[half + 3]);
        }
        for column in 0..SIDE {
            let (low, high) = (fours[column % 4], fours[column % 4 + 4]);
            let line = &mut target[column * target_stride..][..SIDE];
            let turned = match column < 4 {
                true => _mm256_permute2f128_ps::<0x20>(low, high),
                false => _mm256_permute2f128_ps::<0x31>(low, high),
            };
            // SAFETY: a line has as many numbers as a vector.
            unsafe { _mm256_storeu_ps(line.as_mut_ptr(), turned) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        for (rows, columns) in [(0, 3), (1, 1), (8, 8), (16, 24), (9, 17), (20, 5)] {
            let (source_stride, target_stride) = (columns + 2, rows + 1);
            let source: Vec<f32> = (0..rows * source_stride).map(|index| index as f32).collect();
            let mut target = vec![-1.0; columns * target_stride];
            turn(&mut target, target_stride, &source, source_stride, rows, columns);
            for row in 0..rows {
                for column in 0..columns {
                    let expected = source[row * source_stride + column];
                    assert_eq!(target[column * target_stride + row], expected, "{rows}x{columns}");
                }
            }
            assert!((0..columns).all(|column| target[column * target_stride + rows] == -1.0));
        }
    }
}
