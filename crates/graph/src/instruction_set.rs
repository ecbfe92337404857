//! Selection of the vector instruction set at run time.
//!
//! The best one of the processor, unless `THALWEG_INSTRUCTIONS` requests a lower one (`portable`, `avx2`), for
//! instance to compare with other machines. AVX2 and AVX-512 give the same bits; portable matrix products differ,
//! since they round after each multiplication instead of using fused multiply-add.

use std::sync::OnceLock;
use thalweg_core::{Error, Result};

/// The environment variable that requests an instruction set.
pub const VARIABLE: &str = "THALWEG_INSTRUCTIONS";

/// Instruction sets; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// The baseline of the target architecture.
    Portable,
    /// Vectors of 8 floats and fused multiply-add.
    Avx2,
    /// Vectors of 16 floats.
    Avx512,
}

const ALL: [InstructionSet; 3] = [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512];

impl InstructionSet {
    /// The value of the environment variable.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
        }
    }

    /// The best instruction set of this processor.
    pub fn best() -> InstructionSet {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
            // The subset that practically all AVX-512 processors have.
            let avx512 = std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512dq")
                && std::arch::is_x86_feature_detected!("avx512bw");
            if avx2 {
                return if avx512 { InstructionSet::Avx512 } else { InstructionSet::Avx2 };
            }
        }
        InstructionSet::Portable
    }
}

/// The instruction set in use; the environment is read once.
#[inline]
pub fn selected() -> InstructionSet {
    static SELECTED: OnceLock<InstructionSet> = OnceLock::new();
    *SELECTED.get_or_init(|| requested().unwrap_or_else(|_| InstructionSet::best()))
}

/// Refuses a requested instruction set that the processor does not have.
pub fn check() -> Result<()> {
    requested().map(|_| ())
}

fn requested() -> Result<InstructionSet> {
    match std::env::var_os(VARIABLE) {
        None => Ok(InstructionSet::best()),
        Some(name) => parse(&name.to_string_lossy(), InstructionSet::best()),
    }
}

/// The instruction set of a name, at most `best`.
fn parse(name: &str, best: InstructionSet) -> Result<InstructionSet> {
    match ALL.into_iter().find(|set| set.name() == name) {
        Some(set) if set <= best => Ok(set),
        _ => {
            let available: Vec<_> =
                ALL.into_iter().filter(|set| *set <= best).map(InstructionSet::name).collect();
            Err(Error::job(format!("{VARIABLE}={name}: this processor has {}", available.join(", ")))
                .hint(format!("drop the variable to use {}", best.name())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_instruction_sets_can_be_requested_but_not_higher_ones() {
        assert_eq!(parse("portable", InstructionSet::Avx512).unwrap(), InstructionSet::Portable);
        assert_eq!(parse("avx2", InstructionSet::Avx2).unwrap(), InstructionSet::Avx2);
        let error = parse("avx512", InstructionSet::Avx2).unwrap_err();
        assert_eq!(error.message, "THALWEG_INSTRUCTIONS=avx512: this processor has portable, avx2");
        assert!(parse("sse", InstructionSet::Avx512).is_err());
    }
}
