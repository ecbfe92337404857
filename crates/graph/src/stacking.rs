//! Stacking: a combination of predictions that is learned (Wolpert 1992), from rows that no member was trained on.
//!
//! ```text
//! classes:   score of class k = b_k + sum of a_m log p_m(k)      the prediction is the softmax of the scores
//! numbers:   prediction = b + sum of a_m p_m                     m: members
//! learned:   the a and b of the least cross-entropy, or half the squared error, summed over the rows,
//!            plus |a - 1/n|^2 / 2 + |b|^2 / 2, which keeps them near the mean as far as the rows do not tell
//! ```
//!
//! Both are convex. Newton's method in double precision finds the minimum, for numbers in one step.

use thalweg_core::{Error, Result, Targets, Task, progress};

/// Probabilities below it count as it: their logarithm is taken.
pub(crate) const LEAST_PROBABILITY: f32 = 1e-7;

/// Steps of Newton's method at most.
const STEPS: usize = 50;
/// Halvings of a step until it lowers the loss; without success the minimum is reached.
const HALVINGS: i32 = 40;

/// What is combined: the logarithms of probabilities, or numbers, of one member after the other.
struct Inputs {
    values: Vec<f64>,
    members: usize,
    /// Numbers per row and member.
    width: usize,
    task: Task,
}

impl Inputs {
    fn new(predictions: &[f32], members: usize, width: usize, task: Task) -> Inputs {
        let value = |prediction: &f32| match task {
            Task::Classification => f64::from(prediction.max(LEAST_PROBABILITY)).ln(),
            Task::Regression => f64::from(*prediction),
        };
        Inputs { values: predictions.iter().map(value).collect(), members, width, task }
    }

    fn rows(&self) -> usize {
        self.values.len() / (self.members * self.width).max(1)
    }

    fn of(&self, member: usize, row: usize) -> &[f64] {
        let first = (member * self.rows() + row) * self.width;
        &self.values[first..first + self.width]
    }

    /// What the members predict together: the weights of all, then a bias per class or one.
    fn combined(&self, row: usize, combiner: &[f64]) -> Vec<f64> {
        let (weights, biases) = combiner.split_at(self.members);
        let mut outputs = biases.to_vec();
        for (member, weight) in weights.iter().enumerate() {
            outputs
                .iter_mut()
                .zip(self.of(member, row))
                .for_each(|(output, input)| *output += weight * input);
        }
        if self.task == Task::Classification {
            let largest = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            outputs.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f64 = outputs.iter().sum();
            outputs.iter_mut().for_each(|score| *score /= sum);
        }
        outputs
    }
}

/// What members with these predictions predict together, `width` numbers per row.
pub(crate) fn combined(predictions: &[f32], width: usize, task: Task, combiner: &[f32]) -> Vec<f32> {
    let inputs = Inputs::new(predictions, combiner.len().saturating_sub(width), width, task);
    let combiner: Vec<f64> = combiner.iter().map(|value| f64::from(*value)).collect();
    let rows = (0..inputs.rows()).flat_map(|row| inputs.combined(row, &combiner));
    rows.map(|value| value as f32).collect()
}

/// The sum that is least at the best combiner, with its slope and curvature.
struct Fit<'a> {
    inputs: Inputs,
    targets: &'a Targets,
}

