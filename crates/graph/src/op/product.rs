//! Matrix products, each with an epilogue: what happens to every element of the result while it is still in the cache.

use super::elementwise::Elementwise;
use super::matrix::{Matrix, product};
use super::{Op, Operator, work};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// `left * right`, either one transposed, each seen as a matrix of its last size. The inputs are the two factors, then
/// the operands of the epilogue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Product {
    /// Whether the left factor is `[inner, lines]`.
    pub left_transposed: bool,
    /// Whether the right factor is `[columns, inner]`, as a layer's weight is.
    pub right_transposed: bool,
    /// What follows, element by element.
    pub epilogue: Elementwise,
}

impl Product {
    /// `left * right`.
    pub fn plain() -> Product {
        Product::default()
    }

    /// `left * right^T`: a layer's product with its weight.
    pub fn with_transposed() -> Product {
        Product { right_transposed: true, ..Product::default() }
    }

    /// `left^T * right`: a sum over rows.
    pub fn over_rows() -> Product {
        Product { left_transposed: true, ..Product::default() }
    }
}

impl Operator for Product {
    fn describe(&self) -> String {
        let mark = |transposed: bool| if transposed { "'" } else { "" };
        let name = format!("product a{} b{}", mark(self.left_transposed), mark(self.right_transposed));
        self.epilogue.behind(name)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let [left, right, operands @ ..] = inputs else {
            return Err(format!("expected 2 factors, got {}", inputs.len()));
        };
        let shape = if self.left_transposed {
            if left.has_rows() != right.has_rows() || left.lines() != right.lines() {
                return Err(format!("expected as many lines as {left}, got {right}"));
            }
            Shape::fixed(&[left.width(), right.width()])
        } else {
            if right.has_rows() || right.sizes().len() != 2 {
                return Err(format!("expected a matrix without rows, got {right}"));
            }
            let [mut inner, mut columns] = [right.sizes()[0], right.sizes()[1]];
            if self.right_transposed {
                (inner, columns) = (columns, inner);
            }
            if left.width() != inner {
                return Err(format!("expected {inner} numbers, got {}", left.width()));
            }
            left.with_width(columns)
        };
        self.epilogue.check(&shape, operands)?;
        Ok(shape)
    }

    fn is_by_rows(&self, _: &Batch) -> bool {
        !self.left_transposed
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let matrix = |index: usize, transposed: bool| {
            let width = call.shapes[index].width();
            let lines = call.inputs[index].len().checked_div(width).unwrap_or(0);
            let matrix = Matrix::new(call.inputs[index], lines, width);
            if transposed { matrix.transposed() } else { matrix }
        };
        let (left, right) = (matrix(0, self.left_transposed), matrix(1, self.right_transposed));
        product(call.pass.team, call.output, left, right);
        self.epilogue.apply(call.output, call.shape.width(), &call.inputs[2..]);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        assert!(self.epilogue.steps.is_empty() && !self.left_transposed, "fusion comes after gradients");
        let [left, right] = [tape.input(node, 0), tape.input(node, 1)];
        if tape.wants(right) {
            let factors = if self.right_transposed { [delta, left] } else { [left, delta] };
            let gradient = tape.add(Op::Product(Product::over_rows()), &factors);
            tape.give(right, gradient);
        }
        if tape.wants(left) {
            let back = Product { right_transposed: !self.right_transposed, ..Product::default() };
            let gradient = tape.add(Op::Product(back), &[delta, right]);
            tape.give(left, gradient);
        }
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        let inner = if self.left_transposed { inputs[0].lines() } else { inputs[0].width() };
        work(&[2, inner, shape.per_row()]) + self.epilogue.flops(&[], shape)
    }
}
