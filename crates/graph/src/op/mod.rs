//! The operators, one file each: shape inference, the kernel call, the gradient (as graph nodes) and the cost.
//!
//! An operator has one result. What it saves for its gradient (probabilities, indices of maxima, gates) are its *side
//! outputs*, which nodes of [`Op::SideOutput`] read. A side output without a reader is never written, so that
//! evaluation does not pay for it. A new operator is one file, one variant of [`Op`] and one line in
//! [`Op::operator`].

pub mod attention;
pub mod batch_normalize;
pub mod class_loss;
pub mod column_sums;
pub mod concatenate;
pub mod convolution;
pub mod cross_entropy;
pub mod delay;
mod direct_convolution;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod feature_product;
pub mod gru;
pub mod last;
pub mod layer_normalize;
pub mod leaf;
pub mod lstm;
pub mod matrix;
pub mod pool;
pub mod product;
pub mod regression_loss;
pub mod reshape;
pub mod rnn;
pub mod softmax;
pub mod sparse;
mod sparse_backward;
pub mod transpose;
pub mod window;

use crate::autodiff::Tape;
use crate::executor::OperatorCall;
use crate::graph::{NodeId, Shape};
use std::sync::Arc;
use thalweg_core::{Batch, Result};

/// The operation of a node. `XGradient` computes the gradient of the input of `X`, unless it says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A tensor, by its index in the graph's parameters.
    Parameter(usize),
    Features(leaf::FeatureInput),
    Constant(leaf::Constant),
    Fill(leaf::Fill),
    /// A side output of its input node, by index.
    SideOutput(usize),
    /// A matrix product with an elementwise epilogue.
    Product(product::Product),
    /// A matrix product of the features, dense or sparse, with a weight.
    FeatureProduct(feature_product::FeatureProduct),
    /// The gradient of the weight of a [`Op::FeatureProduct`].
    FeatureGradient(feature_product::FeatureGradient),
    /// A chain of elementwise steps.
    Elementwise(elementwise::Elementwise),
    ColumnSums(column_sums::ColumnSums),
    Softmax(softmax::Softmax),
    SoftmaxGradient(softmax::SoftmaxGradient),
    CrossEntropy(cross_entropy::CrossEntropy),
    /// Classification losses other than cross-entropy.
    ClassLoss(class_loss::ClassLoss),
    RegressionLoss(regression_loss::RegressionLoss),
    /// A view of its input under another shape.
    Reshape(reshape::Reshape),
    Convolution(convolution::Convolution),
    ConvolutionWeightGradient(convolution::ConvolutionWeightGradient),
    ConvolutionInputGradient(convolution::ConvolutionInputGradient),
    Pool(pool::Pool),
    PoolGradient(pool::PoolGradient),
    Dropout(dropout::Dropout),
    LayerNormalize(layer_normalize::LayerNormalize),
    LayerNormalizeGradient(layer_normalize::LayerNormalizeGradient),
    BatchNormalize(batch_normalize::BatchNormalize),
    BatchNormalizeGradient(batch_normalize::BatchNormalizeGradient),
    RunningStatisticUpdate(batch_normalize::RunningStatisticUpdate),
    /// Batch normalisation by running statistics.
    RunningNormalize(batch_normalize::RunningNormalize),
    Embedding(embedding::Embedding),
    EmbeddingGradient(embedding::EmbeddingGradient),
    /// A sequence shifted by one position.
    Delay(delay::Delay),
    Lstm(lstm::Lstm),
    LstmGradient(lstm::LstmGradient),
    Last(last::Last),
    LastGradient(last::LastGradient),
    Gru(gru::Gru),
    GruGradient(gru::GruGradient),
    Rnn(rnn::Rnn),
    RnnGradient(rnn::RnnGradient),
    Concatenate(concatenate::Concatenate),
    Columns(concatenate::Columns),
    ColumnsGradient(concatenate::ColumnsGradient),
    Transpose(transpose::Transpose),
    Attention(attention::Attention),
    AttentionGradient(attention::AttentionGradient),
}

