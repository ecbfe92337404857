//! Short copies without a call to `memcpy`.

/// Copies a slice; lengths that are common in networks have code of fixed size.
#[inline(always)]
pub fn short_copy(to: &mut [f32], from: &[f32]) {
    match to.len() {
        1 => fixed::<1>(to, from),
        2 => fixed::<2>(to, from),
        3 => fixed::<3>(to, from),
        4 => fixed::<4>(to, from),
        5 => fixed::<5>(to, from),
        6 => fixed::<6>(to, from),
        7 => fixed::<7>(to, from),
        8 => fixed::<8>(to, from),
        16 => fixed::<16>(to, from),
        32 => fixed::<32>(to, from),
        _ => to.copy_from_slice(from),
    }
}

#[inline(always)]
fn fixed<const LEN: usize>(to: &mut [f32], from: &[f32]) {
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
            super::short_copy(&mut to, &from[..len]);
            assert_eq!(to, from[..len]);
        }
    }
}
