//! The proposed model and its training budget: figures with which data sets of many sizes reach a plateau.

use thalweg_core::schema::RowShape;
use thalweg_data::sniff::{Form, Sniffed};

/// Sparse columns above which a linear model is proposed: a hidden layer has outputs x columns weights, most of them
/// for columns that hardly occur.
const MANY_SPARSE_COLUMNS: usize = 100;

/// A proposed model and its training budget.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Budget {
    pub(super) layers: Vec<&'static str>,
    /// The reason, if it is not the usual model.
    pub(super) why: Option<&'static str>,
    pub(super) batch: u64,
    pub(super) epochs: u64,
    pub(super) rate: f64,
}

impl Budget {
    /// Chosen by the number of rows and sparse columns.
    pub(super) fn of(sniffed: &Sniffed) -> Budget {
        let sparse = match &sniffed.form {
            Form::Other(schema) => match schema.shape {
                RowShape::Sparse { columns, .. } => columns,
                _ => 0,
            },
            Form::Table(_) => 0,
        };
        if sparse > MANY_SPARSE_COLUMNS {
            let why = "linear: a hidden layer would have a weight for each of its outputs and every column";
            let (batch, steps) = if sniffed.rows < 10_000 { (64, 600) } else { (256, 1_500) };
            let epochs = epochs(sniffed.rows, batch, steps);
            return Budget { layers: vec!["dense auto"], why: Some(why), batch, epochs, rate: 1e-2 };
        }
        let (batch, steps) = match sniffed.rows {
            0..500 => (16, 6_000),
            500..2_000 => (32, 6_000),
            2_000..20_000 => (64, 3_000),
            _ => (256, 3_000),
        };
        let layers = vec!["dense 128 relu", "dense auto"];
        Budget { layers, why: None, batch, epochs: epochs(sniffed.rows, batch, steps), rate: 3e-3 }
    }
}

/// Epochs for about `steps` steps; four fifths of the rows are training rows.
fn epochs(rows: u64, batch: u64, steps: u64) -> u64 {
    (steps * batch * 5 / (4 * rows.max(1))).clamp(5, 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sets_get_many_epochs_and_large_ones_few() {
        assert_eq!(epochs(100, 16, 6_000), 400);
        assert_eq!(epochs(32_561, 256, 3_000), 29);
        assert_eq!(epochs(100_000_000, 256, 3_000), 5);
    }
}
