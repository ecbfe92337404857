//! Means and normalisations.

use super::importer::Importer;
use super::item::{Item, Moment};
use super::settings::Settings;
use super::view::View;
use super::weights::Operand;
use crate::onnx::proto::Node;
use crate::op::Op;
use crate::op::batch_normalize::{BatchNormalize, SHARE};
use crate::op::elementwise::Step;
use crate::op::normalize::Normalize;
use crate::op::pool::{Pool, Pooling};
use crate::op::window::Window;
use thalweg_core::model::{Density, Role};

impl Importer<'_> {
    /// The mean over some axes; what is left of them has size 1, or goes.
    pub fn mean_over(&mut self, view: &View, axes: &[usize], keep: bool) -> Result<View, String> {
        let mut count = 1;
        for axis in axes {
            count *= view.size(*axis)?;
        }
        let gone: Vec<usize> = axes.iter().flat_map(|axis| view.atoms_of(*axis)).collect();
        let kept = view.atoms.iter().map(|(atom, _)| *atom).filter(|atom| !gone.contains(atom));
        let order: Vec<usize> = gone.iter().copied().chain(kept).collect();
        let ordered = self.ordered(view, &order)?;
        let rest = view.per_row() / count.max(1);
        // As one tall image, whose whole height is a window.
        let image = self.sized(ordered.node, &[count, 1, rest])?;
        let pool = Pool { pooling: Pooling::Mean, window: Window::new([count, 1]) };
        let mut result = View { node: self.assembly.add(Op::Pool(pool), &[image])?, ..ordered };
        result.atoms.drain(..gone.len());
        result.node = self.sized(result.node, &[rest])?;
        for axis in (0..result.axes.len()).rev().filter(|axis| axes.contains(axis)) {
            match keep {
                true => result.axes[axis].clear(),
                false => drop(result.axes.remove(axis)),
            }
        }
        Ok(result)
    }

    /// `GlobalAveragePool`.
    pub fn global_mean(&mut self, name: &str) -> Result<Item, String> {
        let view = self.view(name)?;
        let axes: Vec<usize> = (2..view.axes.len()).collect();
        self.mean_over(&view, &axes, true).map(Item::View)
    }

    /// `ReduceMean`, which may be a part of a normalisation.
    pub fn mean(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let name = node.input.first().map_or("", String::as_str);
        let rank = match self.item(name)? {
            Item::View(view) | Item::Moment(_, view) => view.axes.len(),
            _ => 0,
        };
        let keep = settings.int("keepdims", 1) != 0;
        let nothing_if_empty = settings.int("noop_with_empty_axes", 0) != 0;
        let axes = match (node.input.get(1).filter(|name| !name.is_empty()), settings.ints("axes")) {
            (Some(name), _) => match self.item(name)? {
                Item::Constant(constant) => constant.known()?,
                _ => return Err("its axes are not known".into()),
            },
            (None, axes) => axes.unwrap_or_default().to_vec(),
        };
        match (axes.is_empty(), nothing_if_empty) {
            (false, _) => {}
            (true, true) => return self.passed_on(node),
            (true, false) => return Err("a mean over all axes (no `axes`) would mix the rows".into()),
        }
        let axes = axes.iter().map(|axis| super::view::place(*axis, rank)).collect::<Result<Vec<_>, _>>()?;
        let last = keep && axes == [rank - 1];
        match self.item(name)? {
            Item::View(view) if last => Ok(Item::Moment(Moment::Mean, view)),
            Item::Moment(Moment::Squared, view) if last => Ok(Item::Moment(Moment::Variance, view)),
            _ => {
                let view = self.view(name)?;
                self.mean_over(&view, &axes, keep).map(Item::View)
            }
        }
    }

    /// `LayerNormalization` with its gain and bias.
    pub fn layer_normalization(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let view = self.view(node.input.first().map_or("", String::as_str))?;
        let axes: Vec<usize> = (view.place(settings.int("axis", -1))?..view.axes.len()).collect();
        let (view, width) = self.ending_with(&view, &axes)?;
        let lines = self.lines(&view, width)?;
        let op = Normalize { epsilon: settings.float("epsilon", 1e-5) };
        let normal = self.assembly.add(Op::Normalize(op), &[lines])?;
        let mut view = View { node: normal, ..view };
        for (index, step) in [(1, Step::Gain), (2, Step::Bias)] {
            if let Some(name) = node.input.get(index).filter(|name| !name.is_empty()) {
                let weight = Operand::Weight(self.weight(name)?);
                view = self.with_operand(&view, &weight, step)?;
            }
        }
        Ok(Item::View(view))
    }

    /// `BatchNormalization`: the running statistics are state, gain and bias are learned.
    pub fn batch_normalization(&mut self, node: &Node, settings: Settings<'_>) -> Result<Item, String> {
        let name = |index: usize| node.input.get(index).cloned().unwrap_or_default();
        let view = self.view(&name(0))?;
        if view.axes.len() < 2 {
            return Err("expected rows with columns".into());
        }
        let (view, width) = self.ending_with(&view, &[1])?;
        let mut statistics = Vec::new();
        for index in [3, 4] {
            let weight = self.weight(&name(index))?;
            if weight.own != [width] {
                return Err(format!(
                    "`{}`: expected {width} numbers, got sizes {:?}",
                    weight.name, weight.own
                ));
            }
            statistics.push(self.parameter(
                &weight,
                &[width],
                Role::Statistic,
                Density::Dense,
                <[f32]>::to_vec,
            ));
        }
        let lines = self.lines(&view, width)?;
        // Whether the file was written for training or for use, it is trained here.
        settings.int("training_mode", 0);
        let share = match settings.float("momentum", 0.9) {
            0.9 => SHARE,
            momentum if (0.0..=1.0).contains(&momentum) => 1.0 - momentum,
            momentum => return Err(format!("attribute `momentum` = {momentum} is not between 0 and 1")),
        };
        let op = BatchNormalize {
            synchronized: self.assembly.synchronized,
            epsilon: settings.float("epsilon", 1e-5),
            share,
        };
        let normal = self.assembly.add(Op::BatchNormalize(op), &[lines, statistics[0], statistics[1]])?;
        let mut view = View { node: normal, ..view };
        for (index, step) in [(1, Step::Gain), (2, Step::Bias)] {
            let mut weight = self.weight(&name(index))?;
            // One number per channel, the same along all axes behind it.
            let behind = std::iter::repeat_n(1, view.axes.len() - 2);
            weight.tensor.sizes.extend(behind);
            view = self.with_operand(&view, &Operand::Weight(weight), step)?;
        }
        Ok(Item::View(view))
    }
}
