//! Layers that are one word, or a word and a number: `flatten`, `last`, `transpose`, `softmax`, `upsample N`, `dropout SHARE`, and
//! every activation by its name.

use super::words::Words;
use crate::activation::Activation;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::op::elementwise::Step;
use crate::op::pool::{PoolGradient, Pooling};
use crate::op::window::Window;
use crate::op::{Op, dropout, last, softmax, transpose};
use std::fmt;

/// A layer without sizes of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain {
    /// An activation.
    Activate(Activation),
    /// All numbers of a row in one line.
    Flatten,
    /// The last position of a sequence.
    Last,
    /// The last two sizes exchanged.
    Transpose,
    /// Shares that add up to 1.
    Softmax,
    /// Each point of an image becomes a square of that many points a side.
    Upsample(usize),
    /// That share of the numbers is dropped while training.
    Dropout(f32),
}

impl Plain {
    /// The words that begin such a layer, besides the activations.
    pub(super) const KINDS: [&'static str; 6] =
        ["flatten", "last", "transpose", "softmax", "upsample", "dropout"];

    /// The layer of that kind; nothing if there is none.
    pub(super) fn parse(kind: &str, text: &str) -> Option<Result<Plain, String>> {
        if let Some(activation) = Activation::named(kind) {
            let words = Words::new(text, "an activation's name alone");
            return Some(words.finish().map(|()| Plain::Activate(activation)));
        }
        let alone = |plain: Plain| Words::new(text, "the word alone").finish().map(|()| plain);
        Some(match kind {
            "flatten" => alone(Plain::Flatten),
            "last" => alone(Plain::Last),
            "transpose" => alone(Plain::Transpose),
            "softmax" => alone(Plain::Softmax),
            "upsample" => {
                let mut words = Words::new(text, "upsample FACTOR");
                words
                    .number("points a side")
                    .and_then(|factor| words.finish().map(|()| Plain::Upsample(factor)))
            }
            "dropout" => parse_dropout(Words::new(text, "dropout SHARE")),
            _ => return None,
        })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        match *self {
            Plain::Activate(activation) => assembly.activate(input, activation),
            Plain::Flatten => assembly.flatten(input),
            Plain::Last => assembly.add(Op::Last(last::Last), &[input]),
            Plain::Transpose => assembly.add(Op::Transpose(transpose::Transpose), &[input]),
            Plain::Softmax => assembly.add(Op::Softmax(softmax::Softmax), &[input]),
            Plain::Dropout(share) => {
                let layer = assembly.next_dropout();
                assembly.add(Op::Dropout(dropout::Dropout { share, layer }), &[input])
            }
            Plain::Upsample(factor) => {
                let &[height, width, channels] = assembly.shape(input).sizes() else {
                    let got = assembly.shape(input);
                    return Err(format!("expected an image (height x width x channels), got {got}"));
                };
                // The way back from the mean of a square spreads a number over it, divided by its points.
                let window = Window { stride: [factor; 2], ..Window::new([factor; 2]) };
                let image = [height * factor, width * factor, channels];
                let op = PoolGradient { pooling: Pooling::Mean, window, image };
                let spread = assembly.add(Op::PoolGradient(op), &[input])?;
                assembly.add(Op::step(Step::Scale((factor * factor) as f32)), &[spread])
            }
        }
    }
}

fn parse_dropout(mut words: Words<'_>) -> Result<Plain, String> {
    let word = words.next().ok_or_else(|| words.complaint("the share to drop is missing"))?;
    let share = word.parse::<f32>().ok().filter(|share| (0.0..1.0).contains(share));
    let reason = format!("the share to drop must be at least 0 and below 1, is `{word}`");
    let share = share.ok_or_else(|| words.complaint(reason))?;
    words.finish().map(|()| Plain::Dropout(share))
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plain::Activate(activation) => write!(f, "{}", activation.name().unwrap_or("none")),
            Plain::Flatten => write!(f, "flatten"),
            Plain::Last => write!(f, "last"),
            Plain::Transpose => write!(f, "transpose"),
            Plain::Softmax => write!(f, "softmax"),
            Plain::Upsample(factor) => write!(f, "upsample {factor}"),
            Plain::Dropout(share) => write!(f, "dropout {share}"),
        }
    }
}
