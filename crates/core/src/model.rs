//! The interface between strategies and models.
//!
//! A model has a layout and computes loss and gradient at given parameters. Parameters and gradients are flat `f32`
//! buffers owned by the caller, so that they can be placed in shared memory, on a server or in a checkpoint. The layout
//! has the tensors in the order in which back-propagation finishes them: a prefix of the gradient buffer is complete, and
//! can be sent, while the rest is still being computed.

use crate::batch::Batch;
use crate::error::Result;
use crate::file_order::FileOrder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::borrow::Cow;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// Learned by the optimizer.
    Trainable,
    /// A running statistic that the forward pass updates.
    Statistic,
}

/// The sparsity of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Density {
    /// Every element gets a gradient.
    Dense,
    /// Only some rows do (embeddings).
    Rows,
}

/// A tensor of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// `layers.0.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    pub role: TensorRole,
    pub density: Density,
    /// Its first element in the flat buffers.
    pub offset: usize,
    /// The order in files, if it differs from the flat buffers.
    pub file_order: Option<FileOrder>,
}

impl TensorInfo {
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its elements in the flat buffers.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }

    pub fn file_shape(&self) -> Vec<usize> {
        self.file_order.as_ref().map_or_else(|| self.shape.clone(), |order| order.shape(&self.shape))
    }

    /// Values in file order; copied only if that differs.
    pub fn to_file<'a>(&self, values: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.file_order {
            Some(order) => Cow::Owned(order.to_file(&self.shape, values)),
            None => Cow::Borrowed(values),
        }
    }

    /// Values of a file in memory order; copied only if that differs.
    pub fn to_memory<'a>(&self, stored: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.file_order {
            Some(order) => Cow::Owned(order.to_memory(&self.shape, stored)),
            None => Cow::Borrowed(stored),
        }
    }
}

/// The tensors of a model in the order of the flat buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    tensors: Vec<TensorInfo>,
}

impl Layout {
    /// Appends a tensor and returns its index.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        role: TensorRole,
        density: Density,
    ) -> usize {
        let (name, offset) = (name.into(), self.len());
        self.tensors.push(TensorInfo {
            name,
            shape: shape.to_vec(),
            role,
            density,
            offset,
            file_order: None,
        });
        self.tensors.len() - 1
    }

    pub fn set_file_order(&mut self, tensor: usize, order: Option<FileOrder>) {
        self.tensors[tensor].file_order = order;
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Number of elements of a flat buffer.
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.offset + last.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensor of an element of the flat buffer.
    pub fn at(&self, element: usize) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.range().contains(&element))
    }

    /// A digest that ranks compare to check that they train the same model.
    pub fn hash(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for tensor in &self.tensors {
            digest.update(format!(
                "{} {:?} {:?} {:?}\n",
                tensor.name, tensor.shape, tensor.role, tensor.density
            ));
        }
        digest.finalize().into()
    }
}

/// A completed part of the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gradient<'a> {
    /// A whole tensor, in place in the gradient buffer.
    Dense { tensor: usize, values: &'a [f32] },
    /// The touched rows of a row-sparse tensor.
    Rows {
        tensor: usize,
        /// Row indices, ascending.
        rows: &'a [u32],
        /// Row-major.
        values: &'a [f32],
    },
    /// A matrix as the product `left^T * right` (sufficient factors). Over a sequence, every position has its own line.
    Factors {
        tensor: usize,
        /// Gradient of the output, one line per sample.
        left: &'a [f32],
        /// Input, one line per sample.
        right: &'a [f32],
    },
}

