//! The compact layer list of a job, one text per layer: a kind, its sizes, its settings, its activation.
//!
//! ```text
//! dense UNITS [ACTIVATION]          every result from every number; the last layer's UNITS may be `auto`
//! conv FILTERS SIZE [stride N] [pad N] [dilation N] [groups N] [ACTIVATION]
//! pool max|mean SIZE [stride N] [pad N]      pool global      upsample FACTOR      flatten      reshape SIZES
//! batchnorm [synchronized|local]    layernorm          dropout SHARE
//! embedding WIDTH [positions]       lstm|gru|rnn UNITS         attention HEADS [causal]      last
//! residual LAYER | LAYER | ...      the layers' answer plus what they read
//! concat LAYER & LAYER | LAYER      branches that read the same, side by side          transpose
//! relu, leaky-relu, elu, gelu, gelu-erf, tanh, sigmoid, softmax      alone, or (but for softmax) behind a layer's sizes
//! ```
//!
//! SIZE is `5` or `5x3` (height x width). A new layer is one file, one variant of [`Layer`] and a line in each of its
//! functions.

mod attention;
mod concatenation;
mod convolution;
mod dense;
mod embedding;
mod normalization;
mod plain;
mod pool;
mod recurrent;
mod reshape;
mod residual;
mod words;

use crate::activation::Activation;
use crate::assembly::Assembly;
use crate::graph::NodeId;
pub use attention::Attention;
pub use concatenation::Concatenation;
pub use convolution::Convolution;
pub use dense::{Dense, Units};
pub use embedding::Embedding;
pub use normalization::{BatchNormalization, LayerNormalization};
pub use plain::Plain;
pub use pool::Pool;
pub use recurrent::{Cell, Recurrent};
pub use reshape::Reshape;
pub use residual::Residual;
use std::fmt;
use thalweg_core::spec::nearest::unknown;
use thalweg_core::{Error, Result};
use words::Words;

/// One layer as a job describes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// Every number from every number.
    Dense(Dense),
    /// Filters over an image.
    Convolution(Convolution),
    /// One number per window and channel.
    Pool(Pool),
    /// Rows of a batch made alike.
    BatchNormalization(BatchNormalization),
    /// Lines made alike.
    LayerNormalization(LayerNormalization),
    /// A vector per symbol.
    Embedding(Embedding),
    /// A walk along a sequence.
    Recurrent(Recurrent),
    /// Positions that gather from each other.
    Attention(Attention),
    /// The same numbers in another shape.
    Reshape(Reshape),
    /// Layers with a way around them.
    Residual(Residual),
    /// Branches side by side.
    Concatenation(Concatenation),
    /// A layer without sizes.
    Plain(Plain),
}

/// The kinds a layer list may use, besides the layers that are one word.
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
    /// Reads one layer; the error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Layer, String> {
        let text = text.trim();
        let (kind, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let words = |usage| Words::new(rest, usage);
        match kind {
            "" => Err(words(dense::USAGE).complaint("is empty")),
            "dense" => Dense::parse(words(dense::USAGE)).map(Layer::Dense),
            "conv" => Convolution::parse(words(convolution::USAGE)).map(Layer::Convolution),
            "pool" => Pool::parse(words(pool::USAGE)).map(Layer::Pool),
            "batchnorm" => {
                BatchNormalization::parse(words(normalization::BATCH_USAGE)).map(Layer::BatchNormalization)
            }
            "layernorm" => {
                LayerNormalization::parse(words(normalization::LAYER_USAGE)).map(Layer::LayerNormalization)
            }
            "embedding" => Embedding::parse(words(embedding::USAGE)).map(Layer::Embedding),
            "attention" => Attention::parse(words(attention::USAGE)).map(Layer::Attention),
            "reshape" => Reshape::parse(words(reshape::USAGE)).map(Layer::Reshape),
            "residual" => Residual::parse(rest).map(Layer::Residual),
            "concat" => Concatenation::parse(rest).map(Layer::Concatenation),
            kind => match (Plain::parse(kind, rest), Recurrent::parse(kind, rest)) {
                (Some(plain), _) => plain.map(Layer::Plain),
                (None, Some(recurrent)) => recurrent.map(Layer::Recurrent),
                (None, None) => {
                    let families = Plain::KINDS.into_iter().chain(Cell::NAMES).chain(Activation::NAMES);
                    let known = KINDS.into_iter().chain(families);
                    Err(format!("{} (such as \"dense 128 relu\")", unknown("layer", kind, known)))
                }
            },
        }
    }

    /// How many numbers the layer answers with, where the layer alone decides it.
    pub fn units(&self) -> Option<Units> {
        match self {
            Layer::Dense(dense) => Some(dense.units),
            _ => None,
        }
    }

    /// Appends the layer's nodes and parameters.
    pub(crate) fn append(&self, assembly: &mut Assembly, input: NodeId) -> Result<NodeId, String> {
        match self {
            Layer::Dense(layer) => layer.append(assembly, input),
            Layer::Convolution(layer) => layer.append(assembly, input),
            Layer::Pool(layer) => layer.append(assembly, input),
            Layer::BatchNormalization(layer) => layer.append(assembly, input),
            Layer::LayerNormalization(layer) => layer.append(assembly, input),
            Layer::Embedding(layer) => layer.append(assembly, input),
            Layer::Recurrent(layer) => layer.append(assembly, input),
            Layer::Attention(layer) => layer.append(assembly, input),
            Layer::Reshape(layer) => layer.append(assembly, input),
            Layer::Residual(layer) => layer.append(assembly, input),
            Layer::Concatenation(layer) => layer.append(assembly, input),
            Layer::Plain(layer) => layer.append(assembly, input),
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
            Layer::LayerNormalization(layer) => layer.fmt(f),
            Layer::Embedding(layer) => layer.fmt(f),
            Layer::Recurrent(layer) => layer.fmt(f),
            Layer::Attention(layer) => layer.fmt(f),
            Layer::Reshape(layer) => layer.fmt(f),
            Layer::Residual(layer) => layer.fmt(f),
            Layer::Concatenation(layer) => layer.fmt(f),
            Layer::Plain(layer) => layer.fmt(f),
        }
    }
}

