//! The matrix product: factors cut into blocks and packed for the `panel` kernel; threads share the rows of the result.

use crate::kernel::panel::{self, DEPTH, Left, Right, Target, tile_up, turn};
use crate::shares;
use crate::team::{MOST_SHARES, Team};
use std::cell::RefCell;
use std::ops::Range;

/// Rows of the left factor that stay in the second cache while panels go by.
const ROWS: usize = 192;

/// Columns of the right factor that are packed together.
const COLUMNS: usize = 1024;

/// Rows of a left factor so few that packing the right one does not pay; twice as many, where its lines are well apart.
const FEW: usize = 64;

/// Lines that stand a multiple of so many numbers apart share few places of a cache.
const CLASHING: usize = 256;

/// Most numbers of a result that is made the other way round.
const TURNED: usize = 1 << 18;

/// Numbers that a thread keeps for its products.
const ROOM_LEN: usize = COLUMNS * DEPTH + ROWS * DEPTH + TURNED;

thread_local! {
    /// Room for a packed block of the right factor, one of the left, and a turned result.
    static ROOM: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

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

    /// Some of its rows.
    pub fn some_rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows of the matrix");
        let begin = (rows.start * self.row_stride).min(self.values.len());
        Matrix { values: &self.values[begin..], rows: rows.len(), ..self }
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

/// Writes a matrix with that many columns with rows and columns exchanged.
pub fn transpose(result: &mut [f32], values: &[f32], columns: usize) {
    assert_eq!(result.len(), values.len(), "a matrix has as many elements either way round");
    let rows = values.len().checked_div(columns).unwrap_or(0);
    turn(result, rows, values, columns, rows, columns);
}

/// A right factor packed once for many products.
pub struct Packed<'a> {
    panels: &'a [f32],
    rows: usize,
    columns: usize,
}

impl<'a> Packed<'a> {
    /// How much room a matrix of that size takes.
    pub fn len(rows: usize, columns: usize) -> usize {
        rows * columns.next_multiple_of(panel::width())
    }

    /// Packs a matrix into that much room.
    pub fn new(room: &'a mut [f32], matrix: Matrix<'_>) -> Packed<'a> {
        let wide = matrix.columns.next_multiple_of(panel::width());
        for begin in (0..matrix.rows).step_by(DEPTH) {
            let depth = DEPTH.min(matrix.rows - begin);
            pack(&mut room[begin * wide..][..depth * wide], matrix, begin..begin + depth, 0..matrix.columns);
        }
        Packed { panels: &room[..matrix.rows * wide], rows: matrix.rows, columns: matrix.columns }
    }
}

