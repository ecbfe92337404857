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
            use super::super::{Left, Right, Target, store, tiles};
            use std::arch::x86_64::{$add, $fused, $load, $spread, $store, $zero};

            /// Rows of a tile, at most.
            pub const ROWS: usize = $most;

            /// Columns of a panel.
            pub const WIDTH: usize = 2 * $lanes;

            /// See [`super::super::sweep`].
            #[target_feature(enable = $features)]
            pub fn sweep(result: Target<'_>, left: Left<'_>, right: Right<'_>, depth: usize) {
                let Target { values, rows, columns, row_stride, add } = result;
                if depth == 0 {
                    return;
                }
                for (index, begin) in (0..columns).step_by(WIDTH).enumerate() {
                    let own = WIDTH.min(columns - begin);
                    let panel = &right.values[index * right.panel..][..(depth - 1) * right.line + WIDTH];
                    let right = Right { values: panel, ..right };
                    for tile in tiles(rows, $most) {
                        let values = &mut values[tile.start * row_stride + begin..];
                        let target = Target { values, rows: tile.len(), columns: own, row_stride, add };
                        match tile.len() {
                            $($rows => match left {
                                Left::Rows(left, stride) => {
                                    let left = &left[tile.start * stride..];
                                    one::<$rows, true>(target, left, stride, right, depth);
                                }
                                Left::Tiles(left) => {
                                    one::<$rows, false>(target, &left[tile.start * depth..], 0, right, depth);
                                }
                            },)+
                            _ => unreachable!("a tile has at most {} rows", $most),
                        }
                    }
                }
            }

            /// A tile of the result.
            #[target_feature(enable = $features)]
            #[inline]
            fn one<const ROWS: usize, const APART: bool>(
                result: Target<'_>,
                left: &[f32],
                left_stride: usize,
                panel: Right<'_>,
                depth: usize,
            ) {
                assert!(depth > 0 && panel.values.len() == (depth - 1) * panel.line + WIDTH, "a panel of that depth");
                // Loops, not closures: a closure does not have the instructions of the function it stands in.
                let mut rows: [&[f32]; ROWS] = [&[]; ROWS];
                if APART {
                    for row in 0..ROWS {
                        rows[row] = &left[row * left_stride..][..depth];
                    }
                }
                let together = if APART { &[][..] } else { &left.as_chunks::<ROWS>().0[..depth] };
                let mut sums = [[$zero(); 2]; ROWS];
                for step in 0..depth {
                    // SAFETY: a line has as many numbers as two vectors, and the last one ends where the panel does.
                    let (first, second) = unsafe {
                        let line = panel.values.as_ptr().add(step * panel.line);
                        ($load(line), $load(line.add($lanes)))
                    };
                    for row in 0..ROWS {
                        let factor = $spread(match APART {
                            // SAFETY: every row has `depth` numbers. Said this way, each row keeps a register of its own.
                            true => unsafe { *rows[row].as_ptr().add(step) },
                            false => together[step][row],
                        });
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
