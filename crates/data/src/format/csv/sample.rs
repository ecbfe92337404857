//! The first rows of a table: decides whether the first line is a header and which columns hold numbers.

use super::dialect;
use super::fields::FieldReader;
use crate::file_bytes::FileBytes;
use crate::table::column_kind::{ColumnKind, column_kind};
use crate::table::column_roles::{default_names, header_names};
use crate::table::number_format::NumberFormat;
use crate::table::value::{is_missing, parse_number};
use csv::ByteRecord;
use std::collections::HashSet;
use std::io::Read;
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{Error, Result};

/// Maximum rows sampled.
pub(crate) const SAMPLE_ROWS: usize = 10_000;

/// Maximum bytes sampled.
const SAMPLE_BYTES: u64 = 16 << 20;

/// Bytes sampled to detect the delimiter.
const DIALECT_BYTES: u64 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) delimiter: Delimiter,
    /// Trimmed, including a header.
    pub(crate) records: Vec<ByteRecord>,
    /// Byte offset of each record.
    pub(crate) offsets: Vec<u64>,
    /// Whether the sample covers the whole file.
    pub(crate) complete: bool,
}

impl Sample {
    pub(crate) fn read(file: &FileBytes, requested: Auto<Delimiter>) -> Result<Sample> {
        let beginning = file.slice(0..file.len().min(DIALECT_BYTES))?;
        let (delimiter, start) = dialect::detect(&beginning, requested);
        let start = start as u64;
        let mut sample = Sample { delimiter, records: Vec::new(), offsets: Vec::new(), complete: false };
        let mut reader = FieldReader::new(file.reader(start).take(SAMPLE_BYTES), delimiter);
        while sample.records.len() <= SAMPLE_ROWS {
            let Some(record) = reader.next(file.name())? else {
                sample.complete = start + SAMPLE_BYTES >= file.len();
                break;
            };
            sample.offsets.push(start + record.offset());
            sample.records.push(record.trimmed());
        }
        if !sample.complete && sample.records.len() > 1 {
            // The sample may end within a record.
            sample.records.pop();
            sample.offsets.pop();
        }
        Ok(sample)
    }

    /// Whether the first record is a header.
    pub(crate) fn has_header(&self, requested: Auto<bool>, file: &FileBytes) -> Result<bool> {
        let [first, rest @ ..] = self.records.as_slice() else { return Ok(false) };
        match requested {
            Auto::Is(answer) => Ok(answer),
            Auto::Auto => self.guess_header(first, rest, file),
        }
    }

    fn guess_header(&self, first: &ByteRecord, rest: &[ByteRecord], file: &FileBytes) -> Result<bool> {
        if rest.is_empty() {
            return Ok(first.iter().all(|field| parse_number(field).is_none()));
        }
        if rest.len() > 1 && first.len() != rest[0].len() && rest.iter().all(|row| row.len() == rest[0].len())
        {
            return Err(Error::data(format!(
                "{} line {} has {} fields, but the rows after it have {}",
                file.name(),
                file.line(self.offsets[0])?,
                first.len(),
                rest[0].len()
            ))
            .hint("fix or remove the line; data.header = true passes over it"));
        }
        let cells = |column: usize| rest.iter().filter_map(move |row| row.get(column));
        let numeric: Vec<usize> =
            (0..first.len()).filter(|&column| column_kind(cells(column)) != ColumnKind::Categories).collect();
        let is_name = |field: &[u8]| {
            !is_missing(field) && parse_number(field).is_none() && NumberFormat::of(field).is_none()
        };
        let named = numeric.iter().filter(|&&column| is_name(&first[column])).count();
        if numeric.is_empty() {
            return Ok(never_repeats(first, rest));
        }
        if named > 0 && named * 2 < numeric.len() {
            return Err(Error::data(format!(
                "{} line {}: {named} of the {} columns of numbers begin with something else, so it is neither a header nor a row",
                file.name(),
                file.line(self.offsets[0])?,
                numeric.len()
            ))
            .hint("fix the line, or set data.header = true or false"));
        }
        Ok(named > 0)
    }

    pub(crate) fn names(&self, header: bool) -> Vec<String> {
        let width = self.records.get(usize::from(header)).or(self.records.first()).map_or(0, ByteRecord::len);
        match self.records.first() {
            Some(first) if header && first.len() == width => {
                header_names(first.iter().map(|field| String::from_utf8_lossy(field).into_owned()))
            }
            _ => default_names(width),
        }
    }

    pub(crate) fn rows(&self, header: bool) -> &[ByteRecord] {
        &self.records[usize::from(header).min(self.records.len())..]
    }
}

/// Whether no column repeats its first value while some column repeats others: then the first record is a
/// header.
fn never_repeats(first: &ByteRecord, rest: &[ByteRecord]) -> bool {
    let mut repeats = false;
    for (column, name) in first.iter().enumerate() {
        let values = || rest.iter().filter_map(|row| row.get(column));
        if name.is_empty() || values().any(|value| value == name) {
            return false;
        }
        let distinct: HashSet<&[u8]> = values().collect();
        repeats |= distinct.len() < rest.len();
    }
    repeats
}
