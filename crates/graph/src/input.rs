//! Whether a batch fits a network: checked once per pass, so that the operators can trust it.

use thalweg_core::{Batch, Error, Features, Result, Targets, Task};

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
pub fn check_targets(batch: &Batch, outputs: usize, task: Task) -> Result<()> {
    agree("targets", batch.targets.len(), batch.len())?;
    match (&batch.targets, task) {
        (Targets::Classes(classes), Task::Classification) => {
            match classes.iter().position(|&class| class as usize >= outputs) {
                None => Ok(()),
                Some(place) => Err(Error::data(format!(
                    "row {}: class {}, but the model answers with {outputs} classes (0 to {})",
                    batch.rows[place],
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
