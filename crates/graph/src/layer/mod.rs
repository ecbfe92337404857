//! The layer list of a job, one string per layer: kind, sizes, options, activation.
//!
//! ```text
//! dense UNITS [ACTIVATION]          fully connected; the last layer's UNITS may be `auto`
//! conv FILTERS SIZE [stride N] [pad N] [dilation N] [groups N] [ACTIVATION]
//! pool max|mean SIZE [stride N] [pad N]      pool global      upsample FACTOR      flatten      reshape SIZES
//! batchnorm [synchronized|local]    layernorm          dropout SHARE
//! embedding WIDTH [positions]       lstm|gru|rnn UNITS         attention HEADS [causal]      last
//! residual LAYER | LAYER | ...      the layers' output plus their input
//! concat LAYER & LAYER | LAYER      branches over the same input, concatenated          transpose
//! relu, leaky-relu, elu, gelu, gelu-erf, tanh, sigmoid, softmax      alone, or (except softmax) after a layer's sizes
//! ```
//!
//! SIZE is `5` or `5x3` (height x width). To add a layer: one file, one variant of [`Layer`], one line in each of its
//! functions.

mod arguments;
mod attention;
mod concatenation;
mod convolution;
mod dense;
mod embedding;
mod normalization;
mod pool;
mod recurrent;
mod reshape;
mod residual;
mod simple;

use crate::activation::Activation;
use crate::graph::NodeId;
use crate::graph_builder::GraphBuilder;
use arguments::LayerArguments;
pub use attention::AttentionLayer;
pub use concatenation::ConcatenationLayer;
pub use convolution::ConvolutionLayer;
pub use dense::{DenseLayer, Units};
pub use embedding::EmbeddingLayer;
pub use normalization::{BatchNormLayer, LayerNormLayer};
pub use pool::PoolLayer;
pub use recurrent::{RecurrentCell, RecurrentLayer};
pub use reshape::ReshapeLayer;
pub use residual::ResidualLayer;
pub use simple::SimpleLayer;
use std::fmt;
use thalweg_core::spec::nearest::unknown;
use thalweg_core::{Error, Result};

/// One parsed layer of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    Dense(DenseLayer),
    Convolution(ConvolutionLayer),
    Pool(PoolLayer),
    BatchNormalization(BatchNormLayer),
    NormalizeFeatures(LayerNormLayer),
    Embedding(EmbeddingLayer),
    Recurrent(RecurrentLayer),
    Attention(AttentionLayer),
    Reshape(ReshapeLayer),
    Residual(ResidualLayer),
    Concatenation(ConcatenationLayer),
    Simple(SimpleLayer),
}

/// Kinds besides those of [`SimpleLayer`] and [`RecurrentCell`].
const KINDS: [&str; 10] = [
    "dense",
    "conv",
    "pool",
    "batchnorm",
    "layernorm",
    "embedding",
    "attention",
    "reshape",
    "residual",
    "concat",
];

