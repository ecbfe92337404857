//! The input shape of a network, and validation of batches: once per pass, so that operators need not check.

use crate::graph::MAX_ELEMENTS;
use thalweg_core::schema::{RowShape, Schema};
use thalweg_core::{Batch, Error, Features, Result, Targets, Task};

/// The shape of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    Flat(usize),
    /// Height, width and channels of an image.
    Image([usize; 3]),
    /// A sequence of symbols (tokens) below `vocabulary`.
    Symbols {
        window: usize,
        vocabulary: usize,
    },
}

impl Input {
    /// The input for a data set.
    pub fn of(schema: &Schema) -> Input {
        match &schema.shape {
            RowShape::Image { sizes } => match *sizes.as_slice() {
                [height, width] => Input::Image([height, width, 1]),
                [height, width, channels] => Input::Image([height, width, channels]),
                _ => Input::Flat(schema.width()),
            },
            RowShape::Text { window, alphabet } => {
                Input::Symbols { window: *window, vocabulary: alphabet.len() }
            }
            RowShape::Table { .. } | RowShape::Sparse { .. } => Input::Flat(schema.width()),
        }
    }

    /// Sizes of one row; a symbol is a one-hot vector.
    pub fn sizes(self) -> Vec<usize> {
        match self {
            Input::Flat(width) => vec![width],
            Input::Image(sizes) => sizes.to_vec(),
            Input::Symbols { window, vocabulary } => vec![window, vocabulary],
        }
    }

    pub fn width(self) -> usize {
        match self {
            Input::Flat(width) => width,
            Input::Image(sizes) => sizes.iter().fold(1, |width, size| width.saturating_mul(*size)),
            Input::Symbols { window, vocabulary } => window.saturating_mul(vocabulary),
        }
    }

    /// Refuses row sizes, which may come from a file, that no machine can allocate.
    pub fn check(self) -> Result<()> {
        match self.width() {
            0 => Err(Error::data("the rows have no columns to learn from")),
            width if width > MAX_ELEMENTS => {
                Err(Error::data(format!("rows of {width} numbers are more than a machine can hold")))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses features that an embedding cannot look up.
pub fn check_symbols(batch: &Batch, input: Input) -> Result<()> {
    match (input, &batch.features) {
        (Input::Symbols { window: w, vocabulary: v }, Features::Tokens { window, vocabulary, .. })
            if (w, v) == (*window, *vocabulary) =>
        {
            Ok(())
        }
        (Input::Symbols { window, vocabulary }, _) => Err(Error::data(format!(
            "the model reads rows of {window} symbols of {vocabulary}, but the batch holds something else"
        ))),
        _ => Ok(()),
    }
}

/// Refuses features of another width or with inconsistent lengths.
pub fn check_features(batch: &Batch, width: usize) -> Result<()> {
    let rows = batch.len();
    if batch.width != width {
        return Err(wrong_width(batch.width, width));
    }
    match &batch.features {
        Features::Dense(values) => check_count("values", values.len(), rows * width),
        Features::Sparse { starts, columns, values } => {
            check_starts(starts, rows, columns.len())?;
            check_count("values", values.len(), columns.len())?;
            match columns.iter().position(|&column| column as usize >= width) {
                None => Ok(()),
                Some(index) => {
                    let row = starts.partition_point(|&start| start <= index) - 1;
                    let (row, column) = (batch.rows[row], columns[index]);
                    Err(Error::data(format!(
                        "row {row}: column {column}, but the model reads {width} columns (0 to {})",
                        width.saturating_sub(1)
                    )))
                }
            }
        }
        Features::Tokens { symbols, window, vocabulary } => {
            if window.checked_mul(*vocabulary) != Some(width) {
                return Err(wrong_width(window.saturating_mul(*vocabulary), width));
            }
            check_count("symbols", symbols.len(), rows * window)?;
            match symbols.iter().position(|&symbol| symbol as usize >= *vocabulary) {
                None => Ok(()),
                Some(index) => Err(Error::data(format!(
                    "row {}: symbol {}, but there are {vocabulary}",
                    batch.rows[index / window],
                    symbols[index]
                ))),
            }
        }
    }
}

/// Refuses targets of another task or out of range. A network with a prediction per position takes one class per row
/// (the symbol after the last position) or one per position.
pub fn check_targets(batch: &Batch, outputs: usize, positions: usize, task: Task) -> Result<()> {
    if positions == 1 || batch.targets.len() != positions * batch.len() {
        check_count("targets", batch.targets.len(), batch.len())?;
    }
    match (&batch.targets, task) {
        (Targets::Classes(classes), Task::Classification) => {
            match classes.iter().position(|&class| class as usize >= outputs) {
                None => Ok(()),
                Some(index) => Err(Error::data(format!(
                    "row {}: class {}, but the model predicts {outputs} classes (0 to {})",
                    batch.rows[index * batch.len() / classes.len()],
                    classes[index],
                    outputs.saturating_sub(1)
                ))),
            }
        }
        (Targets::Values(_), Task::Regression) => Ok(()),
        (Targets::Values(_), Task::Classification) => {
            Err(Error::data("the targets are numbers, but the model classifies")
                .hint("set data.task, or give the rows classes"))
        }
        (Targets::Classes(_), Task::Regression) => {
            Err(Error::data("the targets are classes, but the model predicts a number")
                .hint("set data.task, or give the rows numbers"))
        }
    }
}

/// Row starts of a CSR matrix must begin at 0, never decrease and end at the number of values.
fn check_starts(starts: &[usize], rows: usize, values: usize) -> Result<()> {
    check_count("row starts", starts.len(), rows + 1)?;
    let ordered = starts.windows(2).all(|pair| pair[0] <= pair[1]);
    if starts.first() == Some(&0) && ordered && starts.last() == Some(&values) {
        return Ok(());
    }
    Err(Error::data("the row starts of the sparse batch are not ascending from 0 to its number of values"))
}

fn check_count(what: &str, got: usize, expected: usize) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::data(format!("the batch should hold {expected} {what}, but holds {got}"))),
    }
}

fn wrong_width(got: usize, expected: usize) -> Error {
    Error::data(format!("the rows have {got} columns, but the model reads {expected}"))
        .hint("use data with the columns that the model was built for")
}
