//! Tensors of the file as parameters: weights to learn, statistics to keep.

use super::importer::Importer;
use super::item::{Item, Weight};
use super::tensor::{Constant, Data};
use super::view::View;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::op::Op;
use crate::op::elementwise::Step;
use thalweg_core::FileOrder;
use thalweg_core::model::{Density, Role};

impl Importer<'_> {
    /// The tensor of that name, if it is one.
    pub fn weight(&self, name: &str) -> Result<Weight, String> {
        match self.item(name)? {
            Item::Weight(weight) => Ok(weight),
            Item::Constant(tensor) if !matches!(tensor.data, Data::Wholes(_)) => {
                Ok(Weight::new(name, tensor))
            }
            Item::Unknown => Err(String::new()),
            _ => Err(format!("expected `{name}` to be a weight, but it is computed")),
        }
    }

    /// A learned tensor of those sizes, its numbers in another order than in the file.
    pub fn learned(
        &mut self,
        weight: &Weight,
        sizes: &[usize],
        order: impl Fn(&[f32]) -> Vec<f32>,
    ) -> NodeId {
        self.parameter(weight, sizes, Role::Trainable, Density::Dense, order)
    }

    /// A tensor as a parameter. One that several nodes read is one parameter if it is a matrix; exporters join vectors
    /// that happen to begin alike, so that each reader gets a vector of its own.
    pub fn parameter(
        &mut self,
        weight: &Weight,
        sizes: &[usize],
        role: Role,
        density: Density,
        order: impl Fn(&[f32]) -> Vec<f32>,
    ) -> NodeId {
        let initializer = match &weight.tensor.data {
            Data::Floats(values) => Initializer::Given(order(values).into()),
            _ => Initializer::Constant(0.0),
        };
        let matrix = sizes.len() > 1;
        let found = self.made.get(&weight.name).copied().filter(|_| matrix);
        if let Some(node) = found
            && let Op::Parameter(index) = self.assembly.graph.node(node).op
            && self.assembly.graph.parameters[index].initializer == initializer
            && self.assembly.graph.parameters[index].shape == sizes
        {
            return node;
        }
        let mut name = weight.name.clone();
        if !self.names.insert(name.clone()) {
            let number = self.numbers.entry(weight.name.clone()).or_insert(2);
            while !self.names.insert(name.clone()) {
                name = format!("{}.{number}", weight.name);
                *number += 1;
            }
        }
        self.weights.insert(weight.origin.clone());
        let node = self.assembly.named_tensor(name, sizes, initializer, role, density);
        self.made.insert(weight.name.clone(), node);
        node
    }

    /// Says that memory has other places of the file's along an axis of a tensor.
    pub fn keep_file_order(&mut self, tensor: NodeId, sizes: &[usize], axis: usize, places: &[usize]) {
        if places.iter().copied().eq(0..places.len()) {
            return;
        }
        let mut memory = vec![0; places.len()];
        places.iter().enumerate().for_each(|(index, place)| memory[*place] = index as u32);
        let mut lists = vec![Vec::new(); sizes.len()];
        lists[axis] = memory;
        let order = FileOrder::Places { sizes: sizes.to_vec(), places: lists };
        self.assembly.set_file_order(tensor, Some(order));
    }

    /// Adds or multiplies a tensor that has one number per place of some axes, as ONNX spreads it.
    pub fn with_operand(&mut self, view: &View, operand: &Operand, step: Step) -> Result<View, String> {
        let sizes = operand.sizes();
        let rank = view.axes.len();
        let lead = rank.checked_sub(sizes.len()).ok_or("an operand has more axes than the value")?;
        let mut axes = Vec::new();
        // A single number belongs to the first axis that has one place, such as the only channel of an image.
        let mut single = operand.len() == 1;
        for (place, size) in sizes.iter().enumerate() {
            let axis = lead + place;
            let one = std::mem::take(&mut single) && view.axis(axis) == (false, 1);
            single = operand.len() == 1 && axes.is_empty() && !one;
            if *size == 1 && !one {
                continue;
            }
            let own = view.size(axis)?;
            if own != *size {
                return Err(format!(
                    "{}: expected {own} numbers along axis {axis}, got {size}",
                    operand.name()
                ));
            }
            axes.push(axis);
        }
        if axes.is_empty() {
            return Err(format!("{}: one number for all is no weight", operand.name()));
        }
        let wanted: Vec<usize> = axes.iter().flat_map(|axis| view.atoms_of(*axis)).collect();
        let (view, width, places) = self.tail(view, &wanted)?;
        let order = |values: &[f32]| places.iter().map(|place| values[*place]).collect::<Vec<f32>>();
        let operand = match operand {
            Operand::Weight(weight) => {
                let own = weight.own.clone();
                let learned = self.learned(weight, &own, order);
                self.keep_file_order(learned, &[width], 0, &places);
                learned
            }
            Operand::Constant(constant) => match &constant.data {
                Data::Floats(values) => self.assembly.add(Op::constant(&order(values), &[width]), &[])?,
                _ => return Err("expected numbers with a fraction".into()),
            },
        };
        let lines = self.lines(&view, width)?;
        let node = self.assembly.add(Op::step(step), &[lines, operand])?;
        Ok(View { node, ..view })
    }

    /// The value with those atoms at the end of its memory in whatever order costs nothing, how many numbers they hold,
    /// and for each place there its place in the order wanted.
    pub fn tail(&mut self, view: &View, wanted: &[usize]) -> Result<(View, usize, Vec<usize>), String> {
        let begin = view.atoms.len() - wanted.len();
        let at_the_end = view.atoms[begin..].iter().all(|(atom, _)| wanted.contains(atom));
        let view = match at_the_end {
            true => view.clone(),
            false => {
                let outer = view.atoms.iter().map(|(atom, _)| *atom).filter(|atom| !wanted.contains(atom));
                let order: Vec<usize> = outer.chain(wanted.iter().copied()).collect();
                self.ordered(view, &order)?
            }
        };
        let width: usize = view.atoms[begin..].iter().map(|(_, size)| size).product();
        let stride = |atom: usize| {
            let behind = wanted.iter().skip_while(|other| **other != atom).skip(1);
            behind.map(|atom| view.size_of(*atom)).product::<usize>()
        };
        let strides: Vec<(usize, usize)> =
            view.atoms[begin..].iter().map(|(atom, size)| (*size, stride(*atom))).collect();
        let place = |mut index: usize| {
            let mut place = 0;
            for (size, stride) in strides.iter().rev() {
                place += index % size * stride;
                index /= size;
            }
            place
        };
        Ok((view.clone(), width, (0..width).map(place).collect()))
    }
}

/// What is added or multiplied: something to learn, or numbers that stay.
pub enum Operand {
    /// To learn.
    Weight(Weight),
    /// Fixed.
    Constant(Constant),
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
