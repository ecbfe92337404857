//! `ReduceMean`, `GlobalAveragePool`, `LayerNormalization` and `BatchNormalization`.

use super::attributes::Attributes;
use super::importer::Importer;
use super::value::{NormStage, Value};
use super::view::View;
use super::weights::Operand;
use crate::onnx::proto::NodeProto;
use crate::op::Op;
use crate::op::batch_normalize::{BatchNormalize, MOMENTUM};
use crate::op::elementwise::ElementwiseStep;
use crate::op::layer_normalize::LayerNormalize;
use crate::op::pool::{Pool, Pooling};
use crate::op::window::Window;
use thalweg_core::model::{Density, TensorRole};

impl Importer<'_> {
    /// The mean over some axes, which keep size 1 or are dropped.
    pub fn mean_over(&mut self, view: &View, axes: &[usize], keep: bool) -> Result<View, String> {
        let mut count = 1;
        for axis in axes {
            count *= view.size(*axis)?;
        }
        let gone: Vec<usize> = axes.iter().flat_map(|axis| view.dims_of(*axis)).collect();
        let kept = view.dims.iter().map(|(dim, _)| *dim).filter(|dim| !gone.contains(dim));
        let order: Vec<usize> = gone.iter().copied().chain(kept).collect();
        let ordered = self.permute_dims(view, &order)?;
        let rest = view.per_row() / count.max(1);
        // Global mean pooling over an image of height `count` and width 1.
        let image = self.reshape_node(ordered.node, &[count, 1, rest])?;
        let pool = Pool { pooling: Pooling::Mean, window: Window::new([count, 1]) };
        let mut result = View { node: self.builder.add(Op::Pool(pool), &[image])?, ..ordered };
        result.dims.drain(..gone.len());
        result.node = self.reshape_node(result.node, &[rest])?;
        for axis in (0..result.axes.len()).rev().filter(|axis| axes.contains(axis)) {
            match keep {
                true => result.axes[axis].clear(),
                false => drop(result.axes.remove(axis)),
            }
        }
        Ok(result)
    }

    pub fn global_average_pool(&mut self, name: &str) -> Result<Value, String> {
        let view = self.view(name)?;
        let axes: Vec<usize> = (2..view.axes.len()).collect();
        self.mean_over(&view, &axes, true).map(Value::View)
    }

    /// `ReduceMean`, which may be part of a decomposed normalisation.
    pub fn reduce_mean(&mut self, node: &NodeProto, attributes: Attributes<'_>) -> Result<Value, String> {
        let name = node.input.first().map_or("", String::as_str);
        let rank = match self.value(name)? {
            Value::View(view) | Value::Norm(_, view) => view.axes.len(),
            _ => 0,
        };
        let keep = attributes.int("keepdims", 1) != 0;
        let noop_if_empty = attributes.int("noop_with_empty_axes", 0) != 0;
        let axes = match (node.input.get(1).filter(|name| !name.is_empty()), attributes.ints("axes")) {
            (Some(name), _) => match self.value(name)? {
                Value::Constant(constant) => constant.known_ints()?,
                _ => return Err("its axes depend on the rows".into()),
            },
            (None, axes) => axes.unwrap_or_default().to_vec(),
        };
        match (axes.is_empty(), noop_if_empty) {
            (false, _) => {}
            (true, true) => return self.identity(node),
            (true, false) => {
                return Err("a mean over all axes (no `axes`) would mix the rows of the batch".into());
            }
        }
        let axes = axes
            .iter()
            .map(|axis| super::view::normalize_axis(*axis, rank))
            .collect::<Result<Vec<_>, _>>()?;
        let last = keep && axes == [rank - 1];
        match self.value(name)? {
            Value::View(view) if last => Ok(Value::Norm(NormStage::Mean, view)),
            Value::Norm(NormStage::Squared, view) if last => Ok(Value::Norm(NormStage::Variance, view)),
            _ => {
                let view = self.view(name)?;
                self.mean_over(&view, &axes, keep).map(Value::View)
            }
        }
    }

    pub fn layer_normalization(
        &mut self,
        node: &NodeProto,
        attributes: Attributes<'_>,
    ) -> Result<Value, String> {
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let axes: Vec<usize> = (view.normalize_axis(attributes.int("axis", -1))?..view.axes.len()).collect();
        let (view, width) = self.with_innermost(&view, &axes)?;
        let input = self.with_last_dim(&view, width)?;
        let op = LayerNormalize { epsilon: attributes.float("epsilon", 1e-5) };
        let normal = self.builder.add(Op::LayerNormalize(op), &[input])?;
        let mut view = View { node: normal, ..view };
        for (index, step) in [(1, ElementwiseStep::Gain), (2, ElementwiseStep::Bias)] {
            if let Some(name) = node.input.get(index).filter(|name| !name.is_empty()) {
                let weight = Operand::Weight(self.weight(name)?);
                view = self.apply_operand(&view, &weight, step)?;
            }
        }
        Ok(Value::View(view))
    }

    /// `BatchNormalization`: the running statistics are state, gain and bias are trainable.
    pub fn batch_normalization(
        &mut self,
        node: &NodeProto,
        attributes: Attributes<'_>,
    ) -> Result<Value, String> {
        let name = |index: usize| node.input.get(index).cloned().unwrap_or_default();
        let view = self.view(&name(0))?;
        if view.axes.len() < 2 {
            return Err("expected rows with columns".into());
        }
        let (view, width) = self.with_innermost(&view, &[1])?;
        let mut statistics = Vec::new();
        for index in [3, 4] {
            let weight = self.weight(&name(index))?;
            if weight.file_shape != [width] {
                return Err(format!(
                    "`{}`: expected shape [{width}], got {:?}",
                    weight.name, weight.file_shape
                ));
            }
            statistics.push(self.parameter(
                &weight,
                &[width],
                TensorRole::Statistic,
                Density::Dense,
                <[f32]>::to_vec,
            ));
        }
        let input = self.with_last_dim(&view, width)?;
        // Trained here whether the file was exported for training or inference.
        attributes.int("training_mode", 0);
        let momentum = match attributes.float("momentum", 0.9) {
            0.9 => MOMENTUM,
            momentum if (0.0..=1.0).contains(&momentum) => 1.0 - momentum,
            momentum => return Err(format!("attribute `momentum` = {momentum} is not between 0 and 1")),
        };
        let op = BatchNormalize {
            synchronized: self.builder.synchronized,
            epsilon: attributes.float("epsilon", 1e-5),
            momentum,
        };
        let normal = self.builder.add(Op::BatchNormalize(op), &[input, statistics[0], statistics[1]])?;
        let mut view = View { node: normal, ..view };
        for (index, step) in [(1, ElementwiseStep::Gain), (2, ElementwiseStep::Bias)] {
            let mut weight = self.weight(&name(index))?;
            // One element per channel, broadcast along the axes after it.
            let inner = std::iter::repeat_n(1, view.axes.len() - 2);
            weight.tensor.sizes.extend(inner);
            view = self.apply_operand(&view, &Operand::Weight(weight), step)?;
        }
        Ok(Value::View(view))
    }
}
