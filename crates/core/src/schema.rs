//! The meaning of a data set's columns, stored with the model and applied again in prediction.

use crate::batch::{Features, Targets, Task};
use serde::{Deserialize, Serialize};

/// How an input column is encoded as numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// The value itself.
    Number {
        /// Replaces missing values; if None, a missing value is an error.
        imputed: Option<f64>,
    },
    /// One 0/1 number per category, in this order.
    OneHot { categories: Vec<String> },
}

impl Encoding {
    /// Numbers per value.
    pub fn width(&self) -> usize {
        match self {
            Encoding::Number { .. } => 1,
            Encoding::OneHot { categories } => categories.len(),
        }
    }
}

/// An input column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// From the header, or `c0`, `c1`, ...
    pub name: String,
    pub encoding: Encoding,
}

impl Column {
    /// Names of the encoded numbers.
    pub fn names(&self) -> Vec<String> {
        match &self.encoding {
            Encoding::Number { .. } => vec![self.name.clone()],
            Encoding::OneHot { categories } => {
                categories.iter().map(|category| format!("{}={category}", self.name)).collect()
            }
        }
    }
}

/// The form of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RowShape {
    /// Columns of a table.
    Table {
        /// Input columns, without the label.
        columns: Vec<Column>,
    },
    /// Pixels of one byte.
    Image {
        /// Height, width (and channels).
        sizes: Vec<usize>,
    },
    /// Sparse rows.
    Sparse {
        columns: usize,
        /// Index of the first column in the file: 0 or 1.
        first: usize,
    },
    /// Characters, each predicted from the preceding `window`.
    Text {
        window: usize,
        /// Characters by symbol.
        alphabet: Vec<char>,
    },
}

/// `(value - shift) * factor` for each number of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// Empty means 0 for all. Double precision, because Unix times do not fit into single precision.
    pub shift: Vec<f64>,
    /// Empty means 1 for all; a single entry applies to all.
    pub factor: Vec<f32>,
}

impl Scaling {
    pub fn factor(&self, index: usize) -> f32 {
        match self.factor.as_slice() {
            [] => 1.0,
            [factor] => *factor,
            factors => factors.get(index).copied().unwrap_or(1.0),
        }
    }

    pub fn shift(&self, index: usize) -> f64 {
        self.shift.get(index).copied().unwrap_or(0.0)
    }

    /// From units of the data to units of the model.
    pub fn apply(&self, index: usize, value: f64) -> f32 {
        ((value - self.shift(index)) * f64::from(self.factor(index))) as f32
    }

    /// From units of the model to units of the data.
    pub fn invert(&self, index: usize, value: f32) -> f64 {
        f64::from(value) / f64::from(self.factor(index)) + self.shift(index)
    }
}

/// The form of rows, the task and the encoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    pub shape: RowShape,
    pub task: Task,
    /// Name of the label column, if the source has one.
    pub label: Option<String>,
    /// Class names by index; empty for regression.
    pub classes: Vec<String>,
    /// Scaling of the inputs.
    pub scaling: Scaling,
    /// Scaling of a regression target; metrics and predictions are scaled back.
    pub target: TargetScaling,
    /// Whether the target is the row itself (an auto-encoder); labels are then ignored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconstruct: bool,
    /// Names of all columns of the source in order, including the label and ignored ones: they give the position of a
    /// column in a table without a header. Empty for sources without columns and in older model files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_columns: Vec<String>,
}

/// `(target - shift) * factor`, and back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetScaling {
    pub shift: f64,
    pub factor: f32,
}

impl Default for TargetScaling {
    fn default() -> Self {
        TargetScaling { shift: 0.0, factor: 1.0 }
    }
}

impl TargetScaling {
    /// From units of the data to units of the model.
    pub fn apply(&self, target: f64) -> f32 {
        ((target - self.shift) * f64::from(self.factor)) as f32
    }

    /// From units of the model to units of the data.
    pub fn invert(&self, answer: f32) -> f64 {
        f64::from(answer) / f64::from(self.factor) + self.shift
    }
}

impl Schema {
    /// Inputs of a model per row.
    pub fn width(&self) -> usize {
        match &self.shape {
            RowShape::Table { columns } => columns.iter().map(|column| column.encoding.width()).sum(),
            RowShape::Image { sizes } => sizes.iter().product(),
            RowShape::Sparse { columns, .. } => *columns,
            RowShape::Text { window, alphabet } => window * alphabet.len(),
        }
    }

    /// Outputs of a model: one per class, or one, or the row.
    pub fn outputs(&self) -> usize {
        match self.task {
            _ if self.reconstruct => self.width(),
            Task::Classification => self.classes.len(),
            Task::Regression => 1,
        }
    }

    /// Names of the inputs: of the columns (`color=red` for a category), `p0`, `p1`, ... for pixels.
    pub fn names(&self) -> Vec<String> {
        match &self.shape {
            RowShape::Table { columns } => columns.iter().flat_map(Column::names).collect(),
            RowShape::Sparse { columns, first } => {
                (*first..first + columns).map(|column| column.to_string()).collect()
            }
            RowShape::Image { .. } | RowShape::Text { .. } => {
                (0..self.width()).map(|pixel| format!("p{pixel}")).collect()
            }
        }
    }

    pub fn empty_features(&self) -> Features {
        match &self.shape {
            RowShape::Table { .. } | RowShape::Image { .. } => Features::Dense(Vec::new()),
            RowShape::Sparse { .. } => {
                Features::Sparse { starts: vec![0], columns: Vec::new(), values: Vec::new() }
            }
            RowShape::Text { window, alphabet } => {
                Features::Tokens { symbols: Vec::new(), window: *window, vocabulary: alphabet.len() }
            }
        }
    }

    pub fn empty_targets(&self) -> Targets {
        match self.task {
            Task::Classification => Targets::Classes(Vec::new()),
            Task::Regression => Targets::Values(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_is_inverted() {
        let (shift, factor) = (vec![1.0, -2.0], vec![0.5, 4.0]);
        for scaling in [
            Scaling::default(),
            Scaling { shift: vec![], factor: vec![0.25] },
            Scaling { shift: shift.clone(), factor: vec![] },
            Scaling { shift, factor },
        ] {
            for (index, value) in [3.0, 5.0].into_iter().enumerate() {
                assert_eq!(scaling.invert(index, scaling.apply(index, value)), value, "{scaling:?}");
            }
        }
    }

    #[test]
    fn inputs_have_names() {
        let column = |name: &str, encoding| Column { name: name.into(), encoding };
        let columns = vec![
            column("age", Encoding::Number { imputed: None }),
            column("color", Encoding::OneHot { categories: vec!["red".into(), "blue".into()] }),
        ];
        let schema = Schema {
            shape: RowShape::Table { columns },
            task: Task::Regression,
            label: None,
            classes: Vec::new(),
            scaling: Scaling::default(),
            target: TargetScaling::default(),
            reconstruct: true,
            source_columns: Vec::new(),
        };
        assert_eq!(schema.names(), ["age", "color=red", "color=blue"]);
        assert_eq!(schema.outputs(), 3);
    }
}
