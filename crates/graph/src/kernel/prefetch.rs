//! Memory on its way before it is needed.

/// Numbers that the processor fetches together.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

/// Asks for these numbers, without waiting for them: for those that the processor does not see coming, since they stand far
/// from the ones before.
#[inline(always)]
pub fn prefetch(values: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in values.chunks(LINE) {
            // SAFETY: every x86-64 processor has it, and it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}
