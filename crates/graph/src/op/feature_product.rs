//! The matrix product of the features with the first weight, for dense rows, sparse rows and symbols.

use super::elementwise::Elementwise;
use super::matrix::{Matrix, product};
use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Features, Result};

/// `features * weight^T`. The inputs are the `[units, width]` weight and the operands of the epilogue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeatureProduct {
    pub epilogue: Elementwise,
}

/// The gradient of the weight: `delta^T * features`.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureGradient {
    /// Elements per row of the features.
    pub width: usize,
}

impl Operator for FeatureProduct {
    fn describe(&self) -> String {
        self.epilogue.append_to("product of features".into())
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        let [weight, operands @ ..] = inputs else {
            return Err("expected a weight".into());
        };
        let shape = Shape::rows(&[weight.sizes()[0]]);
        self.epilogue.check(&shape, operands)?;
        Ok(shape)
    }

    fn is_rowwise(&self, batch: &Batch) -> bool {
        matches!(batch.features, Features::Dense(_))
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (rows, weight) = (call.rows, call.inputs[0]);
        let [units, width] = [call.shapes[0].sizes()[0], call.shapes[0].sizes()[1]];
        match &call.context.batch.features {
            Features::Dense(values) => {
                let weight = Matrix::new(weight, units, width).transposed();
                let values = &values[call.first_row * width..][..rows * width];
                product(call.context.team, call.output, Matrix::new(values, rows, width), weight);
            }
            _ => call.context.workspace.sparse.forward(call.output, weight, units, width),
        }
        self.epilogue.apply(call.output, units, &call.inputs[1..]);
        Ok(())
    }

    /// None: a pass after differentiation creates this operator.
    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64 {
        2 * inputs[0].len(0) as u64 + self.epilogue.flops(&[], shape)
    }
}

impl Operator for FeatureGradient {
    fn describe(&self) -> String {
        "gradient of features' product".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(Shape::fixed(&[inputs[0].width(), self.width]))
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (rows, delta, units) = (call.rows, call.inputs[0], call.shapes[0].width());
        match &call.context.batch.features {
            Features::Dense(values) => {
                let delta = Matrix::new(delta, rows, units).transposed();
                product(call.context.team, call.output, delta, Matrix::new(values, rows, self.width));
            }
            _ => call.context.workspace.sparse.weight_gradient(call.output, delta, units, self.width),
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, _: &[&Shape], shape: &Shape) -> u64 {
        2 * shape.len(0) as u64
    }
}
