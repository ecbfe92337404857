//! `conv FILTERS SIZE [stride N] [pad N] [dilation N] [groups N] [ACTIVATION]`: a 2-D convolution.

use super::arguments::LayerArguments;
use crate::activation::Activation;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::initialize::Initializer;
use crate::op::Op;
use crate::op::elementwise::{Elementwise, ElementwiseStep};
use crate::op::window::Window;
use std::fmt;

pub(super) const USAGE: &str =
    "conv FILTERS SIZE|HEIGHTxWIDTH [stride N] [pad N] [dilation N] [groups N] [ACTIVATION]";

/// A convolution with a bias per filter; its weight is `[filters, height, width, channels / groups]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvolutionLayer {
    pub filters: usize,
    pub window: Window,
    pub groups: usize,
    pub activation: Activation,
}

impl ConvolutionLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<ConvolutionLayer, String> {
        let filters = arguments.number("filters")?;
        let size = arguments.pair("size of the filters")?;
        let stride = arguments.keyword("stride", 1)?.unwrap_or(1);
        let padding = arguments.keyword("pad", 0)?.unwrap_or(0);
        let dilation = arguments.keyword("dilation", 1)?.unwrap_or(1);
        let groups = arguments.keyword("groups", 1)?.unwrap_or(1);
        let activation = arguments.activation()?;
        arguments.finish()?;
        let window = Window { size, stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] };
        Ok(ConvolutionLayer { filters, window, groups, activation })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let &[_, _, channels] = builder.shape(input).sizes() else {
            let got = builder.shape(input);
            return Err(format!("expected an image (height x width x channels), got {got}"));
        };
        let [height, width] = self.window.size;
        let points = height * width;
        let line = channels / self.groups;
        let initializer = builder.weight_initializer(points * line, points * self.filters / self.groups);
        let weight = builder.parameter("weight", &[self.filters, height, width, line], initializer)?;
        let op = crate::op::convolution::Convolution {
            window: self.window,
            groups: self.groups,
            epilogue: Elementwise::default(),
        };
        let result = builder.add(Op::Convolution(op), &[input, weight])?;
        let bias = builder.parameter("bias", &[self.filters], Initializer::Constant(0.0))?;
        let result = builder.add(Op::elementwise(ElementwiseStep::Bias), &[result, bias])?;
        builder.activate(result, self.activation)
    }
}

impl fmt::Display for ConvolutionLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Window { size: [height, width], stride, padding, dilation } = self.window;
        write!(f, "conv {} {height}x{width}", self.filters)?;
        let options = [("stride", stride[0], 1), ("pad", padding[0], 0), ("dilation", dilation[0], 1)];
        for (name, value, default) in options.into_iter().chain([("groups", self.groups, 1)]) {
            if value != default {
                write!(f, " {name} {value}")?;
            }
        }
        self.activation.name().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}
