//! Copies memory that another process may write meanwhile.
//!
//! Such a copy may contain old and new elements, but each element must be one or the other, and the compiler must not take
//! the memory for unchanged. Relaxed atomic loads give both, but compilers do not combine them: one element at a time takes
//! twice as long as the memory needs. So on x86-64 assembler loads 64 bytes at a time. To the compiler that is any
//! sequence of atomic loads; the processor loads each aligned element in one access, whatever the width of the instruction.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of one round of the copy.
#[cfg(target_arch = "x86_64")]
const ROUND: usize = 64;

/// # Safety
/// As many elements as `into` has must be readable at `from`, which is aligned to them.
pub(super) unsafe fn copy(from: *mut f32, into: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    let done = {
        let rounds = size_of_val(into) / ROUND;
        if rounds > 0 {
            // SAFETY: both ranges have `rounds` times 64 bytes.
            unsafe { copy_rounds(from, into.as_mut_ptr(), rounds) };
        }
        rounds * ROUND / size_of::<f32>()
    };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    for (index, element) in into.iter_mut().enumerate().skip(done) {
        // SAFETY: inside the range and aligned.
        let word = unsafe { AtomicU32::from_ptr(from.add(index).cast()) };
        *element = f32::from_bits(word.load(Ordering::Relaxed));
    }
}

/// # Safety
/// `rounds` times 64 bytes must be readable at `from` and writable at `into`; `rounds` is not 0.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_rounds(from: *const f32, into: *mut f32, rounds: usize) {
    // SAFETY: it accesses only these ranges; all x86-64 processors have these instructions.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{into}], {a}",
            "movups [{into} + 16], {b}",
            "movups [{into} + 32], {c}",
            "movups [{into} + 48], {d}",
            "add {from}, 64",
            "add {into}, 64",
            "dec {rounds}",
            "jnz 2b",
            from = inout(reg) from => _,
            into = inout(reg) into => _,
            rounds = inout(reg) rounds => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_offset_is_copied() {
        let mut source: Vec<f32> = (0..200).map(|index| index as f32).collect();
        for start in 0..20 {
            for length in 0..150 {
                let mut copied = vec![-1.0; length + 1];
                // SAFETY: inside the vector.
                unsafe { copy(source.as_mut_ptr().add(start), &mut copied[..length]) };
                assert_eq!(copied[..length], source[start..start + length]);
                assert_eq!(copied[length], -1.0);
            }
        }
    }
}
