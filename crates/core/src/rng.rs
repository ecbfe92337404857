//! Keyed random streams.
//!
//! Every random choice is drawn from a stream keyed by seed, purpose and numbers such as epoch and row, so it depends
//! neither on the rank that draws it nor on earlier draws. The sequences are part of the checkpoint format: if they
//! changed, a resumed job would read other rows.

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The SplitMix64 finalizer.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    pub fn keyed(seed: u64, purpose: &str, numbers: &[u64]) -> Rng {
        let mut state = mix(seed.wrapping_add(GOLDEN));
        for byte in purpose.bytes() {
            state = mix(state ^ u64::from(byte)).wrapping_add(GOLDEN);
        }
        for &number in numbers {
            state = mix(state ^ mix(number.wrapping_add(GOLDEN))).wrapping_add(GOLDEN);
        }
        Rng { state }
    }

    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Uniform over `0..bound`; `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // Rejecting the lowest products keeps it exactly uniform (Lemire 2019).
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let wide = u128::from(self.bits()) * u128::from(bound);
            if wide as u64 >= threshold {
                return (wide >> 64) as u64;
            }
        }
    }

    /// Uniform over `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - f64::from(self.uniform())).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(self.uniform());
        (radius * angle.cos()) as f32
    }

    /// Fisher-Yates shuffle.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_never_changes() {
        let mut rng = Rng::keyed(7, "sampler", &[1, 2]);
        assert_eq!([rng.bits(), rng.bits()], [8650007563925270019, 1383034121230413806]);
    }

    #[test]
    fn streams_differ_by_every_part_of_their_key() {
        let first = |seed, purpose, numbers: &[u64]| Rng::keyed(seed, purpose, numbers).bits();
        let base = first(1, "a", &[0, 1]);
        assert_ne!(base, first(2, "a", &[0, 1]));
        assert_ne!(base, first(1, "b", &[0, 1]));
        assert_ne!(base, first(1, "a", &[1, 0]));
        assert_ne!(base, first(1, "a", &[0]));
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut rng = Rng::keyed(3, "test", &[]);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut rng = Rng::keyed(3, "test", &[]);
        let draws: Vec<f64> = (0..100_000).map(|_| f64::from(rng.normal())).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
