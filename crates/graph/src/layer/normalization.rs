//! `layernorm` and `batchnorm [synchronized|local]`: numbers with mean 0 and variance 1, then a learned gain and bias each.

use super::words::Words;
use crate::assembly::Assembly;
use crate::graph::NodeId;
use crate::initialize::Initializer;
use crate::op::elementwise::Step;
use crate::op::{Op, batch_normalize, normalize};
use std::fmt;
use thalweg_core::model::{Density, Role};

pub(super) const BATCH_USAGE: &str = "batchnorm [synchronized|local]";
pub(super) const LAYER_USAGE: &str = "layernorm";

/// Over the last size of every line by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNormalization;

/// Over the rows of a batch, per column (per channel of an image). With local statistics, each worker normalises by its
/// own rows, and results depend on the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNormalization {
    /// Whether the statistics are those of all workers' rows; if it does not say, the network's options do.
    pub synchronized: Option<bool>,
}

/// Appends the learned gain and bias.
fn gain_and_bias(assembly: &mut Assembly, normal: NodeId) -> Result<NodeId, String> {
    let width = assembly.shape(normal).width();
    let gain = assembly.parameter("weight", &[width], Initializer::Constant(1.0))?;
    let bias = assembly.parameter("bias", &[width], Initializer::Constant(0.0))?;
    let scaled = assembly.add(Op::step(Step::Gain), &[normal, gain])?;
    assembly.add(Op::step(Step::Bias), &[scaled, bias])
}

impl LayerNormalization {
    pub(super) fn parse(words: Words<'_>) -> Result<LayerNormalization, String> {
        words.finish().map(|()| LayerNormalization)
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let normal =
            assembly.add(Op::Normalize(normalize::Normalize { epsilon: normalize::EPSILON }), &[input])?;
        gain_and_bias(assembly, normal)
    }
}

impl BatchNormalization {
    pub(super) fn parse(mut words: Words<'_>) -> Result<BatchNormalization, String> {
        let synchronized = match (words.flag("synchronized"), words.flag("local")) {
            (true, true) => return Err(words.complaint("`synchronized` and `local` exclude each other")),
            (false, false) => None,
            (synchronized, _) => Some(synchronized),
        };
        words.finish().map(|()| BatchNormalization { synchronized })
    }

    pub(super) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        let width = assembly.shape(input).width();
        let mut statistic = |name: &str, value: f32| {
            let initializer = Initializer::Constant(value);
            assembly.tensor(name, &[width], initializer, Role::Statistic, Density::Dense)
        };
        let (mean, variance) = (statistic("running_mean", 0.0)?, statistic("running_var", 1.0)?);
        let synchronized = self.synchronized.unwrap_or(assembly.synchronized);
        let (epsilon, share) = (batch_normalize::EPSILON, batch_normalize::SHARE);
        let op = batch_normalize::BatchNormalize { synchronized, epsilon, share };
        let normal = assembly.add(Op::BatchNormalize(op), &[input, mean, variance])?;
        gain_and_bias(assembly, normal)
    }
}

impl fmt::Display for LayerNormalization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layernorm")
    }
}

impl fmt::Display for BatchNormalization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.synchronized {
            None => "batchnorm",
            Some(true) => "batchnorm synchronized",
            Some(false) => "batchnorm local",
        })
    }
}
