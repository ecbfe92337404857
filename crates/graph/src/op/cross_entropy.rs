//! Softmax and cross-entropy in one: what a classification asks of the last layer's numbers.

use thalweg_core::Tally;

/// Loss and hits of the rows, without a gradient.
pub fn evaluate(logits: &[f32], classes: &[u32], outputs: usize) -> Tally {
    let mut tally = Tally { rows: classes.len() as u64, ..Tally::default() };
    for (row, &class) in logits.chunks_exact(outputs).zip(classes) {
        let largest = row[arg_max(row)];
        let sum: f64 = row.iter().map(|logit| f64::from((logit - largest).exp())).sum();
        count(&mut tally, row, class as usize, largest, sum);
    }
    tally
}

/// Also writes the gradient of the logits, `(softmax - one-hot) * scale`.
pub fn gradient(logits: &[f32], classes: &[u32], outputs: usize, scale: f32, delta: &mut [f32]) -> Tally {
    let mut tally = Tally { rows: classes.len() as u64, ..Tally::default() };
    let rows = logits.chunks_exact(outputs).zip(delta.chunks_exact_mut(outputs)).zip(classes);
    for ((row, delta), &class) in rows {
        let (largest, sum) = exponentials(row, delta);
        count(&mut tally, row, class as usize, largest, sum);
        let share = (f64::from(scale) / sum) as f32;
        delta.iter_mut().for_each(|delta| *delta *= share);
        delta[class as usize] -= scale;
    }
    tally
}

/// Turns logits into probabilities, in place.
pub fn softmax(values: &mut [f32], outputs: usize) {
    for row in values.chunks_exact_mut(outputs) {
        let largest = row[arg_max(row)];
        row.iter_mut().for_each(|value| *value = (*value - largest).exp());
        let sum: f64 = row.iter().map(|value| f64::from(*value)).sum();
        row.iter_mut().for_each(|value| *value = (f64::from(*value) / sum) as f32);
    }
}

/// Writes `exp(logit - largest)`; returns the largest logit and the sum.
fn exponentials(row: &[f32], result: &mut [f32]) -> (f32, f64) {
    let largest = row[arg_max(row)];
    let mut sum = 0.0;
    for (result, logit) in result.iter_mut().zip(row) {
        *result = (logit - largest).exp();
        sum += f64::from(*result);
    }
    (largest, sum)
}

/// Adds a row's loss, and whether it was hit.
fn count(tally: &mut Tally, row: &[f32], class: usize, largest: f32, sum: f64) {
    tally.loss += sum.ln() + f64::from(largest) - f64::from(row[class]);
    tally.correct += u64::from(arg_max(row) == class);
}

/// The place of the largest number; of equals, the first.
fn arg_max(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_share_evenly_and_the_first_wins() {
        let mut delta = [f32::NAN; 4];
        let tally = gradient(&[2.0; 4], &[0], 4, 2.0, &mut delta);
        assert!((tally.loss - 4f64.ln()).abs() < 1e-12);
        assert_eq!(delta, [-1.5, 0.5, 0.5, 0.5]);
        assert_eq!(tally.correct, 1);
        assert_eq!(evaluate(&[2.0; 4], &[1], 4).correct, 0);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let logits = [1e30, -1e30, 0.0];
        let mut delta = [0.0; 3];
        let tally = gradient(&logits, &[0], 3, 1.0, &mut delta);
        assert_eq!((tally.loss, delta), (0.0, [0.0; 3]));
        assert_eq!(evaluate(&logits, &[0], 3), tally);
        let mut probabilities = logits;
        softmax(&mut probabilities, 3);
        assert_eq!(probabilities, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn what_is_not_a_number_shows_in_the_loss() {
        assert!(evaluate(&[0.0, f32::NAN], &[0], 2).loss.is_nan());
    }
}
