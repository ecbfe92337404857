//! The operators, one file each: the shape of the result, the kernel that computes it, the rule for its gradient
//! (written as nodes, not as code) and its cost.
//!
//! An operator has one result. What it keeps for its own gradient (probabilities, chosen places, gates) are its
//! *parts*: values beside the result that a node [`Op::Part`] reads. A part that nobody reads is never written, so that
//! evaluation pays for nothing it does not need. A new operator is one file, one variant of [`Op`] and one line in
//! [`Op::operator`].

pub mod attention;
pub mod batch_normalize;
pub mod class_loss;
pub mod column_sums;
pub mod concatenate;
pub mod convolution;
pub mod cross_entropy;
pub mod delay;
mod direct;
pub mod distance;
pub mod dropout;
pub mod elementwise;
pub mod embedding;
pub mod feature_product;
pub mod gru;
pub mod last;
pub mod leaf;
pub mod lstm;
pub mod matrix;
pub mod normalize;
pub mod pool;
pub mod product;
pub mod reshape;
pub mod rnn;
mod scattered;
pub mod softmax;
pub mod sparse;
pub mod transpose;
pub mod window;

use crate::autodiff::Tape;
use crate::executor::Call;
use crate::graph::{NodeId, Shape};
use std::sync::Arc;
use thalweg_core::{Batch, Result};

/// Everything a node can do.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A tensor the caller owns, by its index in the graph.
    Parameter(usize),
    /// The batch's features as numbers of that shape.
    Features(leaf::Features),
    /// Numbers known when the graph is made.
    Constant(leaf::Constant),
    /// The same number everywhere.
    Fill(leaf::Fill),
    /// A value that its producer writes beside its result.
    Part(usize),
    /// A matrix product, and what follows it element by element.
    Product(product::Product),
    /// A product with the features, in whatever form they come.
    FeatureProduct(feature_product::FeatureProduct),
    /// The gradient of the weight of such a product.
    FeatureGradient(feature_product::FeatureGradient),
    /// A chain of steps on each element.
    Elementwise(elementwise::Elementwise),
    /// The sum of each column.
    ColumnSums(column_sums::ColumnSums),
    /// Shares that add up to 1.
    Softmax(softmax::Softmax),
    /// Its way back.
    SoftmaxGradient(softmax::SoftmaxGradient),
    /// The surprise of the true class.
    CrossEntropy(cross_entropy::CrossEntropy),
    /// Losses of classes besides cross-entropy.
    ClassLoss(class_loss::ClassLoss),
    /// Losses of numbers.
    Distance(distance::Distance),
    /// The same numbers under another shape.
    Reshape(reshape::Reshape),
    /// Filters over images.
    Convolution(convolution::Convolution),
    /// Its way back to the weight.
    ConvolutionWeightGradient(convolution::ConvolutionWeightGradient),
    /// Its way back to the images.
    ConvolutionInputGradient(convolution::ConvolutionInputGradient),
    /// One number per window and channel.
    Pool(pool::Pool),
    /// Its way back.
    PoolGradient(pool::PoolGradient),
    /// Numbers dropped at random.
    Dropout(dropout::Dropout),
    /// Lines with mean 0 and variance 1.
    Normalize(normalize::Normalize),
    /// Its way back.
    NormalizeGradient(normalize::NormalizeGradient),
    /// Columns with mean 0 and variance 1.
    BatchNormalize(batch_normalize::BatchNormalize),
    /// Its way back.
    BatchNormalizeGradient(batch_normalize::BatchNormalizeGradient),
    /// The move of a running statistic.
    StatisticMove(batch_normalize::StatisticMove),
    /// Columns normalised by running statistics.
    RunningNormalize(batch_normalize::RunningNormalize),
    /// A vector per symbol.
    Embedding(embedding::Embedding),
    /// Its way back.
    EmbeddingGradient(embedding::EmbeddingGradient),
    /// A sequence moved on by one position.
    Delay(delay::Delay),
    /// The recurrent part of an LSTM.
    Lstm(lstm::Lstm),
    /// Its way back.
    LstmGradient(lstm::LstmGradient),
    /// The last position of a sequence.
    Last(last::Last),
    /// Its way back.
    LastGradient(last::LastGradient),
    /// The recurrent part of a gated recurrent unit.
    Gru(gru::Gru),
    /// Its way back.
    GruGradient(gru::GruGradient),
    /// A plain recurrent layer.
    Rnn(rnn::Rnn),
    /// Its way back.
    RnnGradient(rnn::RnnGradient),
    /// Values side by side.
    Concatenate(concatenate::Concatenate),
    /// Some columns of a value.
    Columns(concatenate::Columns),
    /// Its way back.
    ColumnsGradient(concatenate::ColumnsGradient),
    /// The last two sizes exchanged.
    Transpose(transpose::Transpose),
    /// Multi-head attention.
    Attention(attention::Attention),
    /// Its way back.
    AttentionGradient(attention::AttentionGradient),
}

