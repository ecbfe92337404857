//! `residual LAYER | LAYER | ...`: what the layers answer is added to what the first of them read.

use super::Layer;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::op::Op;
use crate::op::convolution::Convolution;
use crate::op::elementwise::{Elementwise, Step};
use crate::op::window::Window;
use std::fmt;

/// Layers with a way around them. Where they change an image's size, the way around is a learned 1x1 convolution
/// (`shortcut`).
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// The layers inside.
    pub layers: Vec<Layer>,
}

impl Residual {
    pub(super) fn parse(text: &str) -> Result<Residual, String> {
        let layers: Result<Vec<Layer>, String> = text.split('|').map(Layer::parse).collect();
        Ok(Residual { layers: layers? })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let mut value = input;
        for (index, layer) in self.layers.iter().enumerate() {
            let outer = assembly.enter(index);
            value = layer.append(assembly, value).map_err(|reason| format!("\"{layer}\": {reason}"))?;
            assembly.leave(outer);
        }
        let around = match assembly.shape(input) == assembly.shape(value) {
            true => input,
            false => self.shortcut(assembly, input, value)?,
        };
        assembly.add(Op::step(Step::Add), &[value, around])
    }

    /// A convolution that makes of the image that came in one of the size that goes out.
    fn shortcut(&self, assembly: &mut Assembly, input: NodeId, value: NodeId) -> Result<NodeId, String> {
        let (from, to) = (assembly.shape(input), assembly.shape(value));
        let mismatch = || format!("expected {from} of the layers inside, as what goes around them, got {to}");
        let (&[height, width, channels], &[down, across, filters]) = (from.sizes(), to.sizes()) else {
            return Err(mismatch());
        };
        let stride = [height.div_ceil(down.max(1)), width.div_ceil(across.max(1))];
        let window = Window { stride, ..Window::new([1, 1]) };
        if window.places([height, width]) != Ok([down, across]) {
            return Err(mismatch());
        }
        let initializer = assembly.spread(channels, filters);
        let weight = assembly.parameter("shortcut", &[filters, 1, 1, channels], initializer)?;
        let op = Convolution { window, groups: 1, epilogue: Elementwise::default() };
        assembly.add(Op::Convolution(op), &[input, weight])
    }
}

impl fmt::Display for Residual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.layers.iter().map(Layer::to_string).collect();
        write!(f, "residual {}", layers.join(" | "))
    }
}
