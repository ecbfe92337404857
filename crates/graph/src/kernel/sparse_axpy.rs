//! Sparse times dense: each nonzero factor times a contiguous run (axpy), gathered into one sum or scattered into many.
//!
//! Behind a max pool three of four elements of a gradient are zero. A matrix product would multiply them all; these
//! loops visit only the nonzeros. Every sum is accumulated in the order of the nonzeros, so that all vector widths give
//! the same bits.

/// A nonzero: the offset of its run (the bits of a `u32`), and the factor.
pub type Nonzero = [f32; 2];

#[inline(always)]
pub fn nonzero(offset: usize, factor: f32) -> Nonzero {
    [f32::from_bits(offset as u32), factor]
}

/// `sum += factor * source[offset..]`, over all nonzeros.
pub fn gather_axpy(sum: &mut [f32], source: &[f32], nonzeros: &[Nonzero]) {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            // SAFETY: the processor has every instruction set that the function is compiled for.
            return unsafe { avx512::gather_axpy(sum, source, nonzeros) };
        }
        if super::dispatch::has_avx2() {
            // SAFETY: the processor has every instruction set that the function is compiled for.
            return unsafe { avx2::gather_axpy(sum, source, nonzeros) };
        }
    }
    for [offset, factor] in nonzeros {
        let run = &source[offset.to_bits() as usize..][..sum.len()];
        sum.iter_mut().zip(run).for_each(|(sum, value)| *sum += factor * value);
    }
}

/// `target[offset..] += factor * values`, for all nonzeros.
pub fn scatter_axpy(target: &mut [f32], values: &[f32], nonzeros: &[Nonzero]) {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            // SAFETY: the processor has every instruction set that the function is compiled for.
            return unsafe { avx512::scatter_axpy(target, values, nonzeros) };
        }
        if super::dispatch::has_avx2() {
            // SAFETY: the processor has every instruction set that the function is compiled for.
            return unsafe { avx2::scatter_axpy(target, values, nonzeros) };
        }
    }
    for [offset, factor] in nonzeros {
        let run = &mut target[offset.to_bits() as usize..][..values.len()];
        run.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
    }
}

