//! How large a value is: fixed sizes, with or without the rows of a batch in front.

use std::fmt;

/// The sizes of a value, outermost first. The number of rows of a batch is not known before it comes, so a value that
/// has rows only says so, and every other size is a number. A sequence of 64 vectors of 128 numbers per row is
/// `rows x 64 x 128`: most operators see it as a matrix of `rows * 64` lines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    has_rows: bool,
    sizes: Vec<usize>,
}

impl Shape {
    /// A value with these sizes for every row of the batch.
    pub fn rows(sizes: &[usize]) -> Shape {
        Shape { has_rows: true, sizes: sizes.to_vec() }
    }

    /// A value that does not depend on the number of rows: a parameter, a sum over rows.
    pub fn fixed(sizes: &[usize]) -> Shape {
        Shape { has_rows: false, sizes: sizes.to_vec() }
    }

    /// Other sizes, with rows in front if this has them.
    pub fn with_sizes(&self, sizes: &[usize]) -> Shape {
        Shape { has_rows: self.has_rows, sizes: sizes.to_vec() }
    }

    /// The same with another last size.
    pub fn with_width(&self, width: usize) -> Shape {
        let mut sizes = self.sizes.clone();
        match sizes.last_mut() {
            Some(last) => *last = width,
            None => sizes.push(width),
        }
        Shape { has_rows: self.has_rows, sizes }
    }

    /// Whether it grows with the batch.
    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// The sizes behind the rows.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The last size; 1 for a single number.
    pub fn width(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Elements per row of the batch (all of them, where there are no rows).
    pub fn per_row(&self) -> usize {
        product(self.sizes.iter())
    }

    /// Elements for a batch of that many rows.
    pub fn len(&self, rows: usize) -> usize {
        if self.has_rows { rows.saturating_mul(self.per_row()) } else { self.per_row() }
    }

    /// Lines of the value seen as a matrix of its last size, per row of the batch.
    pub fn lines(&self) -> usize {
        product(self.sizes.iter().rev().skip(1))
    }
}

/// A product of sizes; those that files claim may have none that fits.
fn product<'a>(sizes: impl Iterator<Item = &'a usize>) -> usize {
    sizes.fold(1, |product, size| product.saturating_mul(*size))
}

/// `rows x 24 x 24 x 32`, `128 x 784`, `1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.has_rows.then(|| "rows".to_string());
        let sizes = self.sizes.iter().map(usize::to_string);
        let words: Vec<String> = rows.into_iter().chain(sizes).collect();
        write!(f, "{}", if words.is_empty() { "1".into() } else { words.join(" x ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_multiply_and_show() {
        let shape = Shape::rows(&[64, 128]);
        assert_eq!((shape.len(2), shape.per_row(), shape.lines(), shape.width()), (16384, 8192, 64, 128));
        assert_eq!(shape.to_string(), "rows x 64 x 128");
        assert_eq!(Shape::fixed(&[]).to_string(), "1");
        assert_eq!(Shape::fixed(&[]).len(7), 1);
        assert_eq!(Shape::rows(&[]).with_width(3), Shape::rows(&[3]));
        assert_eq!(Shape::rows(&[5]).len(0), 0);
        assert_eq!(Shape::rows(&[1 << 40, 1 << 40]).len(3), usize::MAX);
    }
}