/// Callbacks of a model into the strategy during the backward pass.
pub trait Hooks {
    /// A part of the gradient is complete.
    fn gradient(&mut self, piece: Gradient<'_>) -> Result<()>;
    /// All-reduces values inside the pass (synchronized batch statistics). Every worker must make the same calls of
    /// `gradient` and `reduce` in the same order.
    fn reduce(&mut self, values: &mut [f32]) -> Result<()>;
    /// The weight of this pass in running statistics of a layer that normalises by each worker's own rows, given its share
    /// of the step's rows. The weights of all passes of a step add up to 1.
    fn statistics_weight(&self, share: f32) -> f32 {
        share
    }
    /// Called between two operators with the share of the pass that is done, so that operations in flight can progress.
    fn progress(&mut self, _done: f64) -> Result<()> {
        Ok(())
    }
}

/// Hooks that do nothing: a single worker without overlap.
pub struct NoHooks;

impl Hooks for NoHooks {
    fn gradient(&mut self, _: Gradient<'_>) -> Result<()> {
        Ok(())
    }
    fn reduce(&mut self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
}

/// Sums over the rows of a batch. The tally of a batch is the sum of the tallies of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub rows: u64,
    /// Sum of the rows' losses.
    pub loss: f64,
    /// Rows classified correctly (classification).
    pub correct: u64,
    /// Sum of absolute errors (regression).
    pub absolute: f64,
    /// Sum of squared errors (regression).
    pub squared: f64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.rows += other.rows;
        self.loss += other.loss;
        self.correct += other.correct;
        self.absolute += other.absolute;
        self.squared += other.squared;
    }

    pub fn mean_loss(&self) -> f64 {
        self.loss / self.rows.max(1) as f64
    }

    /// Fraction of correctly classified rows.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.rows.max(1) as f64
    }
}

pub trait Model: Send {
    fn layout(&self) -> &Layout;

    /// Writes the initial parameters: a pure function of the seed.
    fn initialize(&self, seed: u64, parameters: &mut [f32]);

    /// Writes the gradient of the rows' summed loss, times `scale`, over the whole gradient buffer, and passes each part to
    /// the hooks once, when it is complete; parts without a call are sent after the pass. A batch without rows gives a
    /// gradient of zeros. The parts are those of this batch: with gradient accumulation the caller sums the batches of a
    /// step before sending.
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally>;

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally>;

    /// Appends the output for each row: class probabilities, or one number.
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()>;

    /// Whether it predicts at every position of a sequence, of which [`Model::predict`] gives the last.
    fn predicts_sequences(&self) -> bool {
        false
    }

    /// Whether it calls [`Hooks::reduce`]; every worker must then make the same number of passes per step.
    fn synchronizes(&self) -> bool {
        false
    }

    /// Whether a row's gradient depends on other rows of its batch (batch statistics, local or synchronized).
    fn mixes_rows(&self) -> bool {
        self.synchronizes()
    }

    /// Lower bound of the bytes of a pass over `rows` rows, besides parameters and gradient.
    fn pass_bytes(&self, _rows: usize) -> u64 {
        0
    }

    /// A description of the largest intermediate value and its size.
    fn largest_value(&self) -> Option<String> {
        None
    }

    /// Floating-point operations of a forward and backward pass over one row; the simulator charges them to its clock.
    fn flops_per_row(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_each_other() {
        let mut layout = Layout::default();
        layout.push("a", &[2, 3], TensorRole::Trainable, Density::Dense);
        layout.push("b", &[4], TensorRole::Trainable, Density::Dense);
        assert_eq!(layout.len(), 10);
        assert_eq!(layout.tensors()[1].range(), 6..10);
        assert_eq!(layout.at(5).unwrap().name, "a");
        assert_eq!(layout.at(6).unwrap().name, "b");
        assert!(layout.at(10).is_none());
    }

    #[test]
    fn the_hash_covers_names_and_shapes() {
        let one = |name: &str, shape: &[usize]| {
            let mut layout = Layout::default();
            layout.push(name, shape, TensorRole::Trainable, Density::Dense);
            layout.hash()
        };
        assert_ne!(one("a", &[6]), one("b", &[6]));
        assert_ne!(one("a", &[2, 3]), one("a", &[3, 2]));
        assert_eq!(one("a", &[6]), one("a", &[6]));
    }
}