/// Reads a layer list; an error names the layer (`model.layers[1]: ...`) and what was expected.
pub fn parse(texts: &[String]) -> Result<Vec<Layer>> {
    let last = texts.len().saturating_sub(1);
    let read = |(index, text): (usize, &String)| {
        let layer = Layer::parse(text).map_err(|reason| wrong(index, reason))?;
        if layer.units() == Some(Units::Auto) && index != last {
            let reason = format!("`auto` is for the last layer only: \"{text}\" needs a number of units");
            return Err(wrong(index, reason));
        }
        Ok(layer)
    };
    texts.iter().enumerate().map(read).collect()
}

/// The error that names a place in the list.
fn wrong(index: usize, reason: impl fmt::Display) -> Error {
    Error::job(format!("model.layers[{index}]: {reason}"))
}

/// The error that names a layer which does not fit what it reads: by its place and by its text.
pub(crate) fn misfit(index: usize, layer: &Layer, reason: impl fmt::Display) -> Error {
    Error::job(format!("model.layers[{index}] \"{layer}\": {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(texts: &[&str]) -> Result<Vec<Layer>> {
        parse(&texts.iter().map(|text| text.to_string()).collect::<Vec<_>>())
    }

    fn complaint(texts: &[&str]) -> String {
        list(texts).unwrap_err().message
    }

    #[test]
    fn a_list_gives_itself_back() {
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
    fn a_typo_finds_its_word_and_its_layer() {
        let text = complaint(&["dense 8 relu", "dens 10"]);
        assert!(text.starts_with("model.layers[1]: unknown layer `dens`; did you mean `dense`?"), "{text}");
        assert!(complaint(&["dense 8 rellu"]).contains("did you mean `relu`?"));
        assert!(complaint(&["dense 8 swish12345"]).contains("known are relu, tanh, sigmoid"));
    }

    #[test]
    fn every_refusal_says_what_was_expected() {
        for text in ["", "dense", "dense relu", "dense -3", "dense 1.5", "dense 8 relu relu"] {
            assert!(complaint(&[text]).contains("expected \"dense UNITS"), "{text}");
        }
        assert!(
            complaint(&["conv 3"]).contains("the size of the filters is missing; expected \"conv FILTERS")
        );
        assert!(complaint(&["batchnorm local synchronized"]).contains("exclude each other"));
        assert!(complaint(&["pool min 2"]).contains("unknown pooling `min`"));
        assert!(complaint(&["dropout 1.5"]).contains("below 1, is `1.5`"));
        assert!(complaint(&["reshape 7x0"]).contains("`7x0` are no sizes; expected \"reshape HEIGHT"));
        assert!(complaint(&["conv 3 3 stride"]).contains("behind `stride` is missing"));
        assert!(complaint(&["residual dense 3 | dens 4"]).contains("did you mean `dense`?"));
        for text in ["dense 0", "dense 999999999999", "lstm 0", "conv 8 0x3"] {
            assert!(complaint(&[text]).contains("must be between 1 and"), "{text}");
        }
        assert!(
            complaint(&["dense auto relu", "dense 3"]).contains("model.layers[0]: `auto` is for the last")
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&[text]);
        }
    }
}
