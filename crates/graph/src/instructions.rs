//! Which vector instructions are used.
//!
//! The best that the processor has, unless the environment asks for less: `THALWEG_INSTRUCTIONS=avx2` compares with
//! machines that have no more, and `portable` with those that have none. Results have the same bits with AVX2 and AVX-512;
//! the portable products round after each multiplication, the others fuse it with the sum.

use std::sync::OnceLock;
use thalweg_core::{Error, Result};

/// The variable that asks for less.
pub const VARIABLE: &str = "THALWEG_INSTRUCTIONS";

/// A set of instructions, each with all of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    /// What every processor of the kind has.
    Portable,
    /// Vectors of eight floats, and products fused with sums.
    Avx2,
    /// Vectors of sixteen.
    Avx512,
}

const ALL: [Instructions; 3] = [Instructions::Portable, Instructions::Avx2, Instructions::Avx512];

impl Instructions {
    /// As the environment spells it.
    pub fn name(self) -> &'static str {
        match self {
            Instructions::Portable => "portable",
            Instructions::Avx2 => "avx2",
            Instructions::Avx512 => "avx512",
        }
    }

    /// The best that this processor has.
    pub fn best() -> Instructions {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
            // AVX-512 as most that have any of it do.
            let avx512 = std::arch::is_x86_feature_detected!("avx512f")
                && std::arch::is_x86_feature_detected!("avx512vl")
                && std::arch::is_x86_feature_detected!("avx512dq")
                && std::arch::is_x86_feature_detected!("avx512bw");
            if avx2 {
                return if avx512 { Instructions::Avx512 } else { Instructions::Avx2 };
            }
        }
        Instructions::Portable
    }
}

/// What is used from now on; the environment is read once.
#[inline]
pub fn chosen() -> Instructions {
    static CHOSEN: OnceLock<Instructions> = OnceLock::new();
    *CHOSEN.get_or_init(|| asked().unwrap_or_else(|_| Instructions::best()))
}

/// Whether what the environment asks for is there.
pub fn check() -> Result<()> {
    asked().map(|_| ())
}

fn asked() -> Result<Instructions> {
    match std::env::var_os(VARIABLE) {
        None => Ok(Instructions::best()),
        Some(name) => of(&name.to_string_lossy(), Instructions::best()),
    }
}

/// What a name asks for, where `best` is the most there is.
fn of(name: &str, best: Instructions) -> Result<Instructions> {
    let asked = ALL.into_iter().find(|set| set.name() == name);
    match asked {
        Some(set) if set <= best => Ok(set),
        _ => {
            let there: Vec<_> = ALL.into_iter().filter(|set| *set <= best).map(Instructions::name).collect();
            Err(Error::job(format!("{VARIABLE}={name}: this processor has {}", there.join(", ")))
                .hint(format!("drop the variable to use {}", best.name())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_can_be_asked_for_but_not_more() {
        assert_eq!(of("portable", Instructions::Avx512).unwrap(), Instructions::Portable);
        assert_eq!(of("avx2", Instructions::Avx2).unwrap(), Instructions::Avx2);
        let error = of("avx512", Instructions::Avx2).unwrap_err();
        assert_eq!(error.message, "THALWEG_INSTRUCTIONS=avx512: this processor has portable, avx2");
        assert!(of("sse", Instructions::Avx512).is_err());
    }
}
