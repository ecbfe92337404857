//! The sub-commands of `thalweg`, one file each.

use crate::view::formatting::counted;
use std::io::{ErrorKind, Write};
use thalweg_core::{Error, Result};
use thalweg_data::UnseenCategory;

pub(crate) mod bench;
pub(crate) mod chaos;
pub(crate) mod compare;
pub mod config;
pub(crate) mod doctor;
pub(crate) mod evaluate;
pub(crate) mod export;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod join;
pub(crate) mod predict;
pub(crate) mod resume;
pub(crate) mod rows;
pub(crate) mod status;
pub mod strategies;
pub(crate) mod train;

/// Prints text on stdout. A closed pipe (`| head`) is no error.
pub fn print(text: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Warns of categories of the input that training has not seen: they count as missing values.
pub fn warn_of_unseen(unseen: &[UnseenCategory]) {
    const LISTED: usize = 20;
    for category in unseen.iter().take(LISTED) {
        let UnseenCategory { column, value, rows } = category;
        let rows = counted(*rows, "row");
        eprintln!(
            "warning: column `{column}`: the category `{value}` was not in the training rows and counts as missing ({rows})"
        );
    }
    if unseen.len() > LISTED {
        eprintln!("warning: {} more categories were not in the training rows", unseen.len() - LISTED);
    }
}

/// Prints a value as JSON.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::internal(format!("cannot be written as JSON: {error}")))?;
    print(&(text + "\n"))
}
