//! What the columns of a data set mean: stored with the model, applied again in prediction.

use crate::batch::{Features, Targets, Task};
use serde::{Deserialize, Serialize};

/// How one input column becomes numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// The value itself; `imputed` stands in for a missing one, if asked for.
    Number {
        /// What a missing value becomes; without it, a missing value is an error.
        imputed: Option<f64>,
    },
    /// One 0/1 number per category, in this order.
    OneHot {
        /// The categories.
        categories: Vec<String>,
    },
}

impl Encoding {
    /// Numbers this column becomes.
    pub fn width(&self) -> usize {
        match self {
            Encoding::Number { .. } => 1,
            Encoding::OneHot { categories } => categories.len(),
        }
    }
}

/// One input column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// From the header, or `c0`, `c1`, ...
    pub name: String,
    /// How it becomes numbers.
    pub encoding: Encoding,
}

impl Column {
    /// The names of the numbers it becomes.
    pub fn names(&self) -> Vec<String> {
        match &self.encoding {
            Encoding::Number { .. } => vec![self.name.clone()],
            Encoding::OneHot { categories } => {
                categories.iter().map(|category| format!("{}={category}", self.name)).collect()
            }
        }
    }
}

/// The shape in which rows come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Shape {
    /// Columns of a table.
    Table {
        /// The input columns, without the label.
        columns: Vec<Column>,
    },
    /// Pixels, one byte each.
    Image {
        /// Height, width (and channels).
        sizes: Vec<usize>,
    },
    /// Mostly zeros.
    Sparse {
        /// How many columns there are.
        columns: usize,
        /// The number of the first column in the file: 0 or 1.
        first: usize,
    },
    /// Characters, each predicted from the `window` before it.
    Text {
        /// Characters a row shows.
        window: usize,
        /// The characters by number.
        alphabet: Vec<char>,
    },
}

/// `(value - shift) * factor` for each number of a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// Subtracted first; empty means 0 for all. Of double precision: a time in seconds does not fit into less.
    pub shift: Vec<f64>,
    /// Multiplied then; empty means 1 for all, one entry counts for all.
    pub factor: Vec<f32>,
}

impl Scaling {
    /// What the number at a place is multiplied by.
    pub fn factor(&self, place: usize) -> f32 {
        match self.factor.as_slice() {
            [] => 1.0,
            [factor] => *factor,
            factors => factors.get(place).copied().unwrap_or(1.0),
        }
    }

    /// What is subtracted from the number at a place.
    pub fn shift(&self, place: usize) -> f64 {
        self.shift.get(place).copied().unwrap_or(0.0)
    }

    /// From the data's units to the model's.
    pub fn apply(&self, place: usize, value: f64) -> f32 {
        ((value - self.shift(place)) * f64::from(self.factor(place))) as f32
    }

    /// From the model's units back to the data's.
    pub fn invert(&self, place: usize, value: f32) -> f64 {
        f64::from(value) / f64::from(self.factor(place)) + self.shift(place)
    }
}

/// What a row is and what is learned from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schema {
    /// The shape in which rows come.
    pub shape: Shape,
    /// Classification or regression.
    pub task: Task,
    /// The label column's name, where the source has one.
    pub label: Option<String>,
    /// Names of the classes by number; empty for regression.
    pub classes: Vec<String>,
    /// How numbers are scaled before the model sees them.
    pub scaling: Scaling,
    /// How the target of a regression is scaled: metrics and predictions are turned back.
    pub target: TargetScaling,
    /// Whether a model is to answer with the row itself (an auto-encoder): then labels are not looked at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reconstruct: bool,
    /// Names of all columns of the source in their order, with the label and those left out: where a column stands in a
    /// table without a header. Empty for sources without columns, and in model files that do not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_columns: Vec<String>,
}

/// `(target - shift) * factor`, and back.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetScaling {
    /// Subtracted first.
    pub shift: f64,
    /// Multiplied then.
    pub factor: f32,
}

impl Default for TargetScaling {
    fn default() -> Self {
        TargetScaling { shift: 0.0, factor: 1.0 }
    }
}

impl TargetScaling {
    /// From the data's units to the model's.
    pub fn apply(&self, target: f64) -> f32 {
        ((target - self.shift) * f64::from(self.factor)) as f32
    }

    /// From the model's units to the data's.
    pub fn invert(&self, answer: f32) -> f64 {
        f64::from(answer) / f64::from(self.factor) + self.shift
    }
}

impl Schema {
    /// Numbers a row shows to a model.
    pub fn width(&self) -> usize {
        match &self.shape {
            Shape::Table { columns } => columns.iter().map(|column| column.encoding.width()).sum(),
            Shape::Image { sizes } => sizes.iter().product(),
            Shape::Sparse { columns, .. } => *columns,
            Shape::Text { window, alphabet } => window * alphabet.len(),
        }
    }

    /// Numbers a model has to answer with: one per class, or one, or the row.
    pub fn outputs(&self) -> usize {
        match self.task {
            _ if self.reconstruct => self.width(),
            Task::Classification => self.classes.len(),
            Task::Regression => 1,
        }
    }

    /// Names of the numbers of a row: of the columns (`color=red` for a category), `p0`, `p1`, ... for pixels.
    pub fn names(&self) -> Vec<String> {
        match &self.shape {
            Shape::Table { columns } => columns.iter().flat_map(Column::names).collect(),
            Shape::Sparse { columns, first } => {
                (*first..first + columns).map(|column| column.to_string()).collect()
            }
            Shape::Image { .. } | Shape::Text { .. } => {
                (0..self.width()).map(|place| format!("p{place}")).collect()
            }
        }
    }

    /// Features without rows, in the form this schema gives them.
    pub fn empty_features(&self) -> Features {
        match &self.shape {
            Shape::Table { .. } | Shape::Image { .. } => Features::Dense(Vec::new()),
            Shape::Sparse { .. } => {
                Features::Sparse { starts: vec![0], columns: Vec::new(), values: Vec::new() }
            }
            Shape::Text { window, alphabet } => {
                Features::Tokens { symbols: Vec::new(), window: *window, vocabulary: alphabet.len() }
            }
        }
    }

    /// Targets without rows.
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
    fn scaling_is_undone() {
        let (shift, factor) = (vec![1.0, -2.0], vec![0.5, 4.0]);
        for scaling in [
            Scaling::default(),
            Scaling { shift: vec![], factor: vec![0.25] },
            Scaling { shift: shift.clone(), factor: vec![] },
            Scaling { shift, factor },
        ] {
            for (place, value) in [3.0, 5.0].into_iter().enumerate() {
                assert_eq!(scaling.invert(place, scaling.apply(place, value)), value, "{scaling:?}");
            }
        }
    }

    #[test]
    fn numbers_have_names() {
        let column = |name: &str, encoding| Column { name: name.into(), encoding };
        let columns = vec![
            column("age", Encoding::Number { imputed: None }),
            column("color", Encoding::OneHot { categories: vec!["red".into(), "blue".into()] }),
        ];
        let schema = Schema {
            shape: Shape::Table { columns },
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
