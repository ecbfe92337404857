//! The squared error: what a regression asks of the last layer's one number.

use thalweg_core::Tally;

/// Loss and errors of the rows, without a gradient.
pub fn evaluate(answers: &[f32], targets: &[f32]) -> Tally {
    let mut tally = Tally { rows: targets.len() as u64, ..Tally::default() };
    for (answer, target) in answers.iter().zip(targets) {
        count(&mut tally, f64::from(*answer) - f64::from(*target));
    }
    tally
}

/// Also writes the gradient of the answers, `2 * (answer - target) * scale`.
pub fn gradient(answers: &[f32], targets: &[f32], scale: f32, delta: &mut [f32]) -> Tally {
    for ((delta, answer), target) in delta.iter_mut().zip(answers).zip(targets) {
        *delta = 2.0 * (answer - target) * scale;
    }
    evaluate(answers, targets)
}

/// Adds a row's error.
fn count(tally: &mut Tally, error: f64) {
    tally.absolute += error.abs();
    tally.squared += error * error;
    tally.loss += error * error;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let mut delta = [f32::NAN; 2];
        let tally = gradient(&[3.0, -1.0], &[1.0, 0.0], 0.5, &mut delta);
        assert_eq!(delta, [2.0, -1.0]);
        assert_eq!((tally.rows, tally.loss, tally.absolute, tally.squared), (2, 5.0, 3.0, 5.0));
    }
}
