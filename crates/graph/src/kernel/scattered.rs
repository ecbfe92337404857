//! Sums over a few scattered numbers, each times a run of numbers that stand together.
//!
//! Behind a largest-of-window pool three of four numbers of a gradient are zero. A product would multiply them all; these
//! loops take those that are left one by one. Every sum is made in the order of the terms, so that all vector widths give
//! the same bits.

/// A number that is not zero: where its run begins (the bits of a `u32`), and the number.
pub type Term = [f32; 2];

/// A term.
#[inline(always)]
pub fn term(begin: usize, factor: f32) -> Term {
    [f32::from_bits(begin as u32), factor]
}

/// `sum += factor * (the run of source that begins there)`, over all terms.
pub fn collect(sum: &mut [f32], source: &[f32], terms: &[Term]) {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            // SAFETY: the processor has every instruction set that it is compiled for.
            return unsafe { avx512::collect(sum, source, terms) };
        }
        if super::dispatch::has_avx2() {
            // SAFETY: the processor has every instruction set that it is compiled for.
            return unsafe { avx2::collect(sum, source, terms) };
        }
    }
    for [begin, factor] in terms {
        let run = &source[begin.to_bits() as usize..][..sum.len()];
        sum.iter_mut().zip(run).for_each(|(sum, value)| *sum += factor * value);
    }
}

/// `(the run of target that begins there) += factor * values`, for all terms.
pub fn spread(target: &mut [f32], values: &[f32], terms: &[Term]) {
    #[cfg(target_arch = "x86_64")]
    {
        if super::dispatch::has_avx512() {
            // SAFETY: the processor has every instruction set that it is compiled for.
            return unsafe { avx512::spread(target, values, terms) };
        }
        if super::dispatch::has_avx2() {
            // SAFETY: the processor has every instruction set that it is compiled for.
            return unsafe { avx2::spread(target, values, terms) };
        }
    }
    for [begin, factor] in terms {
        let run = &mut target[begin.to_bits() as usize..][..values.len()];
        run.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
    }
}

