//! Software prefetch.

/// Floats of a cache line.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 16;

/// Prefetches a slice into the first-level cache, for access patterns that the hardware prefetcher does not detect.
#[inline(always)]
pub fn prefetch(values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in values.chunks(CACHE_LINE) {
            // SAFETY: every x86-64 processor has the instruction, and it has no effect on memory.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
