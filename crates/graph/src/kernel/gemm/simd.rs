//! The macro-kernel and micro-kernel in vector intrinsics. Autovectorized code spills some of the sums to memory,
//! which costs a third of the speed; here every sum has its own vector variable.

#![cfg(target_arch = "x86_64")]

/// Defines both kernels for one vector width; a panel is two vectors wide.
macro_rules! gemm_kernels {
    (
        $(#[$attribute:meta])* $name:ident, $features:literal, $lanes:literal, $zero:ident, $broadcast:ident, $fused:ident,
        $load:ident, $store:ident, $add:ident, $max_rows:literal, $($rows:literal)+
    ) => {
        $(#[$attribute])*
        pub mod $name {
            use super::super::{LeftBlock, ResultBlock, RightPanels, store, tiles};
            use super::opaque_pointer;
            use std::arch::x86_64::{$add, $fused, $load, $broadcast, $store, $zero};

            /// Most rows of a tile.
            pub const ROWS: usize = $max_rows;

            /// Columns of a panel.
            pub const WIDTH: usize = 2 * $lanes;

            /// See [`super::super::macro_kernel`].
            #[target_feature(enable = $features)]
            pub fn macro_kernel(
                result: ResultBlock<'_>,
                left: LeftBlock<'_>,
                right: RightPanels<'_>,
                depth: usize,
            ) {
                let ResultBlock { values, rows, columns, row_stride, accumulate } = result;
                if depth == 0 {
                    return;
                }
                for (index, begin) in (0..columns).step_by(WIDTH).enumerate() {
                    let columns = WIDTH.min(columns - begin);
                    let start = index * right.panel_stride;
                    let panel = &right.values[start..][..(depth - 1) * right.row_stride + WIDTH];
                    let right = RightPanels { values: panel, ..right };
                    for tile in tiles(rows, $max_rows) {
                        let values = &mut values[tile.start * row_stride + begin..];
                        let target = ResultBlock { values, rows: tile.len(), columns, row_stride, accumulate };
                        match tile.len() {
                            $($rows => match left {
                                LeftBlock::Rows(left, stride) => {
                                    let left = &left[tile.start * stride..];
                                    micro_kernel::<$rows, true>(target, left, stride, right, depth);
                                }
                                LeftBlock::Tiles(left) => {
                                    let left = &left[tile.start * depth..];
                                    micro_kernel::<$rows, false>(target, left, 0, right, depth);
                                }
                            },)+
                            _ => unreachable!("a tile has at most {} rows", $max_rows),
                        }
                    }
                }
            }

            /// Computes one tile of the result. `IN_PLACE`: the left factor has rows `left_stride` apart, else it is
            /// packed.
            #[target_feature(enable = $features)]
            #[inline]
            fn micro_kernel<const ROWS: usize, const IN_PLACE: bool>(
                result: ResultBlock<'_>,
                left: &[f32],
                left_stride: usize,
                panel: RightPanels<'_>,
                depth: usize,
            ) {
                assert!(
                    depth > 0 && panel.values.len() == (depth - 1) * panel.row_stride + WIDTH,
                    "a panel of that depth"
                );
                let last = (ROWS - 1) * result.row_stride + result.columns;
                assert!(result.values.len() >= last && result.columns <= WIDTH, "a tile inside its result");
                // Loops, not closures: a closure does not inherit the target features of its function.
                let mut rows = [left.as_ptr(); ROWS];
                if IN_PLACE {
                    assert!(left.len() >= (ROWS - 1) * left_stride + depth, "rows inside the left factor");
                    for row in 0..ROWS {
                        // SAFETY: the row starts inside the left factor.
                        rows[row] = opaque_pointer(unsafe { left.as_ptr().add(row * left_stride) });
                    }
                }
                assert!(IN_PLACE || left.len() >= ROWS * depth, "a tile of that depth");
                let mut packed = left.as_ptr();
                let mut sums = [[$zero(); 2]; ROWS];
                for step in 0..depth {
                    // SAFETY: a row of the panel has two vectors, and the last row ends where the panel does.
                    let (first, second) = unsafe {
                        let row = panel.values.as_ptr().add(step * panel.row_stride);
                        ($load(row), $load(row.add($lanes)))
                    };
                    for row in 0..ROWS {
                        let factor = $broadcast(match IN_PLACE {
                            // SAFETY: every row has `depth` elements.
                            true => unsafe { *rows[row].add(step) },
                            // SAFETY: a tile has `ROWS` elements per step.
                            false => unsafe { *packed.add(row) },
                        });
                        sums[row][0] = $fused(factor, first, sums[row][0]);
                        sums[row][1] = $fused(factor, second, sums[row][1]);
                    }
                    if !IN_PLACE {
                        packed = packed.wrapping_add(ROWS);
                    }
                }
                if result.columns == WIDTH {
                    for row in 0..ROWS {
                        // SAFETY: the row is inside the result and has two vectors.
                        unsafe {
                            let values = result.values.as_mut_ptr().add(row * result.row_stride);
                            if result.accumulate {
                                sums[row][0] = $add(sums[row][0], $load(values));
                                sums[row][1] = $add(sums[row][1], $load(values.add($lanes)));
                            }
                            $store(values, sums[row][0]);
                            $store(values.add($lanes), sums[row][1]);
                        }
                    }
                } else {
                    for row in 0..ROWS {
                        let mut partial = [0.0f32; WIDTH];
                        // SAFETY: the array has two vectors.
                        unsafe {
                            $store(partial.as_mut_ptr(), sums[row][0]);
                            $store(partial.as_mut_ptr().add($lanes), sums[row][1]);
                        }
                        let values = &mut result.values[row * result.row_stride..][..result.columns];
                        store(values, &partial, result.accumulate);
                    }
                }
            }
        }
    };
}

gemm_kernels!(
    /// Six rows of two vectors use 12 of 16 registers.
    avx2, "avx2,fma", 8, _mm256_setzero_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_storeu_ps,
    _mm256_add_ps, 6,
    1 2 3 4 5 6
);

gemm_kernels!(
    /// Eight rows of two vectors use 16 of 32 registers.
    avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", 16, _mm512_setzero_ps, _mm512_set1_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, 8, 1 2 3 4 5 6 7 8
);

/// Returns the same pointer, opaque to the compiler. Otherwise it would compute the row pointers from one another in
/// every step: eight more instructions, which costs speed on processors of narrow issue width.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the pointer is not dereferenced here")]
fn opaque_pointer(mut address: *const f32) -> *const f32 {
    // SAFETY: the assembly is empty.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) address, options(nomem, nostack, preserves_flags, pure))
    };
    address
}
