//! `conv FILTERS SIZE [stride N] [pad N] [dilation N] [groups N] [ACTIVATION]`: filters that slide over an image.

use super::words::Words;
use crate::activation::Activation;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::op::Op;
use crate::op::elementwise::{Elementwise, Step};
use crate::op::window::Window;
use std::fmt;

pub(super) const USAGE: &str =
    "conv FILTERS SIZE|HEIGHTxWIDTH [stride N] [pad N] [dilation N] [groups N] [ACTIVATION]";

/// A convolution with a bias per filter; its weight is `[filters, height, width, channels / groups]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// How many filters.
    pub filters: usize,
    /// How they lie on the image.
    pub window: Window,
    /// Into how many groups channels and filters are cut.
    pub groups: usize,
    /// What follows.
    pub activation: Activation,
}

impl Convolution {
    pub(super) fn parse(mut words: Words<'_>) -> Result<Convolution, String> {
        let filters = words.number("filters")?;
        let size = words.pair("size of the filters")?;
        let stride = words.setting("stride", 1)?.unwrap_or(1);
        let padding = words.setting("pad", 0)?.unwrap_or(0);
        let dilation = words.setting("dilation", 1)?.unwrap_or(1);
        let groups = words.setting("groups", 1)?.unwrap_or(1);
        let activation = words.activation()?;
        words.finish()?;
        let window = Window { size, stride: [stride; 2], padding: [padding; 2], dilation: [dilation; 2] };
        Ok(Convolution { filters, window, groups, activation })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let &[_, _, channels] = assembly.shape(input).sizes() else {
            let got = assembly.shape(input);
            return Err(format!("expected an image (height x width x channels), got {got}"));
        };
        let [height, width] = self.window.size;
        let points = height * width;
        let line = channels / self.groups;
        let initializer = assembly.spread(points * line, points * self.filters / self.groups);
        let weight = assembly.parameter("weight", &[self.filters, height, width, line], initializer)?;
        let op = crate::op::convolution::Convolution {
            window: self.window,
            groups: self.groups,
            epilogue: Elementwise::default(),
        };
        let result = assembly.add(Op::Convolution(op), &[input, weight])?;
        let bias = assembly.parameter("bias", &[self.filters], Initializer::Constant(0.0))?;
        let result = assembly.add(Op::step(Step::Bias), &[result, bias])?;
        assembly.activate(result, self.activation)
    }
}

impl fmt::Display for Convolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Window { size: [height, width], stride, padding, dilation } = self.window;
        write!(f, "conv {} {height}x{width}", self.filters)?;
        let settings = [("stride", stride[0], 1), ("pad", padding[0], 0), ("dilation", dilation[0], 1)];
        for (name, value, usual) in settings.into_iter().chain([("groups", self.groups, 1)]) {
            if value != usual {
                write!(f, " {name} {value}")?;
            }
        }
        self.activation.name().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}