impl Fit<'_> {
    /// Where the penalty is 0: the mean of the members.
    fn start(&self) -> Vec<f64> {
        let members = self.inputs.members;
        (0..members + self.inputs.width)
            .map(|index| if index < members { 1.0 / members as f64 } else { 0.0 })
            .collect()
    }

    /// What the row is to be: its number, or 1 at its class.
    fn wanted(&self, row: usize, output: usize) -> f64 {
        match self.targets {
            Targets::Values(values) => f64::from(values[row]),
            Targets::Classes(classes) => f64::from(u8::from(classes[row] as usize == output)),
        }
    }

    fn loss(&self, combiner: &[f64]) -> f64 {
        let penalty = combiner.iter().zip(self.start()).map(|(value, start)| (value - start).powi(2) / 2.0);
        let rows = (0..self.inputs.rows()).map(|row| {
            progress::advance();
            let outputs = self.inputs.combined(row, combiner);
            let term = |(index, output): (usize, &f64)| match (self.inputs.task, self.wanted(row, index)) {
                (Task::Regression, wanted) => (output - wanted).powi(2) / 2.0,
                (Task::Classification, wanted) => -wanted * output.max(f64::MIN_POSITIVE).ln(),
            };
            outputs.iter().enumerate().map(term).sum::<f64>()
        });
        penalty.sum::<f64>() + rows.sum::<f64>()
    }

    /// The slope, and the lower half of the curvature row by row.
    fn derivatives(&self, combiner: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (inputs, size) = (&self.inputs, combiner.len());
        let mut slope: Vec<f64> =
            combiner.iter().zip(self.start()).map(|(value, start)| value - start).collect();
        let mut curvature = vec![0.0; size * size];
        (0..size).for_each(|index| curvature[index * size + index] = 1.0);
        let add = |curvature: &mut [f64], factor: f64, inputs: &[f64]| {
            for (one, left) in inputs.iter().enumerate().filter(|(_, left)| **left != 0.0) {
                let row = &mut curvature[one * size..=one * size + one];
                row.iter_mut().zip(inputs).for_each(|(sum, right)| *sum += factor * left * right);
            }
        };
        // Of one output: by how much each element of the combiner moves it.
        let mut moves = vec![0.0; size];
        for row in 0..inputs.rows() {
            // The other ranks wait for this one.
            progress::advance();
            let outputs = inputs.combined(row, combiner);
            let mut mean = vec![0.0; size];
            for (index, output) in outputs.iter().enumerate() {
                moves[inputs.members..].fill(0.0);
                moves[inputs.members + index] = 1.0;
                (0..inputs.members).for_each(|member| moves[member] = inputs.of(member, row)[index]);
                let error = output - self.wanted(row, index);
                slope.iter_mut().zip(&moves).for_each(|(slope, by)| *slope += error * by);
                let share = if inputs.task == Task::Classification { *output } else { 1.0 };
                add(&mut curvature, share, &moves);
                mean.iter_mut().zip(&moves).for_each(|(mean, by)| *mean += share * by);
            }
            if inputs.task == Task::Classification {
                add(&mut curvature, -1.0, &mean);
            }
        }
        (slope, curvature)
    }
}

/// About so many floating-point operations does [`learn`] take for so many predictions of these members, in one step.
pub fn operations(predictions: usize, members: usize) -> u64 {
    let (predictions, members) = (predictions as u64, members.max(1) as u64);
    2 * predictions * members
}

/// Learns how to combine members with these predictions, one member after the other, for rows with these targets: the weight
/// of each member, then a bias per class, or one.
pub fn learn(predictions: &[f32], members: usize, targets: &Targets) -> Result<Vec<f32>> {
    let (rows, task) = match targets {
        Targets::Classes(classes) => (classes.len(), Task::Classification),
        Targets::Values(values) => (values.len(), Task::Regression),
    };
    let width = predictions.len() / (members * rows).max(1);
    if width == 0 || predictions.len() != members * rows * width {
        return Err(Error::internal(format!(
            "{} numbers are not the predictions of {members} members for {rows} rows",
            predictions.len()
        )));
    }
    let fit = Fit { inputs: Inputs::new(predictions, members, width, task), targets };
    let mut combiner = fit.start();
    let mut loss = fit.loss(&combiner);
    for _ in 0..STEPS {
        let (slope, curvature) = fit.derivatives(&combiner);
        let step = solve(curvature, slope);
        let shorter = (0..HALVINGS).map(|halvings| 0.5f64.powi(halvings));
        let tried = shorter.map(|factor| -> Vec<f64> {
            combiner.iter().zip(&step).map(|(value, step)| value - factor * step).collect()
        });
        let Some((lower, next)) = tried.map(|next| (fit.loss(&next), next)).find(|(lower, _)| *lower < loss)
        else {
            break;
        };
        (loss, combiner) = (lower, next);
    }
    let combiner: Vec<f32> = combiner.into_iter().map(|value| value as f32).collect();
    match combiner.iter().all(|value| value.is_finite()) {
        true => Ok(combiner),
        false => Err(Error::internal("the predictions that are to be stacked are not finite")),
    }
}

