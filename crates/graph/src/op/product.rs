//! The matrix product, through the `gemm` crate, on the calling thread.

use gemm::Parallelism;

/// A matrix seen in a slice: element `(row, column)` stands at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix that fills its slice.
    pub fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix must fill its slice");
        Matrix { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The same numbers with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Matrix {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// Writes `left * right` over a row-major result.
pub fn product(result: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    assert_eq!(left.columns, right.rows, "inner sizes of a product must agree");
    assert_eq!(result.len(), left.rows * right.columns, "the result of a product must fill its slice");
    if result.is_empty() {
        return;
    }
    if left.columns == 0 {
        result.fill(0.0);
        return;
    }
    // SAFETY: both matrices fill their slices and the result has one element per row of the left and column of
    // the right (asserted here and in `Matrix::new`), so every element the strides reach lies inside its slice;
    // the result is borrowed mutably and overlaps neither input. Slice lengths fit into `isize`.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            result.as_mut_ptr(),
            1,
            right.columns as isize,
            false,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_core::Rng;

    fn random(rng: &mut Rng, len: usize) -> Vec<f32> {
        (0..len).map(|_| rng.normal()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]
        #[test]
        fn agrees_with_the_definition(m in 0usize..40, n in 0usize..40, k in 0usize..40, flips in 0u8..4, seed: u64) {
            let mut rng = Rng::keyed(seed, "test", &[]);
            let (a, b) = (random(&mut rng, m * k), random(&mut rng, k * n));
            let (flip_left, flip_right) = (flips & 1 != 0, flips & 2 != 0);
            let left = if flip_left { Matrix::new(&a, k, m).transposed() } else { Matrix::new(&a, m, k) };
            let right = if flip_right { Matrix::new(&b, n, k).transposed() } else { Matrix::new(&b, k, n) };
            let mut result = vec![f32::NAN; m * n];
            product(&mut result, left, right);
            for i in 0..m {
                for j in 0..n {
                    let term = |l: usize| {
                        let x = if flip_left { a[l * m + i] } else { a[i * k + l] };
                        let y = if flip_right { b[j * k + l] } else { b[l * n + j] };
                        f64::from(x) * f64::from(y)
                    };
                    let expected: f64 = (0..k).map(term).sum();
                    prop_assert!((f64::from(result[i * n + j]) - expected).abs() < 1e-4);
                }
            }
        }
    }
}
