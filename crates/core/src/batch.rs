//! The rows of one local step, as they travel from the data to the model.

use serde::{Deserialize, Serialize};

/// What a model reads: one entry per row, all rows of the same width.
#[derive(Clone, Debug, PartialEq)]
pub enum Features {
    /// Row-major values, `width` per row.
    Dense(Vec<f32>),
    /// Compressed rows: row `i` holds `(columns[k], values[k])` for `k` in `starts[i]..starts[i + 1]`, columns ascending.
    Sparse {
        /// One more entry than rows; the first is 0.
        starts: Vec<usize>,
        /// Column of each stored value.
        columns: Vec<u32>,
        /// The stored values.
        values: Vec<f32>,
    },
    /// Symbols of a sequence, `window` per row; a model that wants numbers sees each as a one-hot of `vocabulary`.
    Tokens {
        /// Row-major symbols.
        symbols: Vec<u32>,
        /// Symbols per row.
        window: usize,
        /// How many different symbols there are.
        vocabulary: usize,
    },
}

impl Features {
    /// Takes out all rows, keeping the memory.
    pub fn clear(&mut self) {
        match self {
            Features::Dense(values) => values.clear(),
            Features::Sparse { starts, columns, values } => {
                starts.clear();
                starts.push(0);
                columns.clear();
                values.clear();
            }
            Features::Tokens { symbols, .. } => symbols.clear(),
        }
    }
}

/// What a model should have answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// A class per row.
    Classes(Vec<u32>),
    /// A number per row.
    Values(Vec<f32>),
}

impl Targets {
    /// Takes out all rows, keeping the memory.
    pub fn clear(&mut self) {
        match self {
            Targets::Classes(classes) => classes.clear(),
            Targets::Values(values) => values.clear(),
        }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        match self {
            Targets::Classes(classes) => classes.len(),
            Targets::Values(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows of one local step. It may hold no row at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Which epoch the rows are read for (dropout and augmentation draw from it).
    pub epoch: u64,
    /// Identity of each row in its source: the same whoever computes it.
    pub rows: Vec<u64>,
    /// Numbers per row once spelled out (for tokens, `window * vocabulary`).
    pub width: usize,
    /// What the model reads.
    pub features: Features,
    /// What it should answer.
    pub targets: Targets,
}

impl Batch {
    /// A batch without rows.
    pub fn empty(width: usize, features: Features, targets: Targets) -> Batch {
        let mut batch = Batch { epoch: 0, rows: Vec::new(), width, features, targets };
        batch.clear();
        batch
    }

    /// Takes out all rows, keeping the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.features.clear();
        self.targets.clear();
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// What is to be learned from the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One of several classes.
    Classification,
    /// A number.
    Regression,
}
