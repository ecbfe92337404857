//! The sum of each column: a bias's gradient, added up in double precision, since a bias moves every row.

use super::{Operator, expect_inputs};
use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use crate::kernel::columns;
use crate::shares;
use crate::team::{MOST_SHARES, Team};
use thalweg_core::Result;

/// Sums over all lines of a value, one per column.
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

    fn run(&self, call: &mut Call<'_, '_>) -> Result<()> {
        column_sums(call.pass.team, call.output, call.inputs[0], &mut call.pass.memory.sums);
        Ok(())
    }

    fn gradient(&self, _: &mut Tape<'_>, _: NodeId, _: NodeId) {}

    fn flops(&self, inputs: &[&Shape], _: &Shape) -> u64 {
        inputs[0].per_row() as u64
    }
}

/// Writes each column's sum; threads share the lines, and their sums are added in order.
pub fn column_sums(team: &Team, result: &mut [f32], values: &[f32], sums: &mut Vec<f64>) {
    let width = result.len().max(1);
    let lines = values.len() / width;
    let count = shares::count(team, lines, values.len());
    sums.clear();
    sums.resize(count * width, 0.0);
    let mut rest = sums.chunks_exact_mut(width);
    let mut parts: [Option<&mut [f64]>; MOST_SHARES] = std::array::from_fn(|_| rest.next());
    team.each(&mut parts[..count], |index, part| {
        let own = shares::bounds(lines, index, count);
        if let Some(part) = part {
            columns::add_lines(part, &values[own.start * width..own.end * width]);
        }
    });
    let (total, others) = sums.split_at_mut(width);
    for part in others.chunks_exact(width) {
        total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
    }
    for (result, sum) in result.iter_mut().zip(total) {
        *result = *sum as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_add_up() {
        let mut result = [f32::NAN; 2];
        column_sums(&Team::default(), &mut result, &[1.0, 2.0, 3.0, 4.0], &mut Vec::new());
        assert_eq!(result, [4.0, 6.0]);
        column_sums(&Team::default(), &mut result, &[], &mut Vec::new());
        assert_eq!(result, [0.0, 0.0]);
    }
}
