//! Initializers as parameters: trainable weights and running statistics.

use super::constant::{ConstantTensor, TensorData};
use super::importer::Importer;
use super::value::{Value, Weight};
use super::view::View;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::op::Op;
use crate::op::elementwise::ElementwiseStep;
use thalweg_core::FileOrder;
use thalweg_core::model::{Density, TensorRole};

impl Importer<'_> {
    /// The weight or float constant of that name.
    pub fn weight(&self, name: &str) -> Result<Weight, String> {
        match self.value(name)? {
            Value::Weight(weight) => Ok(weight),
            Value::Constant(tensor) if !matches!(tensor.data, TensorData::Ints(_)) => {
                Ok(Weight::new(name, tensor))
            }
            Value::Untranslated => Err(String::new()),
            _ => Err(format!("expected `{name}` to be a weight, but it depends on the rows")),
        }
    }

    /// A trainable parameter of those sizes; `order` permutes the file's elements into memory order.
    pub fn trainable(
        &mut self,
        weight: &Weight,
        sizes: &[usize],
        order: impl Fn(&[f32]) -> Vec<f32>,
    ) -> NodeId {
        self.parameter(weight, sizes, TensorRole::Trainable, Density::Dense, order)
    }

    /// A parameter from an initializer. A matrix that several nodes read is one shared parameter. A vector is not:
    /// exporters merge vectors with equal initial values, so each reader gets its own copy.
    pub fn parameter(
        &mut self,
        weight: &Weight,
        sizes: &[usize],
        role: TensorRole,
        density: Density,
        order: impl Fn(&[f32]) -> Vec<f32>,
    ) -> NodeId {
        let initializer = match &weight.tensor.data {
            TensorData::Floats(values) => Initializer::Given(order(values).into()),
            _ => Initializer::Constant(0.0),
        };
        let is_matrix = sizes.len() > 1;
        let found = self.parameter_nodes.get(&weight.name).copied().filter(|_| is_matrix);
        if let Some(node) = found
            && let Op::Parameter(index) = self.builder.graph.node(node).op
            && self.builder.graph.parameters[index].initializer == initializer
            && self.builder.graph.parameters[index].shape == sizes
        {
            return node;
        }
        let mut name = weight.name.clone();
        if !self.parameter_names.insert(name.clone()) {
            let suffix = self.next_suffix.entry(weight.name.clone()).or_insert(2);
            while !self.parameter_names.insert(name.clone()) {
                name = format!("{}.{suffix}", weight.name);
                *suffix += 1;
            }
        }
        self.used_initializers.insert(weight.initializer.clone());
        let node = self.builder.named_tensor(name, sizes, initializer, role, density);
        self.parameter_nodes.insert(weight.name.clone(), node);
        node
    }

    /// Records that an axis of a tensor is permuted in memory: element `i` is the file's `permutation[i]`.
    pub fn set_file_permutation(
        &mut self,
        tensor: NodeId,
        sizes: &[usize],
        axis: usize,
        permutation: &[usize],
    ) {
        if permutation.iter().copied().eq(0..permutation.len()) {
            return;
        }
        let mut memory = vec![0; permutation.len()];
        permutation.iter().enumerate().for_each(|(index, source)| memory[*source] = index as u32);
        let mut lists = vec![Vec::new(); sizes.len()];
        lists[axis] = memory;
        let order = FileOrder::Permuted { sizes: sizes.to_vec(), permutations: lists };
        self.builder.set_file_order(tensor, Some(order));
    }

    /// Adds or multiplies a tensor that ONNX broadcasts over the value.
    pub fn apply_operand(
        &mut self,
        view: &View,
        operand: &Operand,
        step: ElementwiseStep,
    ) -> Result<View, String> {
        let sizes = operand.sizes();
        let rank = view.axes.len();
        let lead = rank.checked_sub(sizes.len()).ok_or("its operand has more axes than the value")?;
        let mut axes = Vec::new();
        // A tensor of one element belongs to the first axis of size 1, such as the only channel of an image.
        let mut single = operand.len() == 1;
        for (index, size) in sizes.iter().enumerate() {
            let axis = lead + index;
            let one = std::mem::take(&mut single) && view.axis(axis) == (false, 1);
            single = operand.len() == 1 && axes.is_empty() && !one;
            if *size == 1 && !one {
                continue;
            }
            let own = view.size(axis)?;
            if own != *size {
                return Err(format!("{}: expected size {own} along axis {axis}, got {size}", operand.name()));
            }
            axes.push(axis);
        }
        if axes.is_empty() {
            return Err(format!("{}: a scalar weight is not supported", operand.name()));
        }
        let wanted: Vec<usize> = axes.iter().flat_map(|axis| view.dims_of(*axis)).collect();
        let (view, width, permutation) = self.with_innermost_dims(view, &wanted)?;
        let order = |values: &[f32]| permutation.iter().map(|index| values[*index]).collect::<Vec<f32>>();
        let operand = match operand {
            Operand::Weight(weight) => {
                let own = weight.file_shape.clone();
                let parameter = self.trainable(weight, &own, order);
                self.set_file_permutation(parameter, &[width], 0, &permutation);
                parameter
            }
            Operand::Constant(constant) => match &constant.data {
                TensorData::Floats(values) => {
                    self.builder.add(Op::constant(&order(values), &[width]), &[])?
                }
                _ => return Err("expected floats".into()),
            },
        };
        let input = self.with_last_dim(&view, width)?;
        let node = self.builder.add(Op::elementwise(step), &[input, operand])?;
        Ok(View { node, ..view })
    }

    /// The value with the dims `wanted` innermost, their total size, and for each element of them its index in the
    /// order `wanted`. The dims keep their memory order if they are innermost already, so that nothing moves.
    pub fn with_innermost_dims(
        &mut self,
        view: &View,
        wanted: &[usize],
    ) -> Result<(View, usize, Vec<usize>), String> {
        let begin = view.dims.len() - wanted.len();
        let is_innermost = view.dims[begin..].iter().all(|(dim, _)| wanted.contains(dim));
        let view = match is_innermost {
            true => view.clone(),
            false => {
                let outer = view.dims.iter().map(|(dim, _)| *dim).filter(|dim| !wanted.contains(dim));
                let order: Vec<usize> = outer.chain(wanted.iter().copied()).collect();
                self.permute_dims(view, &order)?
            }
        };
        let width: usize = view.dims[begin..].iter().map(|(_, size)| size).product();
        let stride = |dim: usize| {
            let inner = wanted.iter().skip_while(|other| **other != dim).skip(1);
            inner.map(|dim| view.dim_size(*dim)).product::<usize>()
        };
        let strides: Vec<(usize, usize)> =
            view.dims[begin..].iter().map(|(dim, size)| (*size, stride(*dim))).collect();
        let wanted_index = |mut index: usize| {
            let mut result = 0;
            for (size, stride) in strides.iter().rev() {
                result += index % size * stride;
                index /= size;
            }
            result
        };
        Ok((view.clone(), width, (0..width).map(wanted_index).collect()))
    }
}

pub enum Operand {
    Weight(Weight),
    Constant(ConstantTensor),
}

impl Operand {
    fn sizes(&self) -> &[usize] {
        match self {
            Operand::Weight(weight) => &weight.tensor.sizes,
            Operand::Constant(constant) => &constant.sizes,
        }
    }

    fn len(&self) -> usize {
        self.sizes().iter().product()
    }

    fn name(&self) -> String {
        match self {
            Operand::Weight(weight) => format!("`{}`", weight.name),
            Operand::Constant(_) => "a constant".into(),
        }
    }
}
