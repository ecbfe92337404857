//! Matrix transposition, in blocks that fit the vector registers.

#[cfg(target_arch = "x86_64")]
use crate::kernel::dispatch;
use std::ops::Range;

/// Writes `target[column * target_stride + row] = source[row * source_stride + column]`.
pub fn transpose_strided(
    target: &mut [f32],
    target_stride: usize,
    source: &[f32],
    source_stride: usize,
    rows: usize,
    columns: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if dispatch::has_avx2() {
        // SAFETY: the processor has every instruction set that the function is compiled for.
        return unsafe {
            avx2::transpose_strided(target, target_stride, source, source_stride, rows, columns)
        };
    }
    elementwise(target, target_stride, source, source_stride, 0..rows, 0..columns);
}

/// Transposes a part of the matrix element by element.
#[inline(always)]
fn elementwise(
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

/// Blocks of 8 x 8 in eight registers, by interleaving elements, then pairs, then halves.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::elementwise;
    use std::arch::x86_64::{
        _mm256_loadu_ps, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_shuffle_ps, _mm256_storeu_ps,
        _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };

    /// Rows and columns of a block.
    const SIDE: usize = 8;

    /// See [`super::transpose_strided`].
    #[target_feature(enable = "avx2,fma")]
    pub fn transpose_strided(
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
        elementwise(target, target_stride, source, source_stride, 0..whole_rows, whole_columns..columns);
        elementwise(target, target_stride, source, source_stride, whole_rows..rows, 0..columns);
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn block(target: &mut [f32], target_stride: usize, source: &[f32], source_stride: usize) {
        let mut rows = [_mm256_setzero_ps(); SIDE];
        for row in 0..SIDE {
            let source_row = &source[row * source_stride..][..SIDE];
            // SAFETY: the slice has the 8 elements of a vector.
            rows[row] = unsafe { _mm256_loadu_ps(source_row.as_ptr()) };
        }
        let mut pairs = rows;
        for pair in 0..SIDE / 2 {
            pairs[2 * pair] = _mm256_unpacklo_ps(rows[2 * pair], rows[2 * pair + 1]);
            pairs[2 * pair + 1] = _mm256_unpackhi_ps(rows[2 * pair], rows[2 * pair + 1]);
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
            let target_row = &mut target[column * target_stride..][..SIDE];
            let transposed = match column < 4 {
                true => _mm256_permute2f128_ps::<0x20>(low, high),
                false => _mm256_permute2f128_ps::<0x31>(low, high),
            };
            // SAFETY: the slice has the 8 elements of a vector.
            unsafe { _mm256_storeu_ps(target_row.as_mut_ptr(), transposed) };
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
            transpose_strided(&mut target, target_stride, &source, source_stride, rows, columns);
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
