//! What a name of the file stands for, while it is translated.

use super::tensor::Constant;
use super::view::View;

/// The value of a name.
#[derive(Clone, Debug)]
pub enum Item {
    /// The symbols of the batch, as whole numbers.
    Symbols,
    /// Something computed from the rows.
    View(View),
    /// A tensor that is to be learned, or is a statistic: its reader knows.
    Weight(Weight),
    /// Numbers known now.
    Constant(Constant),
    /// The same number everywhere, for as many rows as there are.
    Filled(f32),
    /// Products of queries and keys, on the way to an attention.
    Scores(Scores),
    /// The error function of a value over the root of 2, on the way to a GELU; with 1 added to it or not.
    Erf(View, bool),
    /// A step of a normalisation that is written out.
    Moment(Moment, View),
    /// What a node that could not be translated would have given.
    Unknown,
}

/// A tensor of the file, before its reader decides what it is.
#[derive(Clone, Debug)]
pub struct Weight {
    /// What its parameter is to be called.
    pub name: String,
    /// Its name among the file's tensors.
    pub origin: String,
    /// Its sizes in the file.
    pub own: Vec<usize>,
    /// Its numbers in the order of the file, under the sizes that its reader sees.
    pub tensor: Constant,
    /// Whether its reader sees rows and columns exchanged.
    pub transposed: bool,
}

impl Weight {
    /// A tensor as it is in the file.
    pub fn new(name: &str, tensor: Constant) -> Weight {
        let own = tensor.sizes.clone();
        Weight { name: name.into(), origin: name.into(), own, tensor, transposed: false }
    }
}

/// `queries * keys`, scaled, perhaps masked, perhaps as shares already.
#[derive(Clone, Debug)]
pub struct Scores {
    /// The left factor: `... x positions x numbers`.
    pub queries: View,
    /// The right factor: `... x numbers x positions`.
    pub keys: View,
    /// What the products are multiplied by.
    pub factor: f32,
    /// Whether later positions are hidden.
    pub causal: bool,
    /// Whether a softmax has made shares of them.
    pub shares: bool,
}

/// How far a normalisation that is written out has come; each stage holds the value it is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// The mean of the last axis.
    Mean,
    /// The value less its mean.
    Centered,
    /// The square of that.
    Squared,
    /// The mean of the squares.
    Variance,
    /// With a small number added.
    Padded(f32),
    /// The root of that.
    Deviation(f32),
}
