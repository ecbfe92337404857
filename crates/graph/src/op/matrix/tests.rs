use super::*;
use proptest::prelude::*;
use thalweg_core::Rng;

fn random(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.normal()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]
    #[test]
    fn products_match_the_definition(m in 0usize..40, n in 0usize..40, k in 0usize..40, transposes in 0u8..4, seed: u64) {
        let mut rng = Rng::keyed(seed, "test", &[]);
        let (a, b) = (random(&mut rng, m * k), random(&mut rng, k * n));
        let (transpose_left, transpose_right) = (transposes & 1 != 0, transposes & 2 != 0);
        let left = if transpose_left { Matrix::new(&a, k, m).transposed() } else { Matrix::new(&a, m, k) };
        let right = if transpose_right { Matrix::new(&b, n, k).transposed() } else { Matrix::new(&b, k, n) };
        let mut result = vec![f32::NAN; m * n];
        product(&Team::default(), &mut result, left, right);
        for i in 0..m {
            for j in 0..n {
                let term = |l: usize| {
                    let x = if transpose_left { a[l * m + i] } else { a[i * k + l] };
                    let y = if transpose_right { b[j * k + l] } else { b[l * n + j] };
                    f64::from(x) * f64::from(y)
                };
                let expected: f64 = (0..k).map(term).sum();
                prop_assert!((f64::from(result[i * n + j]) - expected).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn blocked_products_match_the_definition() {
    let mut rng = Rng::keyed(1, "blocks", &[]);
    for (m, n, k) in [(200, 17, 600), (3, 1100, 300), (7, 40, 513), (100, 70, 300)] {
        let (a, b) = (random(&mut rng, m * k), random(&mut rng, k * n));
        for (left, right) in [
            (Matrix::new(&a, m, k), Matrix::new(&b, k, n)),
            (Matrix::new(&a, k, m).transposed(), Matrix::new(&b, n, k).transposed()),
        ] {
            let at = |matrix: Matrix<'_>, i: usize, j: usize| {
                f64::from(matrix.values[i * matrix.row_stride + j * matrix.column_stride])
            };
            let mut result = vec![1.0; m * n];
            multiply(MatrixMut::new(&mut result, m, n), left, right, true);
            for (index, got) in result.iter().enumerate().step_by(13) {
                let sum: f64 = (0..k).map(|l| at(left, index / n, l) * at(right, l, index % n)).sum();
                assert!((f64::from(*got) - 1.0 - sum).abs() < 1e-3, "{got} instead of {sum}");
            }
        }
    }
}

#[test]
fn the_transposed_product_gives_the_same() {
    let (m, n, k) = (9, 300, 270);
    let mut rng = Rng::keyed(1, "turned", &[]);
    let (a, b) = (random(&mut rng, m * k), random(&mut rng, k * n));
    let (left, right) = (Matrix::new(&a, m, k), Matrix::new(&b, n, k).transposed());
    assert!(is_faster_transposed(left, right));
    let (mut transposed, mut plain) = (vec![f32::NAN; m * n], vec![0.0; m * n]);
    multiply(MatrixMut::new(&mut transposed, m, n), left, right, false);
    multiply(MatrixMut::new(&mut plain, m, n), left, right, true);
    for (transposed, plain) in transposed.iter().zip(&plain) {
        assert!((transposed - plain).abs() < 1e-4, "{transposed} {plain}");
    }
}
