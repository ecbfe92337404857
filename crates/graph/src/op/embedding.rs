//! Embedding: a learned vector for each symbol of the batch.

use super::{Op, Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use thalweg_core::{Batch, Features, Result};

/// Looks up the batch's symbols in the `[vocabulary, width]` table it reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Embedding {
    /// Symbols per row.
    pub window: usize,
}

/// The gradient of the table: each vector's share is added to its symbol's line, the other lines are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingGradient {
    /// How many symbols there are.
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

    fn is_by_rows(&self, _: &Batch) -> bool {
        true
    }

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let (table, width) = (call.inputs[0], call.shape.width());
        let lines = call.output.chunks_exact_mut(width.max(1));
        let own = &symbols(&call.pass.batch.features)[call.first * self.window..];
        for (line, symbol) in lines.zip(own) {
            line.copy_from_slice(&table[*symbol as usize * width..][..width]);
        }
        Ok(())
    }

    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId) {
        let table = tape.input(node, 0);
        let op = EmbeddingGradient { vocabulary: tape.shape(table).sizes()[0] };
        let gradient = tape.add(Op::EmbeddingGradient(op), &[delta]);
        tape.give(table, gradient);
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

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        let width = call.shape.width();
        call.output.fill(0.0);
        let lines = call.inputs[0].chunks_exact(width.max(1));
        for (delta, symbol) in lines.zip(symbols(&call.pass.batch.features)) {
            let line = &mut call.output[*symbol as usize * width..][..width];
            line.iter_mut().zip(delta).for_each(|(sum, delta)| *sum += delta);
        }
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        inputs[0].per_row() as u64
    }
}
