//! What a network reads, and whether a batch fits it: checked once per pass, so that the operators can trust it.

use crate::graph::MOST_ELEMENTS;
use thalweg_core::schema::{Schema, Shape};
use thalweg_core::{Batch, Error, Features, Result, Targets, Task};

/// The shape of one row as a network reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// That many numbers.
    Flat(usize),
    /// Height, width and channels of an image.
    Image([usize; 3]),
    /// Symbols of a sequence.
    Symbols {
        /// Symbols per row.
        window: usize,
        /// How many different ones there are.
        vocabulary: usize,
    },
}

impl Input {
    /// The input that a data set gives.
    pub fn of(schema: &Schema) -> Input {
        match &schema.shape {
            Shape::Image { sizes } => match *sizes.as_slice() {
                [height, width] => Input::Image([height, width, 1]),
                [height, width, channels] => Input::Image([height, width, channels]),
                _ => Input::Flat(schema.width()),
            },
            Shape::Text { window, alphabet } => {
                Input::Symbols { window: *window, vocabulary: alphabet.len() }
            }
            Shape::Table { .. } | Shape::Sparse { .. } => Input::Flat(schema.width()),
        }
    }

    /// Sizes of one row; a symbol counts as a one-hot.
    pub fn sizes(self) -> Vec<usize> {
        match self {
            Input::Flat(width) => vec![width],
            Input::Image(sizes) => sizes.to_vec(),
            Input::Symbols { window, vocabulary } => vec![window, vocabulary],
        }
    }

    /// Numbers per row.
    pub fn width(self) -> usize {
        match self {
            Input::Flat(width) => width,
            Input::Image(sizes) => sizes.iter().fold(1, |width, size| width.saturating_mul(*size)),
            Input::Symbols { window, vocabulary } => window.saturating_mul(vocabulary),
        }
    }

    /// Refuses rows that no machine holds, before memory is taken by what a file claims of them.
    pub fn check(self) -> Result<()> {
        match self.width() {
            0 => Err(Error::data("the rows have no columns to learn from")),
            width if width > MOST_ELEMENTS => {
                Err(Error::data(format!("rows of {width} numbers are more than a machine can hold")))
            }
            _ => Ok(()),
        }
    }
}

/// Refuses features that a network with an embedding cannot look up.
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

/// Refuses features of another width, or that contradict themselves.
pub fn check_features(batch: &Batch, width: usize) -> Result<()> {
    let rows = batch.len();
    if batch.width != width {
        return Err(wrong_width(batch.width, width));
    }
    match &batch.features {
        Features::Dense(values) => agree("values", values.len(), rows * width),
        Features::Sparse { starts, columns, values } => {
            check_starts(starts, rows, columns.len())?;
            agree("values", values.len(), columns.len())?;
            match columns.iter().position(|&column| column as usize >= width) {
                None => Ok(()),
                Some(place) => {
                    let row = starts.partition_point(|&start| start <= place) - 1;
                    let (row, column) = (batch.rows[row], columns[place]);
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
            agree("symbols", symbols.len(), rows * window)?;
            match symbols.iter().position(|&symbol| symbol as usize >= *vocabulary) {
                None => Ok(()),
                Some(place) => Err(Error::data(format!(
                    "row {}: symbol {}, but there are {vocabulary}",
                    batch.rows[place / window],
                    symbols[place]
                ))),
            }
        }
    }
}

/// Refuses targets of another task, or that the network cannot answer.
/// Where it answers at several positions, there is one class per row (what follows the last position) or one per
/// position.
pub fn check_targets(batch: &Batch, outputs: usize, positions: usize, task: Task) -> Result<()> {
    if positions == 1 || batch.targets.len() != positions * batch.len() {
        agree("targets", batch.targets.len(), batch.len())?;
    }
    match (&batch.targets, task) {
        (Targets::Classes(classes), Task::Classification) => {
            match classes.iter().position(|&class| class as usize >= outputs) {
                None => Ok(()),
                Some(place) => Err(Error::data(format!(
                    "row {}: class {}, but the model answers with {outputs} classes (0 to {})",
                    batch.rows[place * batch.len() / classes.len()],
                    classes[place],
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
            Err(Error::data("the targets are classes, but the model answers with a number")
                .hint("set data.task, or give the rows numbers"))
        }
    }
}

/// Compressed rows must start at 0, never go back and end with the last value.
fn check_starts(starts: &[usize], rows: usize, values: usize) -> Result<()> {
    agree("row starts", starts.len(), rows + 1)?;
    let ordered = starts.windows(2).all(|pair| pair[0] <= pair[1]);
    if starts.first() == Some(&0) && ordered && starts.last() == Some(&values) {
        return Ok(());
    }
    Err(Error::data("the batch's sparse rows do not follow each other from its first value to its last"))
}

fn agree(what: &str, got: usize, expected: usize) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::data(format!("the batch should hold {expected} {what}, but holds {got}"))),
    }
}

fn wrong_width(got: usize, expected: usize) -> Error {
    Error::data(format!("the rows have {got} columns, but the model reads {expected}"))
        .hint("use data with the columns the model was made for")
}
