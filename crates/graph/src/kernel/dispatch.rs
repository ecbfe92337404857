//! Run-time dispatch to vector instruction sets.
//!
//! A function inside [`dispatch!`] is compiled three times: portable, for AVX2 and for AVX-512; a call takes the
//! selected one. Functions it calls must be `#[inline(always)]`, or they stay portable code. The compiler neither
//! reorders additions nor contracts them with multiplications, so that all three give the same bits. Other
//! architectures than x86-64 have the portable one only, which is tested on x86-64 alone.

#[cfg(target_arch = "x86_64")]
use crate::instruction_set::{InstructionSet, selected};

/// Compiles a function for several instruction sets and selects one at each call.
macro_rules! dispatch {
    ($(#[$attribute:meta])* pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        pub fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn portable($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    portable($($argument),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    portable($($argument),*)
                }
                if $crate::kernel::dispatch::has_avx512() {
                    // SAFETY: the processor has every instruction set that `avx512` is compiled for.
                    return unsafe { avx512($($argument),*) };
                }
                if $crate::kernel::dispatch::has_avx2() {
                    // SAFETY: the processor has every instruction set that `avx2` is compiled for.
                    return unsafe { avx2($($argument),*) };
                }
            }
            portable($($argument),*)
        }
    };
}
pub(crate) use dispatch;

/// Whether AVX-512 is selected.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn has_avx512() -> bool {
    selected() == InstructionSet::Avx512
}

/// Whether AVX2 and fused multiply-add are selected.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn has_avx2() -> bool {
    selected() >= InstructionSet::Avx2
}

#[cfg(test)]
mod tests {
    dispatch! {
        /// A typical kernel.
        pub fn weighted(values: &mut [f32], weights: &[f32]) -> f32 {
            for (value, weight) in values.iter_mut().zip(weights) {
                *value = *value * weight + 0.1;
            }
            values.iter().sum()
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let mut values: Vec<f32> = (0..100).map(|i| i as f32 * 0.37).collect();
        let weights: Vec<f32> = (0..100).map(|i| 1.0 / (i as f32 + 1.3)).collect();
        let expected: Vec<f32> =
            values.iter().zip(&weights).map(|(value, weight)| value * weight + 0.1).collect();
        let sum = weighted(&mut values, &weights);
        assert_eq!(values, expected);
        assert_eq!(sum, expected.iter().sum::<f32>());
    }
}