/// Both loops for one vector width: a block of vectors stays in registers while the nonzeros are visited.
#[cfg(target_arch = "x86_64")]
macro_rules! vectors {
    ($name:ident, $features:literal, $lanes:literal, $zero:ident, $broadcast:ident, $fused:ident, $load:ident, $store:ident) => {
        mod $name {
            use super::Nonzero;
            use std::arch::x86_64::{$broadcast, $fused, $load, $store, $zero};

            /// Most vectors of a block.
            const MAX_VECTORS: usize = 8;

            /// Splits a run into blocks of about equal numbers of vectors, and calls the block loop of that size for
            /// each.
            macro_rules! by_blocks {
                ($len:expr, $block:ident, ($first:expr, $second:expr, $nonzeros:expr)) => {
                    let vectors = $len / $lanes;
                    let blocks = vectors.div_ceil(MAX_VECTORS);
                    for block in 0..blocks {
                        let (begin, end) = (vectors * block / blocks, vectors * (block + 1) / blocks);
                        let begin_at = begin * $lanes;
                        match end - begin {
                            1 => $block::<1>($first, $second, begin_at, $nonzeros),
                            2 => $block::<2>($first, $second, begin_at, $nonzeros),
                            3 => $block::<3>($first, $second, begin_at, $nonzeros),
                            4 => $block::<4>($first, $second, begin_at, $nonzeros),
                            5 => $block::<5>($first, $second, begin_at, $nonzeros),
                            6 => $block::<6>($first, $second, begin_at, $nonzeros),
                            7 => $block::<7>($first, $second, begin_at, $nonzeros),
                            _ => $block::<MAX_VECTORS>($first, $second, begin_at, $nonzeros),
                        }
                    }
                };
            }

            /// See [`super::gather_axpy`].
            #[target_feature(enable = $features)]
            pub fn gather_axpy(sum: &mut [f32], source: &[f32], nonzeros: &[Nonzero]) {
                let whole = sum.len() / $lanes * $lanes;
                by_blocks!(whole, gather_block, (&mut *sum, source, nonzeros));
                for (index, sum) in sum.iter_mut().enumerate().skip(whole) {
                    for [offset, factor] in nonzeros {
                        *sum = factor.mul_add(source[offset.to_bits() as usize + index], *sum);
                    }
                }
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn gather_block<const VECTORS: usize>(
                sum: &mut [f32],
                source: &[f32],
                at: usize,
                nonzeros: &[Nonzero],
            ) {
                let sum = &mut sum[at..][..VECTORS * $lanes];
                let mut sums = [$zero(); VECTORS];
                for vector in 0..VECTORS {
                    // SAFETY: the block has `VECTORS` vectors.
                    sums[vector] = unsafe { $load(sum.as_ptr().add(vector * $lanes)) };
                }
                for [offset, factor] in nonzeros {
                    let run = &source[offset.to_bits() as usize + at..][..VECTORS * $lanes];
                    let factor = $broadcast(*factor);
                    for vector in 0..VECTORS {
                        // SAFETY: the run is as long as the block.
                        let values = unsafe { $load(run.as_ptr().add(vector * $lanes)) };
                        sums[vector] = $fused(factor, values, sums[vector]);
                    }
                }
                for vector in 0..VECTORS {
                    // SAFETY: the block has `VECTORS` vectors.
                    unsafe { $store(sum.as_mut_ptr().add(vector * $lanes), sums[vector]) };
                }
            }

            /// See [`super::scatter_axpy`].
            #[target_feature(enable = $features)]
            pub fn scatter_axpy(target: &mut [f32], values: &[f32], nonzeros: &[Nonzero]) {
                let whole = values.len() / $lanes * $lanes;
                by_blocks!(whole, scatter_block, (&mut *target, values, nonzeros));
                for (index, value) in values.iter().enumerate().skip(whole) {
                    for [offset, factor] in nonzeros {
                        let sum = &mut target[offset.to_bits() as usize + index];
                        *sum = factor.mul_add(*value, *sum);
                    }
                }
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn scatter_block<const VECTORS: usize>(
                target: &mut [f32],
                values: &[f32],
                at: usize,
                nonzeros: &[Nonzero],
            ) {
                let values = &values[at..][..VECTORS * $lanes];
                let mut loaded = [$zero(); VECTORS];
                for vector in 0..VECTORS {
                    // SAFETY: the block has `VECTORS` vectors.
                    loaded[vector] = unsafe { $load(values.as_ptr().add(vector * $lanes)) };
                }
                for [offset, factor] in nonzeros {
                    let run = &mut target[offset.to_bits() as usize + at..][..VECTORS * $lanes];
                    let factor = $broadcast(*factor);
                    for vector in 0..VECTORS {
                        // SAFETY: the run is as long as the block.
                        unsafe {
                            let pointer = run.as_mut_ptr().add(vector * $lanes);
                            $store(pointer, $fused(factor, loaded[vector], $load(pointer)));
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vectors!(
    avx2,
    "avx2,fma",
    8,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps
);

#[cfg(target_arch = "x86_64")]
vectors!(
    avx512,
    "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma",
    16,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps
);

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::instruction_set::InstructionSet;

    type Loop = fn(&mut [f32], &[f32], &[Nonzero]);

    /// Small integers, whose sums are exact in any order.
    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|index| (index * 7 % 11) as f32 - 5.0).collect()
    }

    /// Checks both loops against their definition, for runs with and without a remainder, overlapping and repeated.
    fn check(gather: Loop, scatter: Loop) {
        for len in [0, 1, 7, 16, 33, 160, 200, 300] {
            let (source, values) = (numbers(700), numbers(len));
            let nonzeros = [
                nonzero(0, 2.0),
                nonzero(32, -1.0),
                nonzero(3, 4.0),
                nonzero(3, 0.5),
                nonzero(700 - len, 3.0),
            ];
            let (mut sum, mut target) = (values.clone(), source.clone());
            let (mut expected_sum, mut expected_target) = (values.clone(), source.clone());
            gather(&mut sum, &source, &nonzeros);
            scatter(&mut target, &values, &nonzeros);
            for [offset, factor] in nonzeros {
                for index in 0..len {
                    expected_sum[index] += factor * source[offset.to_bits() as usize + index];
                    expected_target[offset.to_bits() as usize + index] += factor * values[index];
                }
            }
            assert_eq!(sum, expected_sum, "{len}");
            assert_eq!(target, expected_target, "{len}");
        }
    }

    #[test]
    fn both_loops_match_their_definition() {
        check(gather_axpy, scatter_axpy);
        #[cfg(target_arch = "x86_64")]
        if InstructionSet::best() >= InstructionSet::Avx2 {
            check(
                // SAFETY: the processor has every instruction set that the function is compiled for.
                |sum, source, nonzeros| unsafe { avx2::gather_axpy(sum, source, nonzeros) },
                // SAFETY: the processor has every instruction set that the function is compiled for.
                |target, values, nonzeros| unsafe { avx2::scatter_axpy(target, values, nonzeros) },
            );
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_run_outside_the_source_is_refused() {
        gather_axpy(&mut [0.0; 32], &[1.0; 40], &[nonzero(9, 1.0)]);
    }
}
