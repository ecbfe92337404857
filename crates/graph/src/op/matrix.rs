//! The matrix product: splits factors into blocks and packs them for the `gemm` kernels; threads split the result by
//! rows.

use crate::executor::scratch_slice;
use crate::kernel::gemm::{
    self, BLOCK_DEPTH, LeftBlock, ResultBlock, RightPanels, pack_left, transpose_strided,
};
use crate::partition;
use crate::team::{MAX_CHUNKS, Team};
use std::cell::RefCell;
use std::ops::Range;

/// Rows of a left block, which stays in the second-level cache while the panels are read.
const BLOCK_ROWS: usize = 192;

/// Columns of a right block.
const BLOCK_COLUMNS: usize = 1024;

/// Most rows of a left factor for which packing the right one does not pay; twice as many if the rows of the right
/// one do not conflict in the cache.
const MAX_UNPACKED_ROWS: usize = 64;

/// Rows with a stride that is a multiple of this map to few cache sets.
const CONFLICT_STRIDE: usize = 256;

/// Most elements of a result that is computed transposed.
const MAX_TRANSPOSED: usize = 1 << 18;

thread_local! {
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Memory of the products of one thread. Each part is as long as the largest product needed so far: a process may have
/// a thousand threads with a small model each.
struct Scratch {
    blocks: PackedBlocks,
    /// A transposed result.
    transposed: Vec<f32>,
}

struct PackedBlocks {
    /// A packed block of the right factor.
    panels: Vec<f32>,
    /// A packed block of the left factor.
    tiles: Vec<f32>,
}

impl Scratch {
    const fn new() -> Scratch {
        let blocks = PackedBlocks { panels: Vec::new(), tiles: Vec::new() };
        Scratch { blocks, transposed: Vec::new() }
    }
}

/// A matrix view of a slice: element `(row, column)` is at `row * row_stride + column * column_stride`.
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

    pub fn strided(values: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(extent(rows, columns, row_stride) <= values.len(), "a matrix must be inside its slice");
        Matrix { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// The transposed view.
    pub fn transposed(self) -> Self {
        Matrix {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// A view of some rows.
    fn slice_rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows of the matrix");
        let begin = (rows.start * self.row_stride).min(self.values.len());
        Matrix { values: &self.values[begin..], rows: rows.len(), ..self }
    }
}

/// The result of a product; row `i` starts at `i * row_stride`.
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

    pub fn strided(values: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(extent(rows, columns, row_stride) <= values.len(), "a result must be inside its slice");
        assert!(columns <= row_stride || rows <= 1, "rows of a result must not overlap");
        MatrixMut { values, rows, columns, row_stride }
    }
}

/// Elements from the first of a matrix to its last.
fn extent(rows: usize, columns: usize, row_stride: usize) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row_stride + columns }
}

/// Transposes a row-major matrix with `columns` columns.
pub fn transpose(result: &mut [f32], values: &[f32], columns: usize) {
    assert_eq!(result.len(), values.len(), "a transposed matrix has as many elements");
    let rows = values.len().checked_div(columns).unwrap_or(0);
    transpose_strided(result, rows, values, columns, rows, columns);
}

/// A right factor that is packed once for many products.
pub struct Packed<'a> {
    panels: &'a [f32],
    rows: usize,
    columns: usize,
}

impl<'a> Packed<'a> {
    /// Elements of a packed matrix of this size.
    pub fn len(rows: usize, columns: usize) -> usize {
        rows * columns.next_multiple_of(gemm::panel_width())
    }

    /// Packs a matrix into a buffer of at least [`Packed::len`] elements.
    pub fn new(buffer: &'a mut [f32], matrix: Matrix<'_>) -> Packed<'a> {
        let wide = matrix.columns.next_multiple_of(gemm::panel_width());
        for begin in (0..matrix.rows).step_by(BLOCK_DEPTH) {
            let depth = BLOCK_DEPTH.min(matrix.rows - begin);
            pack_right(
                &mut buffer[begin * wide..][..depth * wide],
                matrix,
                begin..begin + depth,
                0..matrix.columns,
            );
        }
        Packed { panels: &buffer[..matrix.rows * wide], rows: matrix.rows, columns: matrix.columns }
    }
}

