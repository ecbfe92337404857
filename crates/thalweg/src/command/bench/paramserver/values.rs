//! The values that are exchanged: small whole numbers, whose sums are exact in any order.

use thalweg_core::{Error, Result};

/// The gradient of a worker in a round.
pub(super) fn fill_gradient(gradient: &mut [f32], worker: usize, round: u64) {
    let add = worker as u64 + round % 8;
    gradient.iter_mut().enumerate().for_each(|(index, value)| *value = ((index & 255) as u64 + add) as f32);
}

/// Checks a server's sum of the gradients of all workers in a round; it owns the elements from `start` on.
pub(super) fn check_sum(sum: &[f32], start: usize, workers: usize, round: u64) -> Result<()> {
    let workers = workers as u64;
    let constant = workers * (workers - 1) / 2 + workers * (round % 8);
    let expected = |index: usize| (((start + index) & 255) as u64 * workers + constant) as f32;
    match sum.iter().enumerate().position(|(index, value)| *value != expected(index)) {
        None => Ok(()),
        Some(index) => {
            let (element, value, expected) = (start + index, sum[index], expected(index));
            Err(Error::internal(format!("element {element} of the sum is {value}, not {expected}")))
        }
    }
}

/// The parameters of the server of the elements from `start` on, after a round.
pub(super) fn fill_parameters(parameters: &mut [f32], start: usize, round: u64) {
    let add = round % 1024;
    let value = |index: usize| (((start + index) & 1023) as u64 + add) as f32;
    parameters.iter_mut().enumerate().for_each(|(index, parameter)| *parameter = value(index));
}

/// The sum of the bits of all values.
pub(super) fn sum_bits(values: &[f32]) -> u32 {
    values.iter().fold(0, |sum: u32, value| sum.wrapping_add(value.to_bits()))
}

/// What [`sum_bits`] gives for all parameters after a round.
pub(super) fn parameter_bits(length: usize, round: u64) -> u32 {
    let period: Vec<f32> = {
        let mut period = vec![0.0; length.min(1024)];
        fill_parameters(&mut period, 0, round);
        period
    };
    let whole = (length / 1024) as u32;
    sum_bits(&period).wrapping_mul(whole.max(u32::from(length < 1024))).wrapping_add(match whole {
        0 => 0,
        _ => sum_bits(&period[..length % 1024]),
    })
}

/// The gradient of every update.
pub(super) fn fill_update(gradient: &mut [f32]) {
    gradient.iter_mut().enumerate().for_each(|(index, value)| *value = ((index & 7) + 1) as f32);
}

/// One update by SGD.
pub(super) fn apply(parameters: &mut [f32], gradient: &[f32]) {
    const RATE: f32 = 0.5;
    parameters.iter_mut().zip(gradient).for_each(|(parameter, value)| *parameter -= RATE * value);
}

/// How often the gradient of [`fill_update`] was applied to parameters that began at 0; an error unless it was the same
/// whole number for all elements of a piece. Its first element is that with this index.
pub(super) fn count_updates(start: usize, values: &[f32]) -> Result<u64> {
    let Some(first) = values.first() else { return Ok(0) };
    let of_one = |index: usize| -0.5 * (((start + index) & 7) + 1) as f32;
    let updates = first / of_one(0);
    match values.iter().enumerate().position(|(index, value)| *value != updates * of_one(index)) {
        None if updates.fract() == 0.0 => Ok(updates as u64),
        wrong => {
            let index = wrong.unwrap_or(0);
            Err(Error::internal(format!(
                "element {} was updated {} times, element {start} {updates} times",
                start + index,
                values[index] / of_one(index),
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_sums_are_found() {
        let mut sum = vec![0.0; 3000];
        for worker in 0..3 {
            let mut gradient = vec![0.0; 3000];
            fill_gradient(&mut gradient, worker, 13);
            sum.iter_mut().zip(&gradient).for_each(|(sum, value)| *sum += value);
        }
        assert_eq!(check_sum(&sum, 0, 3, 13), Ok(()));
        assert_eq!(check_sum(&sum[700..], 700, 3, 13), Ok(()));
        sum[2049] += 1.0;
        assert!(check_sum(&sum, 0, 3, 13).unwrap_err().to_string().contains("element 2049"));
    }

    #[test]
    fn the_bits_of_any_length_are_known() {
        for length in [0, 1, 500, 1023, 1024, 1025, 5000] {
            let mut parameters = vec![0.0; length];
            let (first, second) = parameters.split_at_mut(length / 3);
            fill_parameters(first, 0, 77);
            fill_parameters(second, length / 3, 77);
            assert_eq!(sum_bits(&parameters), parameter_bits(length, 77), "{length}");
        }
    }

    #[test]
    fn pieces_of_several_updates_are_found() {
        let (mut values, mut gradient) = (vec![0.0; 100], vec![0.0; 200]);
        fill_update(&mut gradient);
        (0..3).for_each(|_| apply(&mut values, &gradient[100..]));
        assert_eq!(count_updates(100, &values), Ok(3));
        assert_eq!(count_updates(5, &[]), Ok(0));
        values[50] *= 2.0;
        let error = count_updates(100, &values).unwrap_err().to_string();
        assert!(error.contains("element 150 was updated 6 times, element 100 3 times"), "{error}");
    }
}