/// Both loops for one kind of vector: a few vectors of the run stay in registers while the terms pass.
#[cfg(target_arch = "x86_64")]
macro_rules! vectors {
    ($name:ident, $features:literal, $lanes:literal, $zero:ident, $spread:ident, $fused:ident, $load:ident, $store:ident) => {
        mod $name {
            use super::Term;
            use std::arch::x86_64::{$fused, $load, $spread, $store, $zero};

            /// Vectors at a time, at most.
            const MOST: usize = 8;

            /// Cuts a run into blocks of vectors, as equal as can be, and calls one of the blocks' loops for each.
            macro_rules! by_blocks {
                ($len:expr, $block:ident, ($first:expr, $second:expr, $terms:expr)) => {
                    let vectors = $len / $lanes;
                    let blocks = vectors.div_ceil(MOST);
                    for block in 0..blocks {
                        let (begin, end) = (vectors * block / blocks, vectors * (block + 1) / blocks);
                        let begin_at = begin * $lanes;
                        match end - begin {
                            1 => $block::<1>($first, $second, begin_at, $terms),
                            2 => $block::<2>($first, $second, begin_at, $terms),
                            3 => $block::<3>($first, $second, begin_at, $terms),
                            4 => $block::<4>($first, $second, begin_at, $terms),
                            5 => $block::<5>($first, $second, begin_at, $terms),
                            6 => $block::<6>($first, $second, begin_at, $terms),
                            7 => $block::<7>($first, $second, begin_at, $terms),
                            _ => $block::<MOST>($first, $second, begin_at, $terms),
                        }
                    }
                };
            }

            /// See [`super::collect`].
            #[target_feature(enable = $features)]
            pub fn collect(sum: &mut [f32], source: &[f32], terms: &[Term]) {
                let whole = sum.len() / $lanes * $lanes;
                by_blocks!(whole, collect_block, (&mut *sum, source, terms));
                for (place, sum) in sum.iter_mut().enumerate().skip(whole) {
                    for [begin, factor] in terms {
                        *sum = factor.mul_add(source[begin.to_bits() as usize + place], *sum);
                    }
                }
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn collect_block<const VECTORS: usize>(
                sum: &mut [f32],
                source: &[f32],
                at: usize,
                terms: &[Term],
            ) {
                let sum = &mut sum[at..][..VECTORS * $lanes];
                let mut sums = [$zero(); VECTORS];
                for vector in 0..VECTORS {
                    // SAFETY: the block has as many vectors.
                    sums[vector] = unsafe { $load(sum.as_ptr().add(vector * $lanes)) };
                }
                for [begin, factor] in terms {
                    let run = &source[begin.to_bits() as usize + at..][..VECTORS * $lanes];
                    let factor = $spread(*factor);
                    for vector in 0..VECTORS {
                        // SAFETY: the run is as long as the block.
                        let values = unsafe { $load(run.as_ptr().add(vector * $lanes)) };
                        sums[vector] = $fused(factor, values, sums[vector]);
                    }
                }
                for vector in 0..VECTORS {
                    // SAFETY: the block has as many vectors.
                    unsafe { $store(sum.as_mut_ptr().add(vector * $lanes), sums[vector]) };
                }
            }

            /// See [`super::spread`].
            #[target_feature(enable = $features)]
            pub fn spread(target: &mut [f32], values: &[f32], terms: &[Term]) {
                let whole = values.len() / $lanes * $lanes;
                by_blocks!(whole, spread_block, (&mut *target, values, terms));
                for (place, value) in values.iter().enumerate().skip(whole) {
                    for [begin, factor] in terms {
                        let sum = &mut target[begin.to_bits() as usize + place];
                        *sum = factor.mul_add(*value, *sum);
                    }
                }
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn spread_block<const VECTORS: usize>(
                target: &mut [f32],
                values: &[f32],
                at: usize,
                terms: &[Term],
            ) {
                let values = &values[at..][..VECTORS * $lanes];
                let mut kept = [$zero(); VECTORS];
                for vector in 0..VECTORS {
                    // SAFETY: the block has as many vectors.
                    kept[vector] = unsafe { $load(values.as_ptr().add(vector * $lanes)) };
                }
                for [begin, factor] in terms {
                    let run = &mut target[begin.to_bits() as usize + at..][..VECTORS * $lanes];
                    let factor = $spread(*factor);
                    for vector in 0..VECTORS {
                        // SAFETY: the run is as long as the block.
                        unsafe {
                            let place = run.as_mut_ptr().add(vector * $lanes);
                            $store(place, $fused(factor, kept[vector], $load(place)));
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
    use crate::instructions::Instructions;

    type Loop = fn(&mut [f32], &[f32], &[Term]);

    /// Small whole numbers, so that every way to add them up gives the same.
    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|index| (index * 7 % 11) as f32 - 5.0).collect()
    }

    /// Checks both loops against their definition, for runs with and without a rest, overlapping and repeated.
    fn check(collect: Loop, spread: Loop) {
        for len in [0, 1, 7, 16, 33, 160, 200, 300] {
            let (places, values) = (numbers(700), numbers(len));
            let terms = [term(0, 2.0), term(32, -1.0), term(3, 4.0), term(3, 0.5), term(700 - len, 3.0)];
            let (mut sum, mut target) = (values.clone(), places.clone());
            let (mut expected_sum, mut expected_target) = (values.clone(), places.clone());
            collect(&mut sum, &places, &terms);
            spread(&mut target, &values, &terms);
            for [begin, factor] in terms {
                for index in 0..len {
                    expected_sum[index] += factor * places[begin.to_bits() as usize + index];
                    expected_target[begin.to_bits() as usize + index] += factor * values[index];
                }
            }
            assert_eq!(sum, expected_sum, "{len}");
            assert_eq!(target, expected_target, "{len}");
        }
    }

    #[test]
    fn both_loops_agree_with_the_definition() {
        check(collect, spread);
        #[cfg(target_arch = "x86_64")]
        if Instructions::best() >= Instructions::Avx2 {
            check(
                // SAFETY: the processor has every instruction set that it is compiled for.
                |sum, source, terms| unsafe { avx2::collect(sum, source, terms) },
                // SAFETY: the processor has every instruction set that it is compiled for.
                |target, values, terms| unsafe { avx2::spread(target, values, terms) },
            );
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_run_that_is_not_there_is_not_read() {
        collect(&mut [0.0; 32], &[1.0; 40], &[term(9, 1.0)]);
    }
}
