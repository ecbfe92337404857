//! Shape queries, reshaping and permutation of axes, mostly without moving memory.

use super::attributes::Attributes;
use super::constant::{ConstantTensor, SymInt, TensorData};
use super::fold;
use super::importer::Importer;
use super::value::Value;
use super::view::{self, View};
use crate::input::Input;
use crate::onnx::proto::{NodeProto, data_type};

impl Importer<'_> {
    /// `Cast`: only casts without effect on values that depend on the rows.
    pub fn cast(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let to = attributes.required_int("to")?;
        let item = self.value(node.input.first().map_or("", String::as_str))?;
        let kind = i32::try_from(to).unwrap_or(0);
        let keeps = match (&item, kind) {
            (_, data_type::FLOAT | data_type::DOUBLE) => true,
            (Value::Symbols, data_type::INT32 | data_type::INT64) => true,
            (Value::Filled(value), data_type::INT32 | data_type::INT64) => value.fract() == 0.0,
            _ => false,
        };
        match keeps {
            true => self.identity(node),
            false => Err(format!(
                "attribute `to` = {to}: values that depend on the rows can only be cast to float (1) or double (11)"
            )),
        }
    }

    pub fn identity(&mut self, node: &NodeProto) -> Result<Value, String> {
        let item = self.value(node.input.first().map_or("", String::as_str))?;
        Ok(match item {
            // Exporters merge initializers of equal value; the Identity restores a parameter of its own.
            Value::Weight(mut weight) => {
                weight.name = node.output.first().cloned().unwrap_or_default();
                Value::Weight(weight)
            }
            item => item,
        })
    }

    /// A constant or weight of that name.
    pub fn constant(&self, name: &str) -> Result<ConstantTensor, String> {
        match self.value(name)? {
            Value::Constant(constant) => Ok(constant),
            Value::Weight(weight) => Ok(weight.tensor),
            _ => Err(format!("`{name}` depends on the rows")),
        }
    }

    /// The axes: an input or, in older operator sets, an attribute.
    fn axes(&self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Option<Vec<i64>>, String> {
        match (node.input.get(1).filter(|name| !name.is_empty()), attributes.ints("axes")) {
            (Some(name), _) => self.constant(name)?.known_ints().map(Some),
            (None, axes) => Ok(axes.map(<[i64]>::to_vec)),
        }
    }

    fn sizes(&self, name: &str) -> Result<Vec<SymInt>, String> {
        let known = |sizes: &[usize]| sizes.iter().map(|size| SymInt::Known(*size as i64)).collect();
        Ok(match self.value(name)? {
            Value::View(view) => view.sizes(),
            Value::Constant(constant) => known(&constant.sizes),
            Value::Weight(weight) => known(&weight.tensor.sizes),
            Value::Symbols => {
                let Input::Symbols { window, .. } = self.builder.input else {
                    return Err("the data has no symbols".into());
                };
                vec![SymInt::TimesRows(1), SymInt::Known(window as i64)]
            }
            _ => return Err("the shape of its input is not known".into()),
        })
    }

    pub fn shape_op(&mut self, name: &str, attributes: Attributes<'_>) -> Result<Value, String> {
        let sizes = self.sizes(name)?;
        let end = attributes.optional_int("end").unwrap_or(i64::MAX);
        let span = fold::slice_range(attributes.int("start", 0), end, 1, sizes.len())?;
        Ok(Value::Constant(ConstantTensor::vector(sizes[span].to_vec())))
    }

    pub fn element_count(&mut self, name: &str) -> Result<Value, String> {
        let mut total = SymInt::Known(1);
        for size in self.sizes(name)? {
            total = match (total, size) {
                (SymInt::Known(a), SymInt::Known(b)) => SymInt::Known(a.saturating_mul(b)),
                (SymInt::Known(a) | SymInt::TimesRows(a), SymInt::TimesRows(b))
                | (SymInt::TimesRows(a), SymInt::Known(b)) => SymInt::TimesRows(a.saturating_mul(b)),
            };
        }
        Ok(Value::Constant(ConstantTensor { sizes: vec![], data: TensorData::Ints(vec![total]) }))
    }

    pub fn reshape(&mut self, name: &str, sizes: &str, attributes: Attributes<'_>) -> Result<Value, String> {
        let sizes = self.constant(sizes)?;
        match self.value(name)? {
            Value::Weight(mut weight) if !weight.transposed => {
                let folded = fold::fold("Reshape", attributes, &[&weight.tensor, &sizes]);
                weight.tensor = folded.unwrap_or_else(|| Err("cannot be reshaped".into()))?;
                Ok(Value::Weight(weight))
            }
            Value::Filled(value) => Ok(Value::Filled(value)),
            _ => {
                let view = self.lazy_view(name)?;
                let zero = attributes.int("allowzero", 0) != 0;
                let target = view::reshape_target(&view, sizes.ints()?, zero, self.exported_rows)?;
                self.reshaped(&view, &target).map(Value::View)
            }
        }
    }

    pub fn flatten(&mut self, name: &str, axis: i64) -> Result<Value, String> {
        let view = self.lazy_view(name)?;
        let axis = if axis == view.axes.len() as i64 { view.axes.len() } else { view.normalize_axis(axis)? };
        let axes = vec![view.axes[..axis].concat(), view.axes[axis..].concat()];
        Ok(Value::View(View { axes, ..view }))
    }

    fn reshaped(&mut self, view: &View, target: &[SymInt]) -> Result<View, String> {
        if let Some(view) = view.reshaped(target) {
            return Ok(view);
        }
        // If the new axes do not align with the memory dims, the value is made contiguous first.
        let factor = view.factor;
        let node = self.contiguous(view)?;
        let flat = View::new(node, &[view.per_row()]);
        let reshaped = flat.reshaped(target).ok_or("its new shape does not fit the number of elements")?;
        Ok(View { factor, ..reshaped })
    }

    pub fn transpose(&mut self, name: &str, attributes: Attributes<'_>) -> Result<Value, String> {
        let wanted = attributes.ints("perm");
        match self.value(name)? {
            Value::Weight(mut weight)
                if weight.file_shape.len() == 2 && weight.tensor.sizes == weight.file_shape =>
            {
                let turns = wanted.is_none_or(|order| order == [1, 0]);
                weight.transposed ^= turns;
                Ok(Value::Weight(weight))
            }
            Value::Filled(value) => Ok(Value::Filled(value)),
            _ => {
                let view = self.lazy_view(name)?;
                let rank = view.axes.len();
                let order: Vec<i64> =
                    wanted.map_or_else(|| (0..rank as i64).rev().collect(), <[i64]>::to_vec);
                let order = order
                    .iter()
                    .map(|axis| view.normalize_axis(*axis))
                    .collect::<Result<Vec<usize>, String>>()?;
                if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
                    return Err("attribute `perm` is not a permutation of the axes".into());
                }
                let axes = order.iter().map(|axis| view.axes[*axis].clone()).collect();
                Ok(Value::View(View { axes, ..view }))
            }
        }
    }

    pub fn squeeze(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let name = node.input.first().map_or("", String::as_str);
        let axes = self.axes(node, attributes)?;
        if let Value::Filled(value) = self.value(name)? {
            return Ok(Value::Filled(value));
        }
        let mut view = self.lazy_view(name)?;
        let axes = match axes {
            Some(axes) => {
                axes.iter().map(|axis| view.normalize_axis(*axis)).collect::<Result<Vec<usize>, String>>()?
            }
            None => (0..view.axes.len()).filter(|axis| view.axes[*axis].is_empty()).collect(),
        };
        if axes.iter().any(|axis| !view.axes[*axis].is_empty()) {
            return Err("attribute or input `axes`: an axis is not of size 1".into());
        }
        let mut axis = 0;
        view.axes.retain(|_| {
            axis += 1;
            !axes.contains(&(axis - 1))
        });
        Ok(Value::View(view))
    }

    pub fn unsqueeze(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let name = node.input.first().map_or("", String::as_str);
        let axes = self.axes(node, attributes)?.ok_or("`axes` is missing")?;
        match self.value(name)? {
            Value::Filled(value) => Ok(Value::Filled(value)),
            Value::Weight(mut weight) if !weight.transposed => {
                let axes = ConstantTensor::vector(axes.into_iter().map(SymInt::Known).collect());
                let folded = fold::fold("Unsqueeze", attributes, &[&weight.tensor, &axes]);
                weight.tensor = folded.unwrap_or_else(|| Err("cannot be reshaped".into()))?;
                Ok(Value::Weight(weight))
            }
            _ => {
                let mut view = self.lazy_view(name)?;
                let rank = view.axes.len() + axes.len();
                let mut indices = axes
                    .iter()
                    .map(|axis| view::normalize_axis(*axis, rank))
                    .collect::<Result<Vec<usize>, String>>()?;
                indices.sort_unstable();
                for index in indices {
                    view.axes.insert(index.min(view.axes.len()), Vec::new());
                }
                Ok(Value::View(view))
            }
        }
    }

    /// `Expand` and `ConstantOfShape` to a shape that contains the rows.
    pub fn expand(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let name = node.input.first().map_or("", String::as_str);
        if node.op_type == "ConstantOfShape" {
            let Some(value) = attributes.tensor("value") else { return Ok(Value::Filled(0.0)) };
            let value = fold::as_floats(&ConstantTensor::read(value, false)?)?.scalar();
            return value.map(Value::Filled).ok_or_else(|| "attribute `value` must have one element".into());
        }
        let sizes = self.constant(node.input.get(1).map_or("", String::as_str))?;
        match self.value(name)? {
            Value::Constant(constant) if constant.scalar().is_some() => {
                Ok(Value::Filled(constant.scalar().unwrap_or(0.0)))
            }
            Value::Weight(weight) if weight.tensor.scalar().is_some() => {
                Ok(Value::Filled(weight.tensor.scalar().unwrap_or(0.0)))
            }
            Value::Filled(value) => Ok(Value::Filled(value)),
            Value::View(view) if view.sizes() == sizes.ints()? => Ok(Value::View(view)),
            _ => Err("repeating a value is not supported".into()),
        }
    }

    /// `OneHot` of the symbols.
    pub fn one_hot(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let [name, depth, values] = [0, 1, 2].map(|index| node.input.get(index).map_or("", String::as_str));
        let (Value::Symbols, Input::Symbols { window, vocabulary }) = (self.value(name)?, self.builder.input)
        else {
            return Err("supported only for the symbols of a text".into());
        };
        let axis = attributes.int("axis", -1);
        if !matches!(axis, -1 | 2) {
            return Err(format!("attribute `axis` = {axis} is not supported (-1 is)"));
        }
        if fold::as_floats(&self.constant(depth)?)?.scalar() != Some(vocabulary as f32) {
            return Err(format!("expected a depth of {vocabulary}, the number of symbols of the data"));
        }
        match &fold::as_floats(&self.constant(values)?)?.data {
            TensorData::Floats(values) if **values == [0.0, 1.0] => {}
            _ => return Err("only the values 0 and 1 are supported".into()),
        }
        let node = self.builder.features(&[window, vocabulary]);
        Ok(Value::View(View::new(node, &[window, vocabulary])))
    }
}
