//! `residual LAYER | LAYER | ...`: layers with a skip connection.

use super::Layer;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::op::Op;
use crate::op::convolution::Convolution;
use crate::op::elementwise::{Elementwise, ElementwiseStep};
use crate::op::window::Window;
use std::fmt;

/// The output of the inner layers plus their input. If they change an image's shape, the skip connection is a learned
/// 1x1 convolution (`shortcut`).
#[derive(Clone, Debug, PartialEq)]
pub struct ResidualLayer {
    pub layers: Vec<Layer>,
}

impl ResidualLayer {
    pub(super) fn parse(text: &str) -> Result<ResidualLayer, String> {
        let layers: Result<Vec<Layer>, String> = text.split('|').map(Layer::parse).collect();
        Ok(ResidualLayer { layers: layers? })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let mut value = input;
        for (index, layer) in self.layers.iter().enumerate() {
            let outer = builder.enter_scope(index);
            value = layer.append(builder, value).map_err(|reason| format!("\"{layer}\": {reason}"))?;
            builder.leave_scope(outer);
        }
        let skip = match builder.shape(input) == builder.shape(value) {
            true => input,
            false => self.shortcut(builder, input, value)?,
        };
        builder.add(Op::elementwise(ElementwiseStep::Add), &[value, skip])
    }

    /// A 1x1 convolution from the input image to the shape of the output.
    fn shortcut(&self, builder: &mut GraphBuilder, input: NodeId, value: NodeId) -> Result<NodeId, String> {
        let (from, to) = (builder.shape(input), builder.shape(value));
        let mismatch = || format!("expected the inner layers to keep the shape {from}, got {to}");
        let (&[height, width, channels], &[down, across, filters]) = (from.sizes(), to.sizes()) else {
            return Err(mismatch());
        };
        let stride = [height.div_ceil(down.max(1)), width.div_ceil(across.max(1))];
        let window = Window { stride, ..Window::new([1, 1]) };
        if window.output_size([height, width]) != Ok([down, across]) {
            return Err(mismatch());
        }
        let initializer = builder.weight_initializer(channels, filters);
        let weight = builder.parameter("shortcut", &[filters, 1, 1, channels], initializer)?;
        let op = Convolution { window, groups: 1, epilogue: Elementwise::default() };
        builder.add(Op::Convolution(op), &[input, weight])
    }
}

impl fmt::Display for ResidualLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.layers.iter().map(Layer::to_string).collect();
        write!(f, "residual {}", layers.join(" | "))
    }
}
