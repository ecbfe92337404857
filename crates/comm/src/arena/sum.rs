//! Sums over the arenas of all ranks, in the order of ranks: repeated runs give the same bits.

use crate::collective::reduction_tree::BLOCK;

/// From this many elements on, the result would only evict other data from the caches.
const LARGE: usize = 2 << 20;

/// `out[i] = terms[0][i] + terms[1][i] + ...`, added from left to right; all have the same length.
///
/// `total` is the number of elements that all ranks sum together; it decides whether the result bypasses the caches.
pub(super) fn sum_into(out: &mut [f32], terms: &[&[f32]], total: usize) {
    let large = total >= LARGE;
    let mut block = [0.0; BLOCK];
    let mut at = 0;
    for out in out.chunks_mut(BLOCK) {
        let piece = at..at + out.len();
        at = piece.end;
        let target = if large { &mut block[..out.len()] } else { &mut *out };
        // As many terms at a time as fit into the registers.
        let (first, rest) = terms.split_at(terms.len().min(8));
        sum_terms(target, first, piece.clone(), false);
        rest.chunks(7).for_each(|more| sum_terms(target, more, piece.clone(), true));
        if large {
            store_nontemporal(out, &block[..out.len()]);
        }
    }
    if large {
        order_stores();
    }
}

/// Sums up to eight terms, onto `out` if `onto` is set.
fn sum_terms(out: &mut [f32], terms: &[&[f32]], piece: std::ops::Range<usize>, onto: bool) {
    let term = |index: usize| &terms[index][piece.clone()];
    match (terms.len(), onto) {
        (1, false) => out.copy_from_slice(term(0)),
        (2, false) => add(out, [term(0), term(1)]),
        (3, false) => add(out, [term(0), term(1), term(2)]),
        (4, false) => add(out, std::array::from_fn::<_, 4, _>(term)),
        (8, false) => add(out, std::array::from_fn::<_, 8, _>(term)),
        (_, false) => {
            out.copy_from_slice(term(0));
            (1..terms.len()).for_each(|index| add_onto(out, term(index)));
        }
        (_, true) => (0..terms.len()).for_each(|index| add_onto(out, term(index))),
    }
}

/// A loop that the compiler vectorises: one pass over all terms, one store per sum.
fn add<const N: usize>(out: &mut [f32], terms: [&[f32]; N]) {
    let terms = terms.map(|term| &term[..out.len()]);
    for (index, out) in out.iter_mut().enumerate() {
        let mut sum = terms[0][index];
        for term in &terms[1..] {
            sum += term[index];
        }
        *out = sum;
    }
}

fn add_onto(out: &mut [f32], term: &[f32]) {
    for (out, term) in out.iter_mut().zip(term) {
        *out += term;
    }
}

/// Nontemporal stores for data that is not read soon: the cache line is not fetched first and evicts no other.
fn store_nontemporal(out: &mut [f32], values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX.
        return unsafe { stream(out, values) };
    }
    out.copy_from_slice(values);
}

/// Stores 32 bytes at a time.
///
/// # Safety
/// The processor must have AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream(out: &mut [f32], values: &[f32]) {
    use std::arch::x86_64::{__m256, _mm256_loadu_ps, _mm256_stream_ps};
    // SAFETY: every bit pattern is a number; the middle is aligned for streaming stores.
    let (head, middle, _) = unsafe { out.align_to_mut::<__m256>() };
    let (before, between) = (head.len(), head.len() + 8 * middle.len());
    head.copy_from_slice(&values[..before]);
    for (target, value) in middle.iter_mut().zip(values[before..between].as_chunks::<8>().0) {
        // SAFETY: reads eight values and writes an aligned vector of eight.
        unsafe { _mm256_stream_ps(std::ptr::from_mut(target).cast(), _mm256_loadu_ps(value.as_ptr())) };
    }
    out[between..].copy_from_slice(&values[between..]);
}

/// Nontemporal stores are not ordered with other stores before this fence.
fn order_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: all x86-64 processors have this fence.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_added_from_left_to_right_for_any_count_and_length() {
        for ranks in 1..=20 {
            for (length, total) in [(0, 0), (1, 1), (5, 5), (BLOCK + 3, BLOCK), (2 * BLOCK + 5, LARGE)] {
                let terms: Vec<Vec<f32>> = (0..ranks)
                    .map(|rank| (0..length).map(|index| 0.1 + (rank * 7 + index) as f32 * 1.7).collect())
                    .collect();
                let views: Vec<&[f32]> = terms.iter().map(Vec::as_slice).collect();
                // Shifted by one element, so that the ends are not aligned.
                let mut out = vec![f32::NAN; length + 2];
                sum_into(&mut out[1..=length], &views, total);
                for index in 0..length {
                    let expected = terms.iter().map(|term| term[index]).reduce(|sum, term| sum + term);
                    assert_eq!(Some(out[1 + index].to_bits()), expected.map(f32::to_bits), "{ranks} {index}");
                }
                assert!(out[0].is_nan() && out[length + 1].is_nan());
            }
        }
    }
}
