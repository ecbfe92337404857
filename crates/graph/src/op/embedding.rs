//! Embedding: a trainable vector per symbol.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Features, Result};

/// Looks up the symbols of the batch in the `[vocabulary, width]` table that is its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Symbols per row.
    pub window: usize,
}

/// The gradient of the table: the gradient of each looked-up vector is added to the row of its symbol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingGradient {
    pub vocabulary: usize,
}

fn symbols(features: &Features) -> &[u32] {
    match features {
        Features::Tokens { symbols, .. } => symbols,
        _ => &[],
    }
}

impl Operator for Embedding {
    fn describe(&self) -> String {
        "embedding".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(Shape::rows(&[self.window, inputs[0].width()]))
    }

    fn is_rowwise(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let (table, width) = (call.inputs[0], call.shape.width());
        let vectors = call.output.chunks_exact_mut(width.max(1));
        let own = &symbols(&call.context.batch.features)[call.first_row * self.window..];
        for (vector, symbol) in vectors.zip(own) {
            vector.copy_from_slice(&table[*symbol as usize * width..][..width]);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let table = tape.input(node, 0);
        let op = EmbeddingGradient { vocabulary: tape.shape(table).sizes()[0] };
        let gradient = tape.add(Op::EmbeddingGradient(op), &[delta]);
        tape.accumulate(table, gradient);
    }

    fn flops(&self, _: &[&Shape], _: &Shape) -> u64 {
        0
    }
}

impl Operator for EmbeddingGradient {
    fn describe(&self) -> String {
        "embedding'".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(Shape::fixed(&[self.vocabulary, inputs[0].width()]))
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        let width = call.shape.width();
        call.output.fill(0.0);
        let deltas = call.inputs[0].chunks_exact(width.max(1));
        for (delta, symbol) in deltas.zip(symbols(&call.context.batch.features)) {
            let row = &mut call.output[*symbol as usize * width..][..width];
            row.iter_mut().zip(delta).for_each(|(sum, delta)| *sum += delta);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        inputs[0].per_row() as u64
    }
}