/// The solution of a system with a positive definite matrix, of which the lower half is given (Cholesky).
fn solve(mut matrix: Vec<f64>, mut vector: Vec<f64>) -> Vec<f64> {
    let size = vector.len();
    for row in 0..size {
        for column in 0..=row {
            let (left, right) = (row * size, column * size);
            let sum: f64 = (0..column).map(|index| matrix[left + index] * matrix[right + index]).sum();
            let rest = matrix[left + column] - sum;
            matrix[left + column] = if row == column { rest.sqrt() } else { rest / matrix[right + column] };
        }
        let sum: f64 = (0..row).map(|index| matrix[row * size + index] * vector[index]).sum();
        vector[row] = (vector[row] - sum) / matrix[row * size + row];
    }
    for row in (0..size).rev() {
        let sum: f64 = (row + 1..size).map(|index| matrix[index * size + row] * vector[index]).sum();
        vector[row] = (vector[row] - sum) / matrix[row * size + row];
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::Rng;

    const ROWS: usize = 400;

    fn log_loss(predictions: &[f32], classes: &[u32], width: usize) -> f64 {
        let rows = predictions.chunks_exact(width).zip(classes);
        rows.map(|(row, class)| -f64::from(row[*class as usize].max(LEAST_PROBABILITY)).ln()).sum()
    }

    #[test]
    fn systems_are_solved() {
        // The upper half is not read.
        let solution = solve(vec![4.0, 9.0, 9.0, 2.0, 5.0, 9.0, 1.0, 3.0, 6.0], vec![11.0, 21.0, 25.0]);
        for (value, expected) in solution.iter().zip([1.0, 2.0, 3.0]) {
            assert!((value - expected).abs() < 1e-12, "{solution:?}");
        }
    }

    /// At the least squared error with the penalty the slope is 0.
    #[test]
    fn numbers_are_combined_by_least_squares() {
        let mut rng = Rng::keyed(3, "test", &[]);
        let (one, other): (Vec<f32>, Vec<f32>) = (0..ROWS).map(|_| (rng.normal(), rng.normal())).unzip();
        let values: Vec<f32> = one.iter().zip(&other).map(|(a, b)| 2.0 * a - 0.5 * b + 0.25).collect();
        let predictions = [one, other].concat();
        let combiner = learn(&predictions, 2, &Targets::Values(values.clone())).unwrap();
        for (value, expected) in combiner.iter().zip([2.0, -0.5, 0.25]) {
            assert!((value - expected).abs() < 0.02, "{combiner:?}");
        }
        let together = combined(&predictions, 1, Task::Regression, &combiner);
        let worst = together.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 0.05, "{worst}");
    }

    /// One member knows the class with some noise, the other one is sure of a wrong class.
    #[test]
    fn a_bad_member_loses_its_weight() {
        let (mut rng, width) = (Rng::keyed(5, "test", &[]), 3);
        let classes: Vec<u32> = (0..ROWS).map(|_| rng.below(3) as u32).collect();
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for class in &classes {
            let seen = if rng.below(10) == 0 { rng.below(3) as u32 } else { *class };
            good.extend((0..3).map(|index| if index == seen { 0.8 } else { 0.1 }));
            let wrong = rng.below(3) as u32;
            bad.extend((0..3).map(|index| if index == wrong { 0.98 } else { 0.01 }));
        }
        let predictions = [good, bad].concat();
        let combiner = learn(&predictions, 2, &Targets::Classes(classes.clone())).unwrap();
        assert!(combiner[0] > 0.8 && combiner[1].abs() < 0.1 * combiner[0], "{combiner:?}");
        let together = combined(&predictions, width, Task::Classification, &combiner);
        assert!(together.chunks_exact(width).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5));
        let half = predictions.len() / 2;
        let mean: Vec<f32> =
            predictions[..half].iter().zip(&predictions[half..]).map(|(a, b)| (a + b) / 2.0).collect();
        let (stacked, averaged) = (log_loss(&together, &classes, width), log_loss(&mean, &classes, width));
        assert!(stacked < 0.7 * averaged, "{stacked} and {averaged}");
    }

    /// Without rows, or with members that all say the same, nothing but the penalty decides.
    #[test]
    fn equal_members_get_equal_weights() {
        let row = [0.7, 0.2, 0.1];
        let predictions: Vec<f32> = [row; 6].concat();
        let combiner = learn(&predictions, 3, &Targets::Classes(vec![0, 1])).unwrap();
        assert!((combiner[0] - combiner[1]).abs() < 1e-9 && (combiner[1] - combiner[2]).abs() < 1e-9);
        let error = learn(&predictions, 4, &Targets::Classes(vec![0, 1])).unwrap_err();
        assert!(error.message.contains("predictions of 4 members for 2 rows"), "{error}");
    }
}
