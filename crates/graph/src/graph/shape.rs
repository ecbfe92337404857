//! The shape of a value: fixed sizes, with or without a leading batch dimension.

use std::fmt;

/// The sizes of a value, outermost first. The batch dimension (`rows`) has no fixed size; all other sizes are known.
/// A sequence of 64 vectors of 128 numbers per row is `rows x 64 x 128`: most operators view it as a matrix with
/// `rows * 64` rows of 128 columns. To keep the two apart, comments call a row of that matrix a *vector* and a row of
/// the batch a *row*.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    has_rows: bool,
    sizes: Vec<usize>,
}

impl Shape {
    /// A shape with a batch dimension and these sizes per row.
    pub fn rows(sizes: &[usize]) -> Shape {
        Shape { has_rows: true, sizes: sizes.to_vec() }
    }

    /// A shape without a batch dimension: a parameter, a sum over rows.
    pub fn fixed(sizes: &[usize]) -> Shape {
        Shape { has_rows: false, sizes: sizes.to_vec() }
    }

    /// Other sizes, with the same batch dimension.
    pub fn with_sizes(&self, sizes: &[usize]) -> Shape {
        Shape { has_rows: self.has_rows, sizes: sizes.to_vec() }
    }

    /// The same shape with another last size.
    pub fn with_width(&self, width: usize) -> Shape {
        let mut sizes = self.sizes.clone();
        match sizes.last_mut() {
            Some(last) => *last = width,
            None => sizes.push(width),
        }
        Shape { has_rows: self.has_rows, sizes }
    }

    /// Whether it has a batch dimension.
    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// The sizes without the batch dimension.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The last size; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Elements per row of the batch; all elements without a batch dimension.
    pub fn per_row(&self) -> usize {
        product(self.sizes.iter())
    }

    /// Elements for a batch of `rows` rows.
    pub fn len(&self, rows: usize) -> usize {
        if self.has_rows { rows.saturating_mul(self.per_row()) } else { self.per_row() }
    }

    /// Vectors of the last size per row of the batch.
    pub fn vectors(&self) -> usize {
        product(self.sizes.iter().rev().skip(1))
    }
}

/// The product of sizes, saturating: sizes from a file may overflow.
fn product<'a>(sizes: impl Iterator<Item = &'a usize>) -> usize {
    sizes.fold(1, |product, size| product.saturating_mul(*size))
}

/// `rows x 24 x 24 x 32`, `128 x 784`, `1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.has_rows.then(|| "rows".to_string());
        let sizes = self.sizes.iter().map(usize::to_string);
        let texts: Vec<String> = rows.into_iter().chain(sizes).collect();
        write!(f, "{}", if texts.is_empty() { "1".into() } else { texts.join(" x ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_multiply_and_display() {
        let shape = Shape::rows(&[64, 128]);
        assert_eq!((shape.len(2), shape.per_row(), shape.vectors(), shape.width()), (16384, 8192, 64, 128));
        assert_eq!(shape.to_string(), "rows x 64 x 128");
        assert_eq!(Shape::fixed(&[]).to_string(), "1");
        assert_eq!(Shape::fixed(&[]).len(7), 1);
        assert_eq!(Shape::rows(&[]).with_width(3), Shape::rows(&[3]));
        assert_eq!(Shape::rows(&[5]).len(0), 0);
        assert_eq!(Shape::rows(&[1 << 40, 1 << 40]).len(3), usize::MAX);
    }
}
