//! The sub-commands of `thalweg`, one file each.

use crate::view::wording::counted;
use std::io::{ErrorKind, Write};
use thalweg_core::{Error, Result};
use thalweg_data::UnseenCategory;

pub mod bench;
pub mod chaos;
pub mod config;
pub mod doctor;
pub mod evaluate;
pub mod export;
pub mod init;
pub mod inspect;
pub mod join;
pub mod predict;
pub mod resume;
pub mod rows;
pub mod status;
pub mod strategies;
pub mod train;

/// Prints the result of a listing on stdout. A reader that went away (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Tells which categories of the input were not there in training: they counted as missing values.
pub fn warn_of_unseen(unseen: &[UnseenCategory]) {
    const NAMED: usize = 20;
    for category in unseen.iter().take(NAMED) {
        let UnseenCategory { column, value, rows } = category;
        let rows = counted(*rows, "row");
        eprintln!(
            "warning: column `{column}`: the category `{value}` was not in the training rows and counts as missing ({rows})"
        );
    }
    if unseen.len() > NAMED {
        eprintln!("warning: {} more categories were not in the training rows", unseen.len() - NAMED);
    }
}

/// Prints a value as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::internal(format!("cannot be written as JSON: {error}")))?;
    print(&(text + "\n"))
}
