//! The model boundary: all that a strategy sees of a model.
//!
//! A model shows a layout and computes loss and gradient at any given parameters. Parameters and gradients are flat
//! `f32` buffers owned by the caller, so that they can live in shared memory, on a server or in a checkpoint. Tensors
//! stand in the layout in the order in which back-propagation finishes them: a prefix of the gradient buffer is
//! complete while the rest is still being computed, and can already leave.

use crate::batch::Batch;
use crate::error::Result;
use crate::file_order::FileOrder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::borrow::Cow;

/// What a tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Learned by the optimizer.
    Trainable,
    /// A running statistic that the forward pass updates.
    Statistic,
}

/// How a tensor's gradient looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Density {
    /// Every element gets a gradient.
    Dense,
    /// Only some rows do (embeddings).
    Rows,
}

/// One named tensor of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// `layers.0.weight`.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Learned or a statistic.
    pub role: Role,
    /// Dense or row-sparse gradient.
    pub density: Density,
    /// Where it begins in the flat buffers.
    pub offset: usize,
    /// How files order it, where that is not the order of the flat buffers.
    pub file_order: Option<FileOrder>,
}

impl Tensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its place in the flat buffers.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }

    /// Its sizes in a file.
    pub fn file_shape(&self) -> Vec<usize> {
        self.file_order.as_ref().map_or_else(|| self.shape.clone(), |order| order.shape(&self.shape))
    }

    /// Its values in the order of a file; copied only where that differs.
    pub fn to_file<'a>(&self, values: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.file_order {
            Some(order) => Cow::Owned(order.to_file(&self.shape, values)),
            None => Cow::Borrowed(values),
        }
    }

    /// Values of a file in the order of the flat buffers; copied only where that differs.
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
    tensors: Vec<Tensor>,
}

impl Layout {
    /// Appends a tensor and returns its index.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize], role: Role, density: Density) -> usize {
        let (name, offset) = (name.into(), self.len());
        self.tensors.push(Tensor { name, shape: shape.to_vec(), role, density, offset, file_order: None });
        self.tensors.len() - 1
    }

    /// Says how files order a tensor.
    pub fn set_file_order(&mut self, tensor: usize, order: Option<FileOrder>) {
        self.tensors[tensor].file_order = order;
    }

    /// The tensors in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Elements of a flat buffer.
    pub fn len(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.offset + last.len())
    }

    /// Whether there is nothing to learn.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensor that holds an element of the flat buffer.
    pub fn at(&self, element: usize) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.range().contains(&element))
    }

    /// A digest by which ranks recognise that they train the same thing.
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

/// A piece of the gradient that is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gradient<'a> {
    /// A whole tensor, in place in the gradient buffer.
    Dense {
        /// Index in the layout.
        tensor: usize,
        /// Its values.
        values: &'a [f32],
    },
    /// The touched rows of a row-sparse tensor.
    Rows {
        /// Index in the layout.
        tensor: usize,
        /// Which rows, ascending.
        rows: &'a [u32],
        /// Their values, row-major.
        values: &'a [f32],
    },
    /// A matrix as the product `left^T * right` of two thin ones (sufficient factors). Over a sequence, every position is
    /// a line of its own.
    Factors {
        /// Index in the layout.
        tensor: usize,
        /// Output gradient, one line per sample.
        left: &'a [f32],
        /// Input, one line per sample.
        right: &'a [f32],
    },
}

/// What a strategy hears from the model during the backward pass.
pub trait Hooks {
    /// A piece of the gradient is ready.
    fn gradient(&mut self, piece: Gradient<'_>) -> Result<()>;
    /// Sums values across workers inside the pass (synchronized statistics). Every worker must announce and reduce in
    /// the same order.
    fn reduce(&mut self, values: &mut [f32]) -> Result<()>;
    /// This share of the pass's work is done: a moment between two operators, in which what is under way can go on.
    fn progress(&mut self, _done: f64) -> Result<()> {
        Ok(())
    }
}

/// Hooks of somebody who does not listen and works alone.
pub struct NoHooks;

impl Hooks for NoHooks {
    fn gradient(&mut self, _: Gradient<'_>) -> Result<()> {
        Ok(())
    }
    fn reduce(&mut self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
}

/// Sums over the rows of a batch; adding the tallies of parts gives the tally of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Rows seen.
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
    /// Adds the tally of other rows.
    pub fn add(&mut self, other: &Tally) {
        self.rows += other.rows;
        self.loss += other.loss;
        self.correct += other.correct;
        self.absolute += other.absolute;
        self.squared += other.squared;
    }

    /// Mean loss.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.rows.max(1) as f64
    }

    /// Share of correctly classified rows.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.rows.max(1) as f64
    }
}

/// A model, as strategies see it.
pub trait Model: Send {
    /// Its tensors, in the order of the flat buffers.
    fn layout(&self) -> &Layout;

    /// Writes the initial parameters: a pure function of the seed.
    fn initialize(&self, seed: u64, parameters: &mut [f32]);

    /// Writes the gradient of the rows' summed loss, times `scale`, over the whole gradient buffer, announcing each
    /// piece through the hooks as it is complete, once; what is not announced leaves after the pass. A batch without rows gives a gradient of zeros. What is announced is
    /// this batch's: who computes a step in parts has to add them up before it is the step's.
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally>;

    /// Loss and metrics without a gradient.
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally>;

    /// Appends what the model answers for each row: class probabilities, or one number.
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()>;

    /// Whether it sums values across workers inside the pass: then every worker must make as many passes per step.
    fn synchronizes(&self) -> bool {
        false
    }

    /// Whether a row's gradient depends on the other rows of its batch (statistics over a batch, whosever rows they are).
    fn mixes_rows(&self) -> bool {
        self.synchronizes()
    }

    /// Bytes that the values of a pass over so many rows take at least, besides parameters and gradient.
    fn pass_bytes(&self, _rows: usize) -> u64 {
        0
    }

    /// The part of the model whose result is largest, and how large that is.
    fn largest_value(&self) -> Option<String> {
        None
    }

    /// Floating-point operations of one forward and backward pass over one row (what a simulator charges).
    fn flops_per_row(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_each_other() {
        let mut layout = Layout::default();
        layout.push("a", &[2, 3], Role::Trainable, Density::Dense);
        layout.push("b", &[4], Role::Trainable, Density::Dense);
        assert_eq!(layout.len(), 10);
        assert_eq!(layout.tensors()[1].range(), 6..10);
        assert_eq!(layout.at(5).unwrap().name, "a");
        assert_eq!(layout.at(6).unwrap().name, "b");
        assert!(layout.at(10).is_none());
    }

    #[test]
    fn the_hash_sees_names_and_shapes() {
        let one = |name: &str, shape: &[usize]| {
            let mut layout = Layout::default();
            layout.push(name, shape, Role::Trainable, Density::Dense);
            layout.hash()
        };
        assert_ne!(one("a", &[6]), one("b", &[6]));
        assert_ne!(one("a", &[2, 3]), one("a", &[3, 2]));
        assert_eq!(one("a", &[6]), one("a", &[6]));
    }
}