impl Layer {
    pub fn parse(text: &str) -> Result<Layer, String> {
        let text = text.trim();
        let (kind, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let arguments = |usage| LayerArguments::new(rest, usage);
        match kind {
            "" => Err(arguments(dense::USAGE).error("is empty")),
            "dense" => DenseLayer::parse(arguments(dense::USAGE)).map(Layer::Dense),
            "conv" => ConvolutionLayer::parse(arguments(convolution::USAGE)).map(Layer::Convolution),
            "pool" => PoolLayer::parse(arguments(pool::USAGE)).map(Layer::Pool),
            "batchnorm" => {
                BatchNormLayer::parse(arguments(normalization::BATCH_USAGE)).map(Layer::BatchNormalization)
            }
            "layernorm" => {
                LayerNormLayer::parse(arguments(normalization::LAYER_USAGE)).map(Layer::NormalizeFeatures)
            }
            "embedding" => EmbeddingLayer::parse(arguments(embedding::USAGE)).map(Layer::Embedding),
            "attention" => AttentionLayer::parse(arguments(attention::USAGE)).map(Layer::Attention),
            "reshape" => ReshapeLayer::parse(arguments(reshape::USAGE)).map(Layer::Reshape),
            "residual" => ResidualLayer::parse(rest).map(Layer::Residual),
            "concat" => ConcatenationLayer::parse(rest).map(Layer::Concatenation),
            kind => match (SimpleLayer::parse(kind, rest), RecurrentLayer::parse(kind, rest)) {
                (Some(simple), _) => simple.map(Layer::Simple),
                (None, Some(recurrent)) => recurrent.map(Layer::Recurrent),
                (None, None) => {
                    let families =
                        SimpleLayer::KINDS.into_iter().chain(RecurrentCell::NAMES).chain(Activation::NAMES);
                    let known = KINDS.into_iter().chain(families);
                    Err(format!("{} (such as \"dense 128 relu\")", unknown("layer", kind, known)))
                }
            },
        }
    }

    /// The number of units of a dense layer.
    pub fn units(&self) -> Option<Units> {
        match self {
            Layer::Dense(dense) => Some(dense.units),
            _ => None,
        }
    }

    /// Adds the layer's nodes and parameters to the graph.
    pub(crate) fn append(&self, builder: &mut GraphBuilder, input: NodeId) -> Result<NodeId, String> {
        match self {
            Layer::Dense(layer) => layer.append(builder, input),
            Layer::Convolution(layer) => layer.append(builder, input),
            Layer::Pool(layer) => layer.append(builder, input),
            Layer::BatchNormalization(layer) => layer.append(builder, input),
            Layer::NormalizeFeatures(layer) => layer.append(builder, input),
            Layer::Embedding(layer) => layer.append(builder, input),
            Layer::Recurrent(layer) => layer.append(builder, input),
            Layer::Attention(layer) => layer.append(builder, input),
            Layer::Reshape(layer) => layer.append(builder, input),
            Layer::Residual(layer) => layer.append(builder, input),
            Layer::Concatenation(layer) => layer.append(builder, input),
            Layer::Simple(layer) => layer.append(builder, input),
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Dense(layer) => layer.fmt(f),
            Layer::Convolution(layer) => layer.fmt(f),
            Layer::Pool(layer) => layer.fmt(f),
            Layer::BatchNormalization(layer) => layer.fmt(f),
            Layer::NormalizeFeatures(layer) => layer.fmt(f),
            Layer::Embedding(layer) => layer.fmt(f),
            Layer::Recurrent(layer) => layer.fmt(f),
            Layer::Attention(layer) => layer.fmt(f),
            Layer::Reshape(layer) => layer.fmt(f),
            Layer::Residual(layer) => layer.fmt(f),
            Layer::Concatenation(layer) => layer.fmt(f),
            Layer::Simple(layer) => layer.fmt(f),
        }
    }
}

/// Parses a layer list; an error names the layer (`model.layers[1]: ...`) and the expected form.
pub fn parse(texts: &[String]) -> Result<Vec<Layer>> {
    let last = texts.len().saturating_sub(1);
    let read = |(index, text): (usize, &String)| {
        let layer = Layer::parse(text).map_err(|reason| layer_error(index, reason))?;
        if layer.units() == Some(Units::Auto) && index != last {
            let reason = format!("`auto` is for the last layer only: \"{text}\" needs a number of units");
            return Err(layer_error(index, reason));
        }
        Ok(layer)
    };
    texts.iter().enumerate().map(read).collect()
}

/// A parse error under the job key of the layer.
fn layer_error(index: usize, reason: impl fmt::Display) -> Error {
    Error::job(format!("model.layers[{index}]: {reason}"))
}

/// An error of a layer that does not fit its input.
pub(crate) fn shape_error(index: usize, layer: &Layer, reason: impl fmt::Display) -> Error {
    Error::job(format!("model.layers[{index}] \"{layer}\": {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(texts: &[&str]) -> Result<Vec<Layer>> {
        parse(&texts.iter().map(|text| text.to_string()).collect::<Vec<_>>())
    }

    fn message(texts: &[&str]) -> String {
        list(texts).unwrap_err().message
    }

    #[test]
    fn layers_round_trip_through_text() {
        let texts = [
            "dense 128 relu",
            "dense 64 tanh",
            "dense 3 sigmoid",
            "conv 32 5x5 relu",
            "conv 8 3x1 stride 2 pad 1 dilation 2 groups 4",
            "pool max 2x2",
            "pool mean 3x3 stride 1 pad 1",
            "pool global",
            "batchnorm",
            "batchnorm synchronized",
            "batchnorm local",
            "layernorm",
            "dropout 0.5",
            "embedding 128 positions",
            "lstm 256",
            "gru 128",
            "rnn 7",
            "attention 4 causal",
            "residual layernorm | dense 8 gelu",
            "concat conv 4 1x1 | conv 4 3x3 pad 1 & relu",
            "transpose",
            "flatten",
            "reshape 7x7x16",
            "reshape 784",
            "last",
            "softmax",
            "gelu",
            "upsample 2",
            "dense auto",
        ];
        let shown: Vec<String> = list(&texts).unwrap().iter().map(Layer::to_string).collect();
        assert_eq!(shown, texts);
        assert_eq!(list(&["  dense   7  "]).unwrap()[0].units(), Some(Units::Count(7)));
    }

    #[test]
    fn a_typo_is_reported_with_its_layer_and_a_suggestion() {
        let text = message(&["dense 8 relu", "dens 10"]);
        assert!(text.starts_with("model.layers[1]: unknown layer `dens`; did you mean `dense`?"), "{text}");
        assert!(message(&["dense 8 rellu"]).contains("did you mean `relu`?"));
        assert!(message(&["dense 8 swish12345"]).contains("known are relu, tanh, sigmoid"));
    }

    #[test]
    fn every_error_names_what_was_expected() {
        for text in ["", "dense", "dense relu", "dense -3", "dense 1.5", "dense 8 relu relu"] {
            assert!(message(&[text]).contains("expected \"dense UNITS"), "{text}");
        }
        assert!(message(&["conv 3"]).contains("the size of the filters is missing; expected \"conv FILTERS"));
        assert!(message(&["batchnorm local synchronized"]).contains("exclude each other"));
        assert!(message(&["pool min 2"]).contains("unknown pooling `min`"));
        assert!(message(&["dropout 1.5"]).contains("below 1, is `1.5`"));
        assert!(message(&["reshape 7x0"]).contains("`7x0` is not a shape; expected \"reshape HEIGHT"));
        assert!(message(&["conv 3 3 stride"]).contains("the value of `stride` is missing"));
        assert!(message(&["residual dense 3 | dens 4"]).contains("did you mean `dense`?"));
        for text in ["dense 0", "dense 999999999999", "lstm 0", "conv 8 0x3"] {
            assert!(message(&[text]).contains("must be between 1 and"), "{text}");
        }
        assert!(message(&["dense auto relu", "dense 3"]).contains("model.layers[0]: `auto` is for the last"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&[text]);
        }
    }
}
