//! `layernorm` and `batchnorm [synchronized|local]`: zero mean and unit variance, then a learned gain and bias.

use super::arguments::LayerArguments;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use crate::initialize::Initializer;
use crate::op::elementwise::ElementwiseStep;
use crate::op::{Op, batch_normalize, layer_normalize};
use std::fmt;
use thalweg_core::model::{Density, TensorRole};

pub(super) const BATCH_USAGE: &str = "batchnorm [synchronized|local]";
pub(super) const LAYER_USAGE: &str = "layernorm";

/// Normalises over the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNormLayer;

/// Normalises over the rows of a batch, per column (per channel of an image). With local statistics, each worker uses
/// its own rows only, so that results depend on the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNormLayer {
    /// Whether statistics cover the rows of all workers; `None` uses the network's option.
    pub synchronized: Option<bool>,
}

fn gain_and_bias(builder: &mut GraphBuilder, normal: NodeId) -> Result<NodeId, String> {
    let width = builder.shape(normal).width();
    let gain = builder.parameter("weight", &[width], Initializer::Constant(1.0))?;
    let bias = builder.parameter("bias", &[width], Initializer::Constant(0.0))?;
    let scaled = builder.add(Op::elementwise(ElementwiseStep::Gain), &[normal, gain])?;
    builder.add(Op::elementwise(ElementwiseStep::Bias), &[scaled, bias])
}

impl LayerNormLayer {
    pub(super) fn parse(arguments: LayerArguments<'_>) -> Result<LayerNormLayer, String> {
        arguments.finish().map(|()| LayerNormLayer)
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let normal = builder.add(
            Op::LayerNormalize(layer_normalize::LayerNormalize { epsilon: layer_normalize::EPSILON }),
            &[input],
        )?;
        gain_and_bias(builder, normal)
    }
}

impl BatchNormLayer {
    pub(super) fn parse(mut arguments: LayerArguments<'_>) -> Result<BatchNormLayer, String> {
        let synchronized = match (arguments.flag("synchronized"), arguments.flag("local")) {
            (true, true) => return Err(arguments.error("`synchronized` and `local` exclude each other")),
            (false, false) => None,
            (synchronized, _) => Some(synchronized),
        };
        arguments.finish().map(|()| BatchNormLayer { synchronized })
    }

    pub(super) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        let width = builder.shape(input).width();
        let mut statistic = |name: &str, value: f32| {
            let initializer = Initializer::Constant(value);
            builder.tensor(name, &[width], initializer, TensorRole::Statistic, Density::Dense)
        };
        let (mean, variance) = (statistic("running_mean", 0.0)?, statistic("running_var", 1.0)?);
        let synchronized = self.synchronized.unwrap_or(builder.synchronized);
        let (epsilon, momentum) = (batch_normalize::EPSILON, batch_normalize::MOMENTUM);
        let op = batch_normalize::BatchNormalize { synchronized, epsilon, momentum };
        let normal = builder.add(Op::BatchNormalize(op), &[input, mean, variance])?;
        gain_and_bias(builder, normal)
    }
}

impl fmt::Display for LayerNormLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layernorm")
    }
}

impl fmt::Display for BatchNormLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.synchronized {
            None => "batchnorm",
            Some(true) => "batchnorm synchronized",
            Some(false) => "batchnorm local",
        })
    }
}
