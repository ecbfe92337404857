//! Column sums: the gradient of a bias. Accumulated in double precision, since a bias acts on every row.

use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use crate::kernel::columns;
use crate::partition;
use crate::team::{MAX_CHUNKS, Team};
use thalweg_core::Result;

/// The sum of all vectors of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnSums;

impl Operator for ColumnSums {
    fn describe(&self) -> String {
        "column sums".into()
    }

    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String> {
        expect_inputs(inputs, 1)?;
        Ok(Shape::fixed(&[inputs[0].width()]))
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()> {
        column_sums(call.context.team, call.output, call.inputs[0], &mut call.context.workspace.sums);
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        inputs[0].per_row() as u64
    }
}

/// Writes the column sums; threads split the vectors, and their partial sums are added in order.
fn column_sums(team: &Team, result: &mut [f32], values: &[f32], sums: &mut Vec<f64>) {
    let width = result.len().max(1);
    let vectors = values.len() / width;
    let count = partition::chunk_count(team, vectors, values.len());
    sums.clear();
    sums.resize(count * width, 0.0);
    let mut rest = sums.chunks_exact_mut(width);
    let mut chunks: [Option<&mut [f64]>; MAX_CHUNKS] = std::array::from_fn(|_| rest.next());
    team.for_each(&mut chunks[..count], |index, sums| {
        let own = partition::chunk_range(vectors, count, index);
        if let Some(sums) = sums {
            columns::add_vectors(sums, &values[own.start * width..own.end * width]);
        }
    });
    let (total, others) = sums.split_at_mut(width);
    for partial in others.chunks_exact(width) {
        total.iter_mut().zip(partial).for_each(|(total, partial)| *total += partial);
    }
    for (result, sum) in result.iter_mut().zip(total) {
        *result = *sum as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_summed() {
        let mut result = [f32::NAN; 2];
        column_sums(&Team::default(), &mut result, &[1.0, 2.0, 3.0, 4.0], &mut Vec::new());
        assert_eq!(result, [4.0, 6.0]);
        column_sums(&Team::default(), &mut result, &[], &mut Vec::new());
        assert_eq!(result, [0.0, 0.0]);
    }
}
