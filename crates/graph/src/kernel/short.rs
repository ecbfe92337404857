//! Copies of a few numbers, without the call that a long copy is worth.

/// Copies a run. Lengths that are common in networks are known to the compiler here.
#[inline(always)]
pub fn copy(to: &mut [f32], from: &[f32]) {
    match to.len() {
        1 => known::<1>(to, from),
        2 => known::<2>(to, from),
        3 => known::<3>(to, from),
        4 => known::<4>(to, from),
        5 => known::<5>(to, from),
        6 => known::<6>(to, from),
        7 => known::<7>(to, from),
        8 => known::<8>(to, from),
        16 => known::<16>(to, from),
        32 => known::<32>(to, from),
        _ => to.copy_from_slice(from),
    }
}

#[inline(always)]
fn known<const LEN: usize>(to: &mut [f32], from: &[f32]) {
    match (<&mut [f32; LEN]>::try_from(&mut *to), <&[f32; LEN]>::try_from(from)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_length_is_copied() {
        let from: Vec<f32> = (0..40).map(|number| number as f32).collect();
        for len in 0..40 {
            let mut to = vec![-1.0; len];
            super::copy(&mut to, &from[..len]);
            assert_eq!(to, from[..len]);
        }
    }
}
