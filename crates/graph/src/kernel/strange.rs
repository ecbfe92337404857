//! Numbers that are not finite.

use super::dispatch::dispatch;

/// Numbers looked at together.
const LANES: usize = 64;

/// The first element that is not finite, if any.
pub fn first_not_finite(values: &[f32]) -> Option<usize> {
    if carries(values) >> 31 == 0 {
        return None;
    }
    values.iter().position(|value| !value.is_finite())
}

dispatch! {
    /// The highest bit is set if a number is not finite: one more at the end of an exponent whose bits are all set is
    /// carried into the sign.
    pub fn carries(values: &[f32]) -> u32 {
        let exceeds = |value: &f32| (value.to_bits() & 0x7fff_ffff) + 0x0080_0000;
        let (lanes, rest) = values.as_chunks::<LANES>();
        let mut seen = [0; LANES];
        for lane in lanes {
            for index in 0..LANES {
                seen[index] |= exceeds(&lane[index]);
            }
        }
        let seen = seen.iter().fold(0, |all, bits| all | bits);
        rest.iter().fold(seen, |all, value| all | exceeds(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, LANES - 1, LANES, 2 * LANES + 1] {
                let mut values = [f32::MAX; 2 * LANES + 3];
                assert_eq!(first_not_finite(&values), None);
                values[place] = bad;
                assert_eq!(first_not_finite(&values), Some(place));
            }
        }
    }
}