impl<'a> Packed<'a> {
    /// A matrix of this size that was packed into this buffer before.
    pub fn from_packed(buffer: &'a [f32], rows: usize, columns: usize) -> Packed<'a> {
        Packed { panels: &buffer[..Packed::len(rows, columns)], rows, columns }
    }
}

/// Packs a block of a right factor into panels; the last one is padded with zeros.
fn pack_right(panels: &mut [f32], matrix: Matrix<'_>, rows: Range<usize>, columns: Range<usize>) {
    let width = gemm::panel_width();
    for (index, panel) in panels.chunks_exact_mut(rows.len() * width).enumerate() {
        let begin = columns.start + index * width;
        let used = width.min(columns.end - begin);
        let source = &matrix.values[rows.start * matrix.row_stride + begin * matrix.column_stride..];
        if matrix.column_stride == 1 {
            if used == width {
                gemm::copy_rows(panel.chunks_exact_mut(width), source, matrix.row_stride);
                continue;
            }
            for (index, row) in panel.chunks_exact_mut(width).enumerate() {
                let from = &source[index * matrix.row_stride..][..used];
                row[..used].copy_from_slice(from);
                row[used..].fill(0.0);
            }
        } else {
            if used < width {
                panel.fill(0.0);
            }
            transpose_strided(panel, width, source, matrix.column_stride, used, rows.len());
        }
    }
}

/// As [`multiply`], for a packed right factor.
pub fn multiply_packed(result: MatrixMut<'_>, left: Matrix<'_>, right: &Packed<'_>, accumulate: bool) {
    assert!(left.columns == right.rows && left.column_stride == 1, "the left factor is row-major");
    assert!(
        left.rows == result.rows && right.columns == result.columns,
        "outer sizes of a product must agree"
    );
    let MatrixMut { values, rows, columns, row_stride } = result;
    if rows == 0 || columns == 0 {
        return;
    }
    let wide = columns.next_multiple_of(gemm::panel_width());
    for begin in (0..right.rows).step_by(BLOCK_DEPTH) {
        let depth = BLOCK_DEPTH.min(right.rows - begin);
        let accumulate = accumulate || begin > 0;
        let target = ResultBlock { values: &mut *values, rows, columns, row_stride, accumulate };
        let panels = &right.panels[begin * wide..][..depth * wide];
        let left = LeftBlock::Rows(&left.values[begin..], left.row_stride);
        gemm::macro_kernel(target, left, RightPanels::packed(panels, depth), depth);
    }
}

/// `result = left * right` for a row-major result, on a thread team.
pub fn product(team: &Team, result: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    assert_eq!(result.len(), left.rows * right.columns, "the result of a product must fill its slice");
    if team.threads() == 1 {
        return multiply(MatrixMut::new(result, left.rows, right.columns), left, right, false);
    }
    let work = (left.rows * right.columns).saturating_mul(left.columns) / 8;
    let count = partition::chunk_count(team, left.rows, work);
    let mut rest = result;
    let mut chunks: [Option<(Matrix<'_>, &mut [f32])>; MAX_CHUNKS] = std::array::from_fn(|index| {
        let rows = if index < count { partition::chunk_range(left.rows, count, index) } else { return None };
        let (own, others) = std::mem::take(&mut rest).split_at_mut(rows.len() * right.columns);
        rest = others;
        Some((left.slice_rows(rows), own))
    });
    team.for_each(&mut chunks[..count], |_, chunk| {
        if let Some((left, result)) = chunk {
            multiply(MatrixMut::new(result, left.rows, right.columns), *left, right, false);
        }
    });
}

/// `result = left * right`, or `result += left * right` if `accumulate`.
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
    SCRATCH.with_borrow_mut(|scratch| {
        if !accumulate && is_faster_transposed(left, right) {
            multiply_transposed(scratch, result, left, right);
        } else {
            multiply_blocks(&mut scratch.blocks, result, left, right, accumulate);
        }
    });
}

