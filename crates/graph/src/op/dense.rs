//! `output = input * weight^T + bias` over the rows of a batch, and the way back. A weight is `[units, inputs]`.

use super::product::{Matrix, product};

/// The product alone: bias and activation follow in one pass.
pub fn forward(output: &mut [f32], input: &[f32], weight: &[f32], rows: usize, units: usize, inputs: usize) {
    product(output, Matrix::new(input, rows, inputs), Matrix::new(weight, units, inputs).transposed());
}

/// `delta^T * input`: each weight's gradient, summed over the rows.
pub fn weight_gradient(
    gradient: &mut [f32],
    delta: &[f32],
    input: &[f32],
    rows: usize,
    units: usize,
    inputs: usize,
) {
    product(gradient, Matrix::new(delta, rows, units).transposed(), Matrix::new(input, rows, inputs));
}

/// `delta * weight`: the gradient of what the layer read.
pub fn input_gradient(
    result: &mut [f32],
    delta: &[f32],
    weight: &[f32],
    rows: usize,
    units: usize,
    inputs: usize,
) {
    product(result, Matrix::new(delta, rows, units), Matrix::new(weight, units, inputs));
}

/// Each bias's gradient: the sum of its column, added up in double precision, since a bias moves every row.
pub fn bias_gradient(gradient: &mut [f32], delta: &[f32], sums: &mut Vec<f64>) {
    sums.clear();
    sums.resize(gradient.len(), 0.0);
    for row in delta.chunks_exact(gradient.len()) {
        for (sum, delta) in sums.iter_mut().zip(row) {
            *sum += f64::from(*delta);
        }
    }
    for (gradient, sum) in gradient.iter_mut().zip(sums) {
        *gradient = *sum as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let (input, weight) = ([1.0, 2.0], [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        let mut output = [0.0; 3];
        forward(&mut output, &input, &weight, 1, 3, 2);
        assert_eq!(output, [1.0, 2.0, 3.0]);
        let mut gradient = [0.0; 6];
        weight_gradient(&mut gradient, &[1.0, 10.0, 100.0], &input, 1, 3, 2);
        assert_eq!(gradient, [1.0, 2.0, 10.0, 20.0, 100.0, 200.0]);
        let mut result = [0.0; 2];
        input_gradient(&mut result, &[1.0, 10.0, 100.0], &weight, 1, 3, 2);
        assert_eq!(result, [101.0, 110.0]);
        let mut gradient = [f32::NAN; 2];
        bias_gradient(&mut gradient, &[1.0, 2.0, 3.0, 4.0], &mut Vec::new());
        assert_eq!(gradient, [4.0, 6.0]);
    }
}
