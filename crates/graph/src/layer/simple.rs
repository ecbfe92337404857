//! Layers without parameters: `flatten`, `last`, `transpose`, `softmax`, `upsample FACTOR`, `dropout SHARE`, and every
//! activation by its name.

use super::arguments::LayerArguments;
use crate::activation::Activation;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::op::elementwise::ElementwiseStep;
use crate::op::pool::{PoolGradient, Pooling};
use crate::op::window::Window;
use crate::op::{Op, dropout, last, softmax, transpose};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimpleLayer {
    Activate(Activation),
    Flatten,
    /// Keeps the last position of a sequence.
    Last,
    /// Swaps the last two axes.
    Transpose,
    Softmax,
    /// Repeats each pixel over a square of this side.
    Upsample(usize),
    /// Drops this fraction of the activations in training.
    Dropout(f32),
}

impl SimpleLayer {
    /// Kinds besides the activations.
    pub(super) const KINDS: [&'static str; 6] =
        ["flatten", "last", "transpose", "softmax", "upsample", "dropout"];

    /// `None` if `kind` is not one of these layers.
    pub(super) fn parse(kind: &str, text: &str) -> Option<Result<SimpleLayer, String>> {
        if let Some(activation) = Activation::from_name(kind) {
            let arguments = LayerArguments::new(text, "the name of an activation alone");
            return Some(arguments.finish().map(|()| SimpleLayer::Activate(activation)));
        }
        let alone = |layer: SimpleLayer| LayerArguments::new(text, "no arguments").finish().map(|()| layer);
        Some(match kind {
            "flatten" => alone(SimpleLayer::Flatten),
            "last" => alone(SimpleLayer::Last),
            "transpose" => alone(SimpleLayer::Transpose),
            "softmax" => alone(SimpleLayer::Softmax),
            "upsample" => {
                let mut arguments = LayerArguments::new(text, "upsample FACTOR");
                arguments
                    .number("pixels per side")
                    .and_then(|factor| arguments.finish().map(|()| SimpleLayer::Upsample(factor)))
            }
            "dropout" => parse_dropout(LayerArguments::new(text, "dropout SHARE")),
            _ => return None,
        })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        match *self {
            SimpleLayer::Activate(activation) => builder.activate(input, activation),
            SimpleLayer::Flatten => builder.flatten(input),
            SimpleLayer::Last => builder.add(Op::Last(last::Last), &[input]),
            SimpleLayer::Transpose => builder.add(Op::Transpose(transpose::Transpose), &[input]),
            SimpleLayer::Softmax => builder.add(Op::Softmax(softmax::Softmax), &[input]),
            SimpleLayer::Dropout(share) => {
                let layer = builder.next_dropout();
                builder.add(Op::Dropout(dropout::Dropout { probability: share, layer }), &[input])
            }
            SimpleLayer::Upsample(factor) => {
                let &[height, width, channels] = builder.shape(input).sizes() else {
                    let got = builder.shape(input);
                    return Err(format!("expected an image (height x width x channels), got {got}"));
                };
                // The gradient of mean pooling repeats each value over its window, divided by the window's size.
                let window = Window { stride: [factor; 2], ..Window::new([factor; 2]) };
                let image = [height * factor, width * factor, channels];
                let op = PoolGradient { pooling: Pooling::Mean, window, image };
                let repeated = builder.add(Op::PoolGradient(op), &[input])?;
                builder.add(Op::elementwise(ElementwiseStep::Scale((factor * factor) as f32)), &[repeated])
            }
        }
    }
}

fn parse_dropout(mut arguments: LayerArguments<'_>) -> Result<SimpleLayer, String> {
    let argument = arguments.next().ok_or_else(|| arguments.error("the fraction to drop is missing"))?;
    let share = argument.parse::<f32>().ok().filter(|share| (0.0..1.0).contains(share));
    let reason = format!("the fraction to drop must be at least 0 and below 1, is `{argument}`");
    let share = share.ok_or_else(|| arguments.error(reason))?;
    arguments.finish().map(|()| SimpleLayer::Dropout(share))
}

impl fmt::Display for SimpleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimpleLayer::Activate(activation) => write!(f, "{}", activation.name().unwrap_or("none")),
            SimpleLayer::Flatten => write!(f, "flatten"),
            SimpleLayer::Last => write!(f, "last"),
            SimpleLayer::Transpose => write!(f, "transpose"),
            SimpleLayer::Softmax => write!(f, "softmax"),
            SimpleLayer::Upsample(factor) => write!(f, "upsample {factor}"),
            SimpleLayer::Dropout(share) => write!(f, "dropout {share}"),
        }
    }
}
