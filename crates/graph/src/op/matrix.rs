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

    /// A matrix whose rows stand `row_stride` apart.
    pub fn strided(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(reach(rows, columns, row_stride) <= values.len(), "a matrix must lie inside its slice");
        Matrix { values, rows, columns, row_stride, column_stride: 1 }
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

/// The result of a product seen in a slice: row `i` begins at `i * row_stride`.
pub struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// A row-major matrix that fills its slice.
    pub fn new(values: &'a mut [f32], rows: usize, columns: usize) -> Self {
        MatrixMut::strided(values, rows, columns, columns)
    }

    /// Rows that stand `row_stride` apart.
    pub fn strided(values: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(reach(rows, columns, row_stride) <= values.len(), "a result must lie inside its slice");
        assert!(columns <= row_stride || rows <= 1, "rows of a result must not overlap");
        MatrixMut { values, rows, columns, row_stride }
    }
}

/// Elements from the first of a matrix to its last.
fn reach(rows: usize, columns: usize, row_stride: usize) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row_stride + columns }
}

/// Writes a matrix with that many columns with rows and columns exchanged. A product that is made at every position of a
/// sequence reads its weight faster this way round: nothing is packed.
pub fn transpose(result: &mut [f32], values: &[f32], columns: usize) {
    assert_eq!(result.len(), values.len(), "a matrix has as many elements either way round");
    let rows = values.len().checked_div(columns).unwrap_or(0);
    for (row, values) in values.chunks_exact(columns.max(1)).enumerate() {
        for (column, value) in values.iter().enumerate() {
            result[column * rows + row] = *value;
        }
    }
}

/// Writes `left * right` over a row-major result.
pub fn product(result: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    assert_eq!(result.len(), left.rows * right.columns, "the result of a product must fill its slice");
    multiply(MatrixMut::new(result, left.rows, right.columns), left, right, false);
}

/// Writes `left * right` over the result, or adds it to what is there.
pub fn multiply(result: MatrixMut<'_>, left: Matrix<'_>, right: Matrix<'_>, accumulate: bool) {
    assert_eq!(left.columns, right.rows, "inner sizes of a product must agree");
    assert!(
        left.rows == result.rows && right.columns == result.columns,
        "outer sizes of a product must agree"
    );
    if result.rows == 0 || result.columns == 0 {
        return;
    }
    if left.columns == 0 {
        if !accumulate {
            let rows = result.values.chunks_mut(result.row_stride).take(result.rows);
            rows.for_each(|row| row[..result.columns].fill(0.0));
        }
        return;
    }
    // SAFETY: every element that the sizes and strides of the three matrices reach lies inside its slice (asserted
    // where each of them is made, and here that the sizes agree); the result is borrowed mutably and overlaps neither
    // input, and its rows do not overlap each other. Slice lengths fit into `isize`.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            result.values.as_mut_ptr(),
            1,
            result.row_stride as isize,
            accumulate,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            if accumulate { 1.0 } else { 0.0 },
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
