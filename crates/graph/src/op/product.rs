//! Matrix products (matmul) with an epilogue: elementwise steps on the result, without a node and a buffer of their own.

use super::elementwise::Elementwise;
use super::matrix::{Matrix, product};
use super::{Op, Operator, flop_count};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Result};

/// `left * right`, each viewed as a matrix with its last size as columns, either one transposed. The inputs are the two
/// factors, then the operands of the epilogue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Product {
    /// The left factor is `[inner, rows]`.
    pub left_transposed: bool,
    /// The right factor is `[columns, inner]`, like the weight of a layer.
    pub right_transposed: bool,
    pub epilogue: Elementwise,
}

impl Product {
    /// `left * right^T`: a layer's input times its weight.
    pub fn transposed_right() -> Product {
        Product { right_transposed: true, ..Product::default() }
    }

    /// `left^T * right`: a sum over rows, as in the gradient of a weight.
    pub fn transposed_left() -> Product {
        Product { left_transposed: true, ..Product::default() }
    }
}

impl Operator for Product {
    fn describe(&self) -> String {
        let mark = |transposed: bool| if transposed { "'" } else { "" };
        let name = format!("product a{} b{}", mark(self.left_transposed), mark(self.right_transposed));
        self.epilogue.append_to(name)
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let [left, right, operands @ ..] = inputs else {
            return Err(format!("expected 2 factors, got {}", inputs.len()));
        };
        let shape = if self.left_transposed {
            if left.has_rows() != right.has_rows() || left.vectors() != right.vectors() {
                return Err(format!("expected as many vectors as {left}, got {right}"));
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

    fn is_rowwise(&self, _: &Batch) -> bool {
        !self.left_transposed
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let matrix = |index: usize, transposed: bool| {
            let width = call.shapes[index].width();
            let rows = call.inputs[index].len().checked_div(width).unwrap_or(0);
            let matrix = Matrix::new(call.inputs[index], rows, width);
            if transposed { matrix.transposed() } else { matrix }
        };
        let (left, right) = (matrix(0, self.left_transposed), matrix(1, self.right_transposed));
        product(call.context.team, call.output, left, right);
        self.epilogue.apply(call.output, call.shape.width(), &call.inputs[2..]);
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        assert!(
            self.epilogue.steps.is_empty() && !self.left_transposed,
            "fusion comes after differentiation"
        );
        let [left, right] = [tape.input(node, 0), tape.input(node, 1)];
        if tape.needs_gradient(right) {
            let factors = if self.right_transposed { [delta, left] } else { [left, delta] };
            let gradient = tape.add(Op::Product(Product::transposed_left()), &factors);
            tape.accumulate(right, gradient);
        }
        if tape.needs_gradient(left) {
            let product = Product { right_transposed: !self.right_transposed, ..Product::default() };
            let gradient = tape.add(Op::Product(product), &[delta, right]);
            tape.accumulate(left, gradient);
        }
    }

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        let inner = if self.left_transposed { inputs[0].vectors() } else { inputs[0].width() };
        flop_count(&[2, inner, shape.per_row()]) + self.epilogue.flops(&[], shape)
    }
}