/// Whether to compute the transposed product: a large weight in the wrong order for panels is then read in place as
/// the left factor, and only the few rows of the batch are packed.
fn is_faster_transposed(left: Matrix<'_>, right: Matrix<'_>) -> bool {
    let (rows, columns) = (left.rows, right.columns);
    let fits = left.column_stride == 1 && right.row_stride == 1 && right.column_stride > 1;
    fits && columns >= 2 * rows && (8..=BLOCK_COLUMNS).contains(&rows) && rows * columns <= MAX_TRANSPOSED
}

/// Computes `left * right` as the transpose of `right^T * left^T`.
fn multiply_transposed(scratch: &mut Scratch, result: MatrixMut<'_>, left: Matrix<'_>, right: Matrix<'_>) {
    let (rows, columns) = (left.rows, right.columns);
    let transposed = scratch_slice(&mut scratch.transposed, rows * columns);
    let target = MatrixMut::new(transposed, columns, rows);
    multiply_blocks(&mut scratch.blocks, target, right.transposed(), left.transposed(), false);
    transpose_strided(result.values, result.row_stride, transposed, rows, columns, rows);
}

/// Allocates the scratch memory of this thread ahead of its first product, for products of any size: which helper of a
/// team meets the largest is left to chance.
pub fn prepare_thread() {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch_slice(&mut scratch.blocks.panels, BLOCK_COLUMNS * BLOCK_DEPTH);
        scratch_slice(&mut scratch.blocks.tiles, BLOCK_ROWS * BLOCK_DEPTH);
        scratch_slice(&mut scratch.transposed, MAX_TRANSPOSED);
    });
}

/// Whether to read panels of the right factor in place.
fn is_faster_in_place(rows: usize, right: Matrix<'_>) -> bool {
    let conflicts = right.row_stride.is_multiple_of(CONFLICT_STRIDE);
    let max_rows = if conflicts { MAX_UNPACKED_ROWS } else { 2 * MAX_UNPACKED_ROWS };
    rows <= max_rows && right.column_stride == 1
}

/// The blocked product: loops over blocks of columns, then depth, then rows.
fn multiply_blocks(
    PackedBlocks { panels, tiles }: &mut PackedBlocks,
    result: MatrixMut<'_>,
    left: Matrix<'_>,
    right: Matrix<'_>,
    accumulate: bool,
) {
    let MatrixMut { values, rows, columns, row_stride } = result;
    let in_place = is_faster_in_place(rows, right);
    let mut end = 0;
    while end < columns {
        let first = end;
        end = columns.min(first + BLOCK_COLUMNS);
        if in_place && end - first > gemm::panel_width() {
            // The columns that do not fill a panel are packed in a block of their own.
            end -= (end - first) % gemm::panel_width();
        }
        let block = first..end;
        let wide = block.len().next_multiple_of(gemm::panel_width());
        for begin in (0..right.rows).step_by(BLOCK_DEPTH) {
            let depth = BLOCK_DEPTH.min(right.rows - begin);
            let right = if in_place && block.len() == wide {
                RightPanels::in_place(&right.values[begin * right.row_stride + first..], right.row_stride)
            } else {
                let panels = scratch_slice(panels, depth * wide);
                pack_right(panels, right, begin..begin + depth, block.clone());
                RightPanels::packed(panels, depth)
            };
            for row in (0..rows).step_by(BLOCK_ROWS) {
                let count = BLOCK_ROWS.min(rows - row);
                let source = &left.values[row * left.row_stride + begin * left.column_stride..];
                let left = if left.column_stride == 1 {
                    LeftBlock::Rows(source, left.row_stride)
                } else {
                    let tiles = scratch_slice(tiles, count * depth);
                    pack_left(tiles, source, left.column_stride, count, depth);
                    LeftBlock::Tiles(tiles)
                };
                let target = ResultBlock {
                    values: &mut values[row * row_stride + first..],
                    rows: count,
                    columns: block.len(),
                    row_stride,
                    accumulate: accumulate || begin > 0,
                };
                gemm::macro_kernel(target, left, right, depth);
            }
        }
    }
}

#[cfg(test)]
mod tests;