impl Op {
    pub fn operator(&self) -> &(dyn Operator + Sync) {
        match self {
            Op::Parameter(_) | Op::SideOutput(_) => &leaf::External,
            Op::Features(op) => op,
            Op::Constant(op) => op,
            Op::Fill(op) => op,
            Op::Product(op) => op,
            Op::FeatureProduct(op) => op,
            Op::FeatureGradient(op) => op,
            Op::Elementwise(op) => op,
            Op::ColumnSums(op) => op,
            Op::Softmax(op) => op,
            Op::SoftmaxGradient(op) => op,
            Op::CrossEntropy(op) => op,
            Op::ClassLoss(op) => op,
            Op::RegressionLoss(op) => op,
            Op::Reshape(op) => op,
            Op::Convolution(op) => op,
            Op::ConvolutionWeightGradient(op) => op,
            Op::ConvolutionInputGradient(op) => op,
            Op::Pool(op) => op,
            Op::PoolGradient(op) => op,
            Op::Dropout(op) => op,
            Op::LayerNormalize(op) => op,
            Op::LayerNormalizeGradient(op) => op,
            Op::BatchNormalize(op) => op,
            Op::BatchNormalizeGradient(op) => op,
            Op::RunningStatisticUpdate(op) => op,
            Op::RunningNormalize(op) => op,
            Op::Embedding(op) => op,
            Op::EmbeddingGradient(op) => op,
            Op::Delay(op) => op,
            Op::Lstm(op) => op,
            Op::LstmGradient(op) => op,
            Op::Last(op) => op,
            Op::LastGradient(op) => op,
            Op::Gru(op) => op,
            Op::GruGradient(op) => op,
            Op::Rnn(op) => op,
            Op::RnnGradient(op) => op,
            Op::Concatenate(op) => op,
            Op::Columns(op) => op,
            Op::ColumnsGradient(op) => op,
            Op::Transpose(op) => op,
            Op::Attention(op) => op,
            Op::AttentionGradient(op) => op,
        }
    }

    pub fn constant(values: &[f32], shape: &[usize]) -> Op {
        Op::Constant(leaf::Constant { values: Arc::from(values), sizes: shape.to_vec() })
    }

    /// An elementwise chain of one step.
    pub fn elementwise(step: elementwise::ElementwiseStep) -> Op {
        Op::Elementwise(elementwise::Elementwise { steps: vec![step] })
    }
}

/// The interface of all operators.
pub trait Operator {
    /// Display name with the settings.
    fn describe(&self) -> String;

    /// Infers the shape of the result; the error names the mismatch.
    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String>;

    /// Shapes of the side outputs.
    fn side_outputs(&self, _inputs: &[&Shape]) -> Vec<Shape> {
        Vec::new()
    }

    /// The input that the kernel transforms in place: it is in the output buffer when the kernel starts, and the
    /// slice of that input is empty.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// Whether the result is a view of the first input, so that nothing is computed.
    fn is_view(&self) -> bool {
        false
    }

    /// Whether each row of result and side outputs depends only on the same row of the inputs (and on inputs without
    /// rows), so that threads can split the batch. A row-wise operator that reads the batch itself starts at
    /// [`OperatorCall::first_row`].
    fn is_rowwise(&self, _batch: &Batch) -> bool {
        false
    }

    fn run(&self, call: &mut OperatorCall<'_, '_>) -> Result<()>;

    /// Appends the nodes of the gradients of the inputs, given the gradient of the result (`delta`). For a loss,
    /// where the backward pass starts, `delta` is the loss itself.
    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId);

    /// As [`Operator::gradient`], given the gradient of a side output.
    fn side_output_gradient(&self, _tape: &mut Tape<'_>, _node: NodeId, _side: usize, _delta: NodeId) {}

    /// Floating-point operations per row of the batch, or in total where the result has no batch dimension.
    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64;
}

/// The product of sizes as a FLOP count, capped so that sums of counts do not overflow.
pub(crate) fn flop_count(sizes: &[usize]) -> u64 {
    let product = sizes.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
    product.min(1 << 56)
}

pub(crate) fn expect_inputs(inputs: &[&Shape], expected: usize) -> Result<(), String> {
    match inputs.len() == expected {
        true => Ok(()),
        false => Err(format!("expected {expected} inputs, got {}", inputs.len())),
    }
}