impl<'a> Packed<'a> {
    /// A matrix of that size that was packed into this room.
    pub fn again(room: &'a [f32], rows: usize, columns: usize) -> Packed<'a> {
        Packed { panels: &room[..Packed::len(rows, columns)], rows, columns }
    }
}

/// Writes a block of a right factor as panels; columns that fill the last one up are zero.
fn pack(panels: &mut [f32], matrix: Matrix<'_>, lines: Range<usize>, columns: Range<usize>) {
    let width = panel::width();
    for (index, panel) in panels.chunks_exact_mut(lines.len() * width).enumerate() {
        let begin = columns.start + index * width;
        let own = width.min(columns.end - begin);
        let source = &matrix.values[lines.start * matrix.row_stride + begin * matrix.column_stride..];
        if matrix.column_stride == 1 {
            if own == width {
                panel::gather(panel.chunks_exact_mut(width), source, matrix.row_stride);
                continue;
            }
            for (number, line) in panel.chunks_exact_mut(width).enumerate() {
                let from = &source[number * matrix.row_stride..][..own];
                line[..own].copy_from_slice(from);
                line[own..].fill(0.0);
            }
        } else {
            if own < width {
                panel.fill(0.0);
            }
            turn(panel, width, source, matrix.column_stride, own, lines.len());
        }
    }
}

/// Writes `left * right` over the result, or adds it to what is there, for a right factor that is packed.
pub fn multiply_packed(result: MatrixMut<'_>, left: Matrix<'_>, right: &Packed<'_>, accumulate: bool) {
    assert!(left.columns == right.rows && left.column_stride == 1, "the left factor lies row by row");
    assert!(
        left.rows == result.rows && right.columns == result.columns,
        "outer sizes of a product must agree"
    );
    let MatrixMut { values, rows, columns, row_stride } = result;
    if rows == 0 || columns == 0 {
        return;
    }
    let wide = columns.next_multiple_of(panel::width());
    for begin in (0..right.rows).step_by(DEPTH) {
        let depth = DEPTH.min(right.rows - begin);
        let add = accumulate || begin > 0;
        let target = Target { values: &mut *values, rows, columns, row_stride, add };
        let panels = &right.panels[begin * wide..][..depth * wide];
        let left = Left::Rows(&left.values[begin..], left.row_stride);
        panel::sweep(target, left, Right::packed(panels, depth), depth);
    }
}

/// Writes `left * right` over a row-major result, with the help of a team.
pub fn product(team: &Team, result: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    assert_eq!(result.len(), left.rows * right.columns, "the result of a product must fill its slice");
    if team.threads() == 1 {
        return multiply(MatrixMut::new(result, left.rows, right.columns), left, right, false);
    }
    let work = (left.rows * right.columns).saturating_mul(left.columns) / 8;
    let count = shares::count(team, left.rows, work);
    let mut rest = result;
    let mut shares: [Option<(Matrix<'_>, &mut [f32])>; MOST_SHARES] = std::array::from_fn(|index| {
        let rows = if index < count { shares::bounds(left.rows, index, count) } else { return None };
        let (own, others) = std::mem::take(&mut rest).split_at_mut(rows.len() * right.columns);
        rest = others;
        Some((left.some_rows(rows), own))
    });
    team.each(&mut shares[..count], |_, share| {
        if let Some((left, result)) = share {
            multiply(MatrixMut::new(result, left.rows, right.columns), *left, right, false);
        }
    });
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
    ROOM.with_borrow_mut(|room| {
        room.resize(ROOM_LEN, 0.0);
        if !accumulate && is_better_turned(left, right) {
            multiply_turned(room, result, left, right);
        } else {
            multiply_in(room, result, left, right, accumulate);
        }
    });
}

/// Whether to make the product the other way round: a large weight that stands the wrong way for panels is then read
/// where it lies, and only the few rows of the batch are packed.
fn is_better_turned(left: Matrix<'_>, right: Matrix<'_>) -> bool {
    let (rows, columns) = (left.rows, right.columns);
    let stands = left.column_stride == 1 && right.row_stride == 1 && right.column_stride > 1;
    stands && columns >= 2 * rows && (8..=COLUMNS).contains(&rows) && rows * columns <= TURNED
}

/// Writes `left * right` as the turned product of both turned.
fn multiply_turned(room: &mut [f32], result: MatrixMut<'_>, left: Matrix<'_>, right: Matrix<'_>) {
    let (room, turned) = room.split_at_mut(ROOM_LEN - TURNED);
    let (rows, columns) = (left.rows, right.columns);
    let turned = &mut turned[..rows * columns];
    multiply_in(room, MatrixMut::new(turned, columns, rows), right.transposed(), left.transposed(), false);
    turn(result.values, result.row_stride, turned, rows, columns, rows);
}

/// Takes the memory that this thread's products need, so that none of them has to later.
pub fn prepare_thread() {
    ROOM.with_borrow_mut(|room| room.resize(ROOM_LEN, 0.0));
}

/// Whether to read panels of the right factor where they lie.
fn is_better_in_place(rows: usize, right: Matrix<'_>) -> bool {
    let few = if right.row_stride.is_multiple_of(CLASHING) { FEW } else { 2 * FEW };
    rows <= few && right.column_stride == 1
}

/// Block by block: columns, then depth, then rows.
fn multiply_in(
    room: &mut [f32],
    result: MatrixMut<'_>,
    left: Matrix<'_>,
    right: Matrix<'_>,
    accumulate: bool,
) {
    let (panels, tiles) = room.split_at_mut(COLUMNS * DEPTH);
    let MatrixMut { values, rows, columns, row_stride } = result;
    let in_place = is_better_in_place(rows, right);
    let mut end = 0;
    while end < columns {
        let first = end;
        end = columns.min(first + COLUMNS);
        if in_place && end - first > panel::width() {
            // What does not fill a panel is packed by itself.
            end -= (end - first) % panel::width();
        }
        let own = first..end;
        let wide = own.len().next_multiple_of(panel::width());
        for begin in (0..right.rows).step_by(DEPTH) {
            let depth = DEPTH.min(right.rows - begin);
            let right = if in_place && own.len() == wide {
                Right::in_place(&right.values[begin * right.row_stride + first..], right.row_stride)
            } else {
                let panels = &mut panels[..depth * wide];
                pack(panels, right, begin..begin + depth, own.clone());
                Right::packed(panels, depth)
            };
            for row in (0..rows).step_by(ROWS) {
                let count = ROWS.min(rows - row);
                let source = &left.values[row * left.row_stride + begin * left.column_stride..];
                let left = if left.column_stride == 1 {
                    Left::Rows(source, left.row_stride)
                } else {
                    tile_up(tiles, source, left.column_stride, count, depth);
                    Left::Tiles(tiles)
                };
                let target = Target {
                    values: &mut values[row * row_stride + first..],
                    rows: count,
                    columns: own.len(),
                    row_stride,
                    add: accumulate || begin > 0,
                };
                panel::sweep(target, left, right, depth);
            }
        }
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
            product(&Team::default(), &mut result, left, right);
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

    #[test]
    fn blocks_add_up() {
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
    fn either_way_round_gives_the_same() {
        let (m, n, k) = (9, 300, 270);
        let mut rng = Rng::keyed(1, "turned", &[]);
        let (a, b) = (random(&mut rng, m * k), random(&mut rng, k * n));
        let (left, right) = (Matrix::new(&a, m, k), Matrix::new(&b, n, k).transposed());
        assert!(is_better_turned(left, right));
        let (mut turned, mut plain) = (vec![f32::NAN; m * n], vec![0.0; m * n]);
        multiply(MatrixMut::new(&mut turned, m, n), left, right, false);
        multiply(MatrixMut::new(&mut plain, m, n), left, right, true);
        for (turned, plain) in turned.iter().zip(&plain) {
            assert!((turned - plain).abs() < 1e-4, "{turned} {plain}");
        }
    }
}
