//! Products with weights (`Gemm`, `MatMul`) and embeddings.

use super::attributes::Attributes;
use super::importer::Importer;
use super::value::{Value, Weight};
use super::view::View;
use super::weights::Operand;
use crate::input::Input;
use crate::onnx::proto::NodeProto;
use crate::op::elementwise::ElementwiseStep;
use crate::op::product::Product;
use crate::op::{Op, embedding};
use thalweg_core::model::{Density, TensorRole};

impl Importer<'_> {
    pub fn gemm(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        if attributes.float("alpha", 1.0) != 1.0 || attributes.float("beta", 1.0) != 1.0 {
            return Err("attributes `alpha` and `beta` other than 1 are not supported".into());
        }
        let [read, weight] = [0, 1].map(|index| node.input.get(index).cloned().unwrap_or_default());
        let view = self.view(&read)?;
        if attributes.int("transA", 0) != 0 {
            return Err("attribute `transA` other than 0 is not supported".into());
        }
        if view.axes.len() != 2 {
            return Err("only products of rows with a weight are supported".into());
        }
        let weight = self.weight(&weight)?;
        let product = self.product(&view, &weight, attributes.int("transB", 0) != 0)?;
        match node.input.get(2).filter(|name| !name.is_empty()) {
            Some(bias) => {
                let bias = Operand::Weight(self.weight(bias)?);
                self.apply_operand(&product, &bias, ElementwiseStep::Bias).map(Value::View)
            }
            None => Ok(Value::View(product)),
        }
    }

    /// `MatMul`: a product with a weight, or part of an attention.
    pub fn matmul(&mut self, left: &str, right: &str) -> Result<Value, String> {
        match (self.value(left)?, self.value(right)?) {
            (Value::Scores(scores), _) if scores.is_normalized => {
                let values = self.view(right)?;
                self.attention(&scores, &values).map(Value::View)
            }
            (_, Value::View(_)) if matches!(self.value(left)?, Value::View(_)) => {
                let (queries, keys) = (self.lazy_view(left)?, self.lazy_view(right)?);
                self.attention_scores(queries, keys)
            }
            (_, Value::Weight(_) | Value::Constant(_)) => {
                let view = self.view(left)?;
                let weight = self.weight(right)?;
                self.product(&view, &weight, false).map(Value::View)
            }
            _ => Err("only products of rows with a weight are supported".into()),
        }
    }

    /// The product of a value's last axis with a weight, `columns x inner` if transposed.
    fn product(&mut self, view: &View, weight: &Weight, transposed: bool) -> Result<View, String> {
        // The parameter keeps the orientation it has in the file.
        let transposed = transposed != weight.transposed;
        let &[first, second] = weight.file_shape.as_slice() else {
            return Err(format!("`{}`: expected a matrix, got shape {:?}", weight.name, weight.file_shape));
        };
        let (inner, columns) = if transposed { (second, first) } else { (first, second) };
        let last = view.axes.len() - 1;
        let own = view.size(last)?;
        if own != inner || weight.file_shape.len() != weight.tensor.sizes.len() {
            return Err(format!("`{}`: expected a last axis of size {inner}, got {own}", weight.name));
        }
        // If the memory order differs from the axis, the weight is permuted instead of the value.
        let (view, width, permutation) = self.with_innermost_dims(view, &view.dims_of(last))?;
        let order = |values: &[f32]| -> Vec<f32> {
            match transposed {
                true => {
                    values.chunks(inner).flat_map(|row| permutation.iter().map(|index| row[*index])).collect()
                }
                false => permutation
                    .iter()
                    .flat_map(|index| &values[index * columns..(index + 1) * columns])
                    .copied()
                    .collect(),
            }
        };
        let weight = self.trainable(weight, &[first, second], order);
        self.set_file_permutation(weight, &[first, second], usize::from(transposed), &permutation);
        let input = self.with_last_dim(&view, width)?;
        let op = Product { right_transposed: transposed, ..Product::default() };
        let node = self.builder.add(Op::Product(op), &[input, weight])?;
        let mut result = View { node, ..view };
        let kept = result.dims.len() - result.axes[last].len();
        result.dims.truncate(kept);
        result.axes[last] = result.add_dim(columns);
        Ok(result)
    }

    pub fn embedding(&mut self, table: &Weight) -> Result<Value, String> {
        let Input::Symbols { window, vocabulary } = self.builder.input else {
            return Err("expected symbols of a text".into());
        };
        let &[symbols, width] = table.file_shape.as_slice() else {
            return Err(format!("`{}`: expected a matrix, got shape {:?}", table.name, table.file_shape));
        };
        if table.transposed || symbols < vocabulary {
            return Err(format!(
                "`{}` has vectors for {symbols} symbols, but the data has {vocabulary}",
                table.name
            ));
        }
        let sizes = [symbols, width];
        let table = self.parameter(table, &sizes, TensorRole::Trainable, Density::Rows, <[f32]>::to_vec);
        let node = self.builder.add(Op::Embedding(embedding::Embedding { window }), &[table])?;
        Ok(Value::View(View::new(node, &[window, width])))
    }
}
