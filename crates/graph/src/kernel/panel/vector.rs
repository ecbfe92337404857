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
            use super::own_register;
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
                let last = (ROWS - 1) * result.row_stride + result.columns;
                assert!(result.values.len() >= last && result.columns <= WIDTH, "a tile inside its result");
                // Loops, not closures: a closure does not have the instructions of the function it stands in.
                let mut rows = [left.as_ptr(); ROWS];
                if APART {
                    assert!(left.len() >= (ROWS - 1) * left_stride + depth, "rows inside the left factor");
                    for row in 0..ROWS {
                        // SAFETY: the row begins inside the left factor.
                        rows[row] = own_register(unsafe { left.as_ptr().add(row * left_stride) });
                    }
                }
                assert!(APART || left.len() >= ROWS * depth, "a tile of that depth");
                let mut together = left.as_ptr();
                let mut sums = [[$zero(); 2]; ROWS];
                for step in 0..depth {
                    // SAFETY: a line has as many numbers as two vectors, and the last one ends where the panel does.
                    let (first, second) = unsafe {
                        let line = panel.values.as_ptr().add(step * panel.line);
                        ($load(line), $load(line.add($lanes)))
                    };
                    for row in 0..ROWS {
                        let factor = $spread(match APART {
                            // SAFETY: every row has `depth` numbers.
                            true => unsafe { *rows[row].add(step) },
                            // SAFETY: a tile has as many numbers for every step.
                            false => unsafe { *together.add(row) },
                        });
                        sums[row][0] = $fused(factor, first, sums[row][0]);
                        sums[row][1] = $fused(factor, second, sums[row][1]);
                    }
                    if !APART {
                        together = together.wrapping_add(ROWS);
                    }
                }
                if result.columns == WIDTH {
                    for row in 0..ROWS {
                        // SAFETY: the line lies inside the result and has as many numbers as two vectors.
                        unsafe {
                            let line = result.values.as_mut_ptr().add(row * result.row_stride);
                            if result.add {
                                sums[row][0] = $add(sums[row][0], $load(line));
                                sums[row][1] = $add(sums[row][1], $load(line.add($lanes)));
                            }
                            $store(line, sums[row][0]);
                            $store(line.add($lanes), sums[row][1]);
                        }
                    }
                } else {
                    for row in 0..ROWS {
                        let mut narrow = [0.0f32; WIDTH];
                        // SAFETY: the line has as many numbers as two vectors.
                        unsafe {
                            $store(narrow.as_mut_ptr(), sums[row][0]);
                            $store(narrow.as_mut_ptr().add($lanes), sums[row][1]);
                        }
                        let values = &mut result.values[row * result.row_stride..][..result.columns];
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

/// The same address, of which the compiler knows nothing: it would otherwise count from row to row in every step, eight
/// instructions that a narrow processor has no time for.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "an address that nothing is read from here")]
fn own_register(mut address: *const f32) -> *const f32 {
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) address, options(nomem, nostack, preserves_flags, pure))
    };
    address
}
