//! `Slice`, `Split`, `Concat` and `Gather`.

use super::attributes::Attributes;
use super::constant::{ConstantTensor, SymInt};
use super::fold;
use super::importer::Importer;
use super::value::Value;
use super::view::{self, AxisPart, View};
use crate::onnx::proto::NodeProto;
use crate::op::concatenate::{Columns, Concatenate};
use crate::op::{Op, last};
use crate::pass::MAX_INPUTS;
use std::ops::Range;

impl Importer<'_> {
    /// The range `span` of an axis.
    fn slice_axis(&mut self, view: &View, axis: usize, span: Range<usize>) -> Result<View, String> {
        let size = view.size(axis)?;
        if span.is_empty() || span.end > size {
            return Err(format!("slices {span:?} of an axis of size {size}"));
        }
        if span.len() == size {
            return Ok(view.clone());
        }
        let view = match view.axes[axis].len() {
            1 => view.clone(),
            _ => self.with_innermost(view, &[axis])?.0,
        };
        // An axis of several dims is innermost now; they merge into one.
        let dims = view.dims_of(axis);
        let first_dim = view.dims.iter().position(|(dim, _)| Some(dim) == dims.first()).unwrap_or(0);
        let inner: usize = view.dims[first_dim + dims.len()..].iter().map(|(_, size)| size).product();
        let before = view.per_row() / (size * inner).max(1);
        let mut result = view.clone();
        let node = if before == 1 && span.len() == 1 && span.end == size {
            let node = self.reshape_node(view.node, &[size, inner])?;
            self.builder.add(Op::Last(last::Last), &[node])?
        } else {
            let shape = if before == 1 { vec![size * inner] } else { vec![before, size * inner] };
            let node = self.reshape_node(view.node, &shape)?;
            let columns = Columns { begin: span.start * inner, count: span.len() * inner };
            self.builder.add(Op::Columns(columns), &[node])?
        };
        result.node = node;
        result.dims.drain(first_dim + 1..first_dim + dims.len());
        result.dims[first_dim].1 = span.len();
        result.axes[axis] = vec![AxisPart::Dim(result.dims[first_dim].0)];
        if span.len() == 1 {
            result.dims.remove(first_dim);
            result.axes[axis].clear();
        }
        Ok(result)
    }

    pub fn slice(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let name = node.input.first().map_or("", String::as_str);
        let mut given = Vec::new();
        for (index, attribute) in [(1, "starts"), (2, "ends"), (3, "axes"), (4, "steps")] {
            let vector = |values: &[i64]| {
                ConstantTensor::vector(values.iter().map(|value| SymInt::Known(*value)).collect())
            };
            given.push(match node.input.get(index).filter(|name| !name.is_empty()) {
                Some(name) => Some(self.constant(name)?),
                None => attributes.ints(attribute).map(vector),
            });
        }
        if let Value::Filled(value) = self.value(name)? {
            return Ok(Value::Filled(value));
        }
        let mut view = self.view(name)?;
        let given: Vec<Option<&ConstantTensor>> = given.iter().map(Option::as_ref).collect();
        for (axis, begin, end, step) in fold::slice_specs(&given, view.axes.len())? {
            if view.axes[axis].contains(&AxisPart::Rows)
                && begin == 0
                && end >= i64::from(i32::MAX)
                && step == 1
            {
                continue;
            }
            let span = fold::slice_range(begin, end, step, view.size(axis)?)?;
            view = self.slice_axis(&view, axis, span)?;
        }
        Ok(Value::View(view))
    }

    pub fn split(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Vec<Value>, String> {
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let axis = view.normalize_axis(attributes.int("axis", 0))?;
        let (size, count) = (view.size(axis)?, node.output.len());
        let parts = attributes.int("num_outputs", count as i64);
        if parts != count as i64 {
            return Err(format!("attribute `num_outputs` = {parts}, but the node has {count} outputs"));
        }
        let lengths = match (node.input.get(1).filter(|name| !name.is_empty()), attributes.ints("split")) {
            (Some(name), _) => self.constant(name)?.known_ints()?,
            (None, Some(lengths)) => lengths.to_vec(),
            (None, None) => {
                let each = size.div_ceil(count.max(1));
                (0..count).map(|part| size.saturating_sub(part * each).min(each) as i64).collect()
            }
        };
        let mut begin = 0;
        let mut outputs = Vec::new();
        for length in lengths {
            let length = usize::try_from(length).ok().filter(|length| *length <= size - begin.min(size));
            let end = begin + length.ok_or("its parts exceed the size of the axis")?;
            outputs.push(Value::View(self.slice_axis(&view, axis, begin..end)?));
            begin = end;
        }
        Ok(outputs)
    }

    pub fn concat(&mut self, node: &NodeProto, axis: i64) -> Result<Value, String> {
        if node.input.len() > MAX_INPUTS {
            return Err(format!("more than {MAX_INPUTS} inputs are not supported"));
        }
        let views = node.input.iter().map(|name| self.view(name)).collect::<Result<Vec<View>, String>>()?;
        let first = views.first().ok_or("it has no inputs")?.clone();
        let axis = first.normalize_axis(axis)?;
        let mut nodes = Vec::new();
        let mut total = 0;
        let mut result = None;
        for view in &views {
            let others = |view: &View| {
                let mut sizes = view.sizes();
                sizes.remove(axis.min(sizes.len().saturating_sub(1)));
                sizes
            };
            if view.axes.len() != first.axes.len() || others(view) != others(&first) {
                return Err("its inputs differ in shape besides the axis".into());
            }
            // The axis goes innermost in memory, the others keep the file's order; images stay NHWC.
            let order: Vec<usize> = (0..view.axes.len())
                .filter(|other| *other != axis)
                .flat_map(|other| view.dims_of(other))
                .chain(view.dims_of(axis))
                .collect();
            let image = axis == 1 && view.axes.len() == 4;
            let order =
                if image { [view.dims_of(2), view.dims_of(3), view.dims_of(1)].concat() } else { order };
            let view = self.permute_dims(view, &order)?;
            let width = view.size(axis)?;
            nodes.push(self.as_matrix(&view, width)?);
            total += width;
            result.get_or_insert(view);
        }
        let node = self.builder.add(Op::Concatenate(Concatenate), &nodes)?;
        let mut view = result.ok_or("it has no inputs")?;
        let kept = view.dims.len() - view.axes[axis].len();
        view.dims.truncate(kept);
        view.axes[axis] = view.add_dim(total);
        Ok(Value::View(View { node, ..view }))
    }

    /// `Gather`: an embedding lookup, or one index of an axis.
    pub fn gather(&mut self, name: &str, indices: &str, axis: i64) -> Result<Value, String> {
        match (self.value(name)?, self.value(indices)?) {
            (Value::Weight(table), Value::Symbols) if axis == 0 => self.embedding(&table),
            (Value::Constant(_), Value::Symbols) if axis == 0 => {
                let table = self.weight(name)?;
                self.embedding(&table)
            }
            (Value::Weight(mut table), Value::Constant(indices)) if axis == 0 && !table.transposed => {
                let known = indices.known_ints()?;
                let all = table.tensor.sizes.first().copied().unwrap_or(0);
                if known.iter().copied().ne(0..all as i64) {
                    return Err(format!(
                        "selects rows of `{}`; only all of them in order are supported",
                        table.name
                    ));
                }
                table.tensor.sizes = [&indices.sizes, &table.tensor.sizes[1..]].concat();
                Ok(Value::Weight(table))
            }
            (Value::Filled(value), _) => Ok(Value::Filled(value)),
            (_, Value::Constant(indices)) => {
                let view = self.view(name)?;
                let axis = view.normalize_axis(axis)?;
                let &[index] = indices.known_ints()?.as_slice() else {
                    return Err("several indices of an axis are not supported".into());
                };
                let index = view::normalize_axis(index, view.size(axis)?)?;
                let mut view = self.slice_axis(&view, axis, index..index + 1)?;
                if indices.sizes.is_empty() {
                    view.axes.remove(axis);
                }
                Ok(Value::View(view))
            }
            _ => Err("only embeddings of symbols and constant indices of an axis are supported".into()),
        }
    }
}
