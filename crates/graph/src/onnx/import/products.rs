//! Products with weights: `Gemm`, `MatMul`, embeddings.

use super::importer::Importer;
use super::item::{Item, Weight};
use super::settings::Settings;
use super::view::View;
use super::weights::Operand;
use crate::input::Input;
use crate::onnx::proto::Node;
use crate::op::elementwise::Step;
use crate::op::product::Product;
use crate::op::{Op, embedding};
use thalweg_core::model::{Density, Role};

impl Importer<'_> {
    /// `Gemm`: a product and its bias.
    pub fn gemm(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        if settings.float("alpha", 1.0) != 1.0 || settings.float("beta", 1.0) != 1.0 {
            return Err("factors (alpha, beta) other than 1 are not supported".into());
        }
        let [read, weight] = [0, 1].map(|index| node.input.get(index).cloned().unwrap_or_default());
        let view = self.view(&read)?;
        if settings.int("transA", 0) != 0 {
            return Err("attribute `transA` other than 0 is not supported".into());
        }
        if view.axes.len() != 2 {
            return Err("only products of rows with a weight are supported".into());
        }
        let weight = self.weight(&weight)?;
        let product = self.product(&view, &weight, settings.int("transB", 0) != 0)?;
        match node.input.get(2).filter(|name| !name.is_empty()) {
            Some(bias) => {
                let bias = Operand::Weight(self.weight(bias)?);
                self.with_operand(&product, &bias, Step::Bias).map(Item::View)
            }
            None => Ok(Item::View(product)),
        }
    }

    /// `MatMul`: a product with a weight, or a part of an attention.
    pub fn matmul(&mut self, left: &str, right: &str) -> Result<Item, String> {
        match (self.item(left)?, self.item(right)?) {
            (Item::Scores(scores), _) if scores.shares => {
                let values = self.view(right)?;
                self.attention(&scores, &values).map(Item::View)
            }
            (_, Item::View(_)) if matches!(self.item(left)?, Item::View(_)) => {
                let (queries, keys) = (self.lazy_view(left)?, self.lazy_view(right)?);
                self.scores(queries, keys)
            }
            (_, Item::Weight(_) | Item::Constant(_)) => {
                let view = self.view(left)?;
                let weight = self.weight(right)?;
                self.product(&view, &weight, false).map(Item::View)
            }
            _ => Err("only products of rows with a weight are supported".into()),
        }
    }

    /// The product of a value's last axis with a weight, which the reader sees as `columns x inner` if transposed.
    fn product(&mut self, view: &View, weight: &Weight, transposed: bool) -> Result<View, String> {
        // The weight stays as it is in the file.
        let transposed = transposed != weight.transposed;
        let &[first, second] = weight.own.as_slice() else {
            return Err(format!("`{}`: expected a matrix, got sizes {:?}", weight.name, weight.own));
        };
        let (inner, columns) = if transposed { (second, first) } else { (first, second) };
        let last = view.axes.len() - 1;
        let own = view.size(last)?;
        if own != inner || weight.own.len() != weight.tensor.sizes.len() {
            return Err(format!("`{}`: expected rows of {inner} numbers, got {own}", weight.name));
        }
        // Where memory has another order than the axis, the weight is turned instead of the value.
        let (view, width, places) = self.tail(view, &view.atoms_of(last))?;
        let order = |values: &[f32]| -> Vec<f32> {
            match transposed {
                true => {
                    values.chunks(inner).flat_map(|line| places.iter().map(|place| line[*place])).collect()
                }
                false => places
                    .iter()
                    .flat_map(|place| &values[place * columns..(place + 1) * columns])
                    .copied()
                    .collect(),
            }
        };
        let weight = self.learned(weight, &[first, second], order);
        self.keep_file_order(weight, &[first, second], usize::from(transposed), &places);
        let lines = self.lines(&view, width)?;
        let op = Product { right_transposed: transposed, ..Product::default() };
        let node = self.assembly.add(Op::Product(op), &[lines, weight])?;
        let mut result = View { node, ..view };
        let kept = result.atoms.len() - result.axes[last].len();
        result.atoms.truncate(kept);
        result.axes[last] = result.add_atom(columns);
        Ok(result)
    }

    /// A vector per symbol.
    pub fn embedding(&mut self, table: &Weight) -> Result<Item, String> {
        let Input::Symbols { window, vocabulary } = self.assembly.input else {
            return Err("expected symbols of a text".into());
        };
        let &[symbols, width] = table.own.as_slice() else {
            return Err(format!("`{}`: expected a matrix, got sizes {:?}", table.name, table.own));
        };
        if table.transposed || symbols < vocabulary {
            return Err(format!(
                "`{}` has vectors for {symbols} symbols, but the data has {vocabulary}",
                table.name
            ));
        }
        let sizes = [symbols, width];
        let table = self.parameter(table, &sizes, Role::Trainable, Density::Rows, <[f32]>::to_vec);
        let node = self.assembly.add(Op::Embedding(embedding::Embedding { window }), &[table])?;
        Ok(Item::View(View::new(node, &[window, width])))
    }
}
