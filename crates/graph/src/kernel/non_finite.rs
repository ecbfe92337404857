//! Search for NaN and infinities.

use super::dispatch::dispatch;

/// Elements that are tested together.
const LANES: usize = 64;

/// The first element that is not finite, if any.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    if exponent_carries(values) >> 31 == 0 {
        return None;
    }
    values.iter().position(|value| !value.is_finite())
}

dispatch! {
    /// The highest bit is set if any element is not finite: adding one to an exponent of all ones carries into the
    /// sign bit.
    pub fn exponent_carries(values: &[f32]) -> u32 {
        let carry = |value: &f32| (value.to_bits() & 0x7fff_ffff) + 0x0080_0000;
        let (lanes, rest) = values.as_chunks::<LANES>();
        let mut seen = [0; LANES];
        for lane in lanes {
            for index in 0..LANES {
                seen[index] |= carry(&lane[index]);
            }
        }
        let seen = seen.iter().fold(0, |all, bits| all | bits);
        rest.iter().fold(seen, |all, value| all | carry(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_values_are_found_at_any_index() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for index in [0, LANES - 1, LANES, 2 * LANES + 1] {
                let mut values = [f32::MAX; 2 * LANES + 3];
                assert_eq!(first_not_finite(&values), None);
                values[index] = bad;
                assert_eq!(first_not_finite(&values), Some(index));
            }
        }
    }
}
