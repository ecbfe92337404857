//! The rows of one local step, as the data source hands them to the model.

use serde::{Deserialize, Serialize};

/// Model inputs: one entry per row, all rows of the same width.
#[derive(Clone, Debug, PartialEq)]
pub enum Features {
    /// Row-major values, `width` per row.
    Dense(Vec<f32>),
    /// Compressed rows: row `i` holds `(columns[k], values[k])` for `k` in `starts[i]..starts[i + 1]`, columns ascending.
    Sparse {
        /// One more entry than rows; the first is 0.
        starts: Vec<usize>,
        columns: Vec<u32>,
        values: Vec<f32>,
    },
    /// Symbols of a sequence, `window` per row; a model with numeric inputs reads each as a one-hot of `vocabulary`.
    Tokens {
        symbols: Vec<u32>,
        window: usize,
        /// Number of distinct symbols.
        vocabulary: usize,
    },
}

impl Features {
    /// Removes all rows and keeps the allocations.
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

/// The labels of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// A class per row.
    Classes(Vec<u32>),
    /// A number per row.
    Values(Vec<f32>),
}

impl Targets {
    /// Removes all rows and keeps the allocations.
    pub fn clear(&mut self) {
        match self {
            Targets::Classes(classes) => classes.clear(),
            Targets::Values(values) => values.clear(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Targets::Classes(classes) => classes.len(),
            Targets::Values(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows of one local step. It may hold no row at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Epoch of the rows; dropout and augmentation derive their random streams from it.
    pub epoch: u64,
    /// Id of each row in its source, the same on every rank.
    pub rows: Vec<u64>,
    /// Numbers per row in dense form (for tokens, `window * vocabulary`).
    pub width: usize,
    pub features: Features,
    pub targets: Targets,
}

impl Batch {
    pub fn empty(width: usize, features: Features, targets: Targets) -> Batch {
        let mut batch = Batch { epoch: 0, rows: Vec::new(), width, features, targets };
        batch.clear();
        batch
    }

    /// Removes all rows and keeps the allocations.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.features.clear();
        self.targets.clear();
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// The learning task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    Classification,
    Regression,
}