impl Op {
    /// What the operator can say about itself.
    pub fn operator(&self) -> &(dyn Operator + Sync) {
        match self {
            Op::Parameter(_) | Op::Part(_) => &leaf::Named,
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
            Op::Distance(op) => op,
            Op::Reshape(op) => op,
            Op::Convolution(op) => op,
            Op::ConvolutionWeightGradient(op) => op,
            Op::ConvolutionInputGradient(op) => op,
            Op::Pool(op) => op,
            Op::PoolGradient(op) => op,
            Op::Dropout(op) => op,
            Op::Normalize(op) => op,
            Op::NormalizeGradient(op) => op,
            Op::BatchNormalize(op) => op,
            Op::BatchNormalizeGradient(op) => op,
            Op::StatisticMove(op) => op,
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

    /// Numbers known when the graph is made.
    pub fn constant(values: &[f32], shape: &[usize]) -> Op {
        Op::Constant(leaf::Constant { values: Arc::from(values), sizes: shape.to_vec() })
    }

    /// A chain of one step.
    pub fn step(step: elementwise::Step) -> Op {
        Op::Elementwise(elementwise::Elementwise { steps: vec![step] })
    }
}

/// What every operator knows about itself.
pub trait Operator {
    /// Its name with its settings, for people.
    fn describe(&self) -> String;

    /// The shape of its result, or why these inputs do not fit.
    fn shape(&self, inputs: &[&Shape]) -> Result<Shape, String>;

    /// The shapes of what it can write beside its result.
    fn parts(&self, _inputs: &[&Shape]) -> Vec<Shape> {
        Vec::new()
    }

    /// The input that the kernel turns into the result: it finds that input in the output, and none in its place.
    fn in_place(&self) -> Option<usize> {
        None
    }

    /// Whether the result is the first input under another shape, so that nothing is computed.
    fn is_view(&self) -> bool {
        false
    }

    /// Whether each row of result and parts depends on that row of the inputs only (and on inputs without rows), so
    /// that threads can share the batch. Such an operator looks at [`Call::first`] if it reads the batch itself.
    fn is_by_rows(&self, _batch: &Batch) -> bool {
        false
    }

    /// Computes the result.
    fn run(&self, call: &mut Call<'_, '_>) -> Result<()>;

    /// Appends the nodes that carry the gradient of the result (`delta`) to what the operator reads. For a loss, which
    /// begins the way back, `delta` is the loss itself.
    fn gradient(&self, tape: &mut Tape<'_>, node: NodeId, delta: NodeId);

    /// The same for the gradient of a part that other nodes read.
    fn part_gradient(&self, _tape: &mut Tape<'_>, _node: NodeId, _part: usize, _delta: NodeId) {}

    /// Floating-point operations per row of the batch, or for all where the result has no rows of its own.
    fn flops(&self, inputs: &[&Shape], shape: &Shape) -> u64;
}

/// A number of operations: a product of sizes, cut off far beyond what is ever computed, so that sums of them fit.
pub(crate) fn work(sizes: &[usize]) -> u64 {
    let product = sizes.iter().fold(1u64, |product, size| product.saturating_mul(*size as u64));
    product.min(1 << 56)
}

/// Refuses a wrong number of inputs.
pub(crate) fn expect_inputs(inputs: &[&Shape], expected: usize) -> Result<(), String> {
    match inputs.len() == expected {
        true => Ok(()),
        false => Err(format!("expected {expected} inputs, got {}", inputs.len())),
    }
}
