//! The sweep with vector instructions. A compiler left to itself keeps some of the sums in memory, which costs a third of
//! the speed; so the innermost loop says which register holds what.

#![cfg(target_arch = "x86_64")]

/// A sweep for one kind of vector: two of them are a line of a panel.
macro_rules! sweep {
    (
        $(#[$attribute:meta])* $name:ident, $features:literal, $lanes:literal, $zero:ident, $spread:ident, $fused:ident,
        $load:ident, $store:ident, $add:ident, $most:literal, $($rows:literal)+
    ) => {
        $(#[$attribute])*
        pub mod $name {
            use super::super::{Target, store, tiles};
            use std::arch::x86_64::{$add, $fused, $load, $spread, $store, $zero};

            /// Columns of a panel.
            pub const WIDTH: usize = 2 * $lanes;

            /// See [`super::super::sweep`].
            #[target_feature(enable = $features)]
            pub fn sweep(result: Target<'_>, left: &[f32], left_stride: usize, panels: &[f32], depth: usize) {
                let Target { values, rows, columns, row_stride, add } = result;
                for (index, panel) in panels.chunks_exact((depth * WIDTH).max(1)).enumerate() {
                    let begin = index * WIDTH;
                    let own = WIDTH.min(columns - begin);
                    let panel = panel.as_chunks::<WIDTH>().0;
                    for tile in tiles(rows, $most) {
                        let left = &left[tile.start * left_stride..];
                        let values = &mut values[tile.start * row_stride + begin..];
                        let target = Target { values, rows: tile.len(), columns: own, row_stride, add };
                        match tile.len() {
                            $($rows => one::<$rows>(target, left, left_stride, panel),)+
                            _ => unreachable!("a tile has at most {} rows", $most),
                        }
                    }
                }
            }

            /// A tile of the result.
            #[target_feature(enable = $features)]
            #[inline]
            fn one<const ROWS: usize>(
                result: Target<'_>,
                left: &[f32],
                left_stride: usize,
                panel: &[[f32; WIDTH]],
            ) {
                let depth = panel.len();
                // Loops, not closures: a closure does not have the instructions of the function it stands in.
                let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
                for row in 0..ROWS {
                    rows[row] = &left[row * left_stride..][..depth];
                }
                let mut sums = [[$zero(); 2]; ROWS];
                for step in 0..depth {
                    let line = panel[step].as_ptr();
                    // SAFETY: a line has as many numbers as two vectors.
                    let (first, second) = unsafe { ($load(line), $load(line.add($lanes))) };
                    for row in 0..ROWS {
                        // SAFETY: every row has `depth` numbers. Said this way, each row keeps a register of its own.
                        let factor = $spread(unsafe { *rows[row].as_ptr().add(step) });
                        sums[row][0] = $fused(factor, first, sums[row][0]);
                        sums[row][1] = $fused(factor, second, sums[row][1]);
                    }
                }
                for row in 0..ROWS {
                    let values = &mut result.values[row * result.row_stride..][..result.columns];
                    let mut narrow = [0.0f32; WIDTH];
                    let is_whole = values.len() == WIDTH;
                    let line = if is_whole { values.as_mut_ptr() } else { narrow.as_mut_ptr() };
                    // SAFETY: either line has as many numbers as two vectors.
                    unsafe {
                        if is_whole && result.add {
                            sums[row][0] = $add(sums[row][0], $load(line));
                            sums[row][1] = $add(sums[row][1], $load(line.add($lanes)));
                        }
                        $store(line, sums[row][0]);
                        $store(line.add($lanes), sums[row][1]);
                    }
                    if !is_whole {
                        store(values, &narrow, result.add);
                    }
                }
            }
        }
    };
}

sweep!(
    /// Six rows of two vectors fill twelve of sixteen registers.
    avx2, "avx2,fma", 8, _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_storeu_ps,
    _mm256_add_ps, 6,
    1 2 3 4 5 6
);

sweep!(
    /// Eight rows of two vectors fill sixteen of thirty-two registers.
    avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", 16, _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, 8, 1 2 3 4 5 6 7 8
);
