//! Reads records and their fields.

use csv::{ByteRecord, Position};
use std::io::{BufRead, BufReader, Read};
use thalweg_core::spec::delimiter::Delimiter;
use thalweg_core::{Error, Result};

const BUFFER: usize = 1 << 17;

/// Reads the records of a table; blank lines are skipped.
pub(crate) struct FieldReader<R> {
    lines: Lines<R>,
    record: ByteRecord,
    /// Whether `record` holds a record; false at the end.
    found: bool,
}

enum Lines<R> {
    Quoted(Box<csv::Reader<R>>),
    Spaced { reader: BufReader<R>, line: Vec<u8>, position: u64 },
}

pub(crate) struct CsvRecord<'a> {
    record: &'a ByteRecord,
}

impl CsvRecord<'_> {
    pub(crate) fn len(&self) -> usize {
        self.record.len()
    }

    /// A field, trimmed; empty if absent.
    pub(crate) fn field(&self, number: usize) -> &[u8] {
        self.record.get(number).unwrap_or_default().trim_ascii()
    }

    /// A field, not trimmed; empty if absent.
    pub(crate) fn raw(&self, number: usize) -> &[u8] {
        self.record.get(number).unwrap_or_default()
    }

    pub(crate) fn trimmed(&self) -> ByteRecord {
        let mut record = self.record.clone();
        record.trim();
        record
    }

    /// Byte offset relative to the start of the reader; blank lines may precede the record.
    pub(crate) fn offset(&self) -> u64 {
        self.record.position().map_or(0, Position::byte)
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.len()).map(|number| String::from_utf8_lossy(self.field(number)).into_owned())
    }
}

impl<R: Read> FieldReader<R> {
    pub(crate) fn new(reader: R, delimiter: Delimiter) -> FieldReader<R> {
        let lines = match delimiter {
            Delimiter::Byte(byte) => {
                let mut builder = csv::ReaderBuilder::new();
                builder.has_headers(false).flexible(true).delimiter(byte).buffer_capacity(BUFFER);
                Lines::Quoted(Box::new(builder.from_reader(reader)))
            }
            Delimiter::Spaces => {
                let reader = BufReader::with_capacity(BUFFER, reader);
                Lines::Spaced { reader, line: Vec::new(), position: 0 }
            }
        };
        FieldReader { lines, record: ByteRecord::new(), found: false }
    }

    /// The next record; `None` at the end. `name` is the file name for messages.
    pub(crate) fn next(&mut self, name: &str) -> Result<Option<CsvRecord<'_>>> {
        self.advance(name)?;
        Ok(self.record())
    }

    pub(crate) fn advance(&mut self, name: &str) -> Result<()> {
        loop {
            self.found = match &mut self.lines {
                Lines::Quoted(reader) => {
                    reader.read_byte_record(&mut self.record).map_err(|error| unreadable(name, error))?
                }
                Lines::Spaced { reader, line, position } => {
                    read_spaced(reader, line, position, &mut self.record)
                        .map_err(|error| Error::io(format!("cannot read {name}"), &error))?
                }
            };
            let blank =
                self.record.len() <= 1 && self.record.iter().all(|field| field.trim_ascii().is_empty());
            if !self.found || !blank {
                return Ok(());
            }
        }
    }

    /// The current record; `None` at the end.
    pub(crate) fn record(&self) -> Option<CsvRecord<'_>> {
        self.found.then_some(CsvRecord { record: &self.record })
    }

    pub(crate) fn source(&mut self) -> &mut R {
        match &mut self.lines {
            Lines::Quoted(reader) => reader.get_mut(),
            Lines::Spaced { reader, .. } => reader.get_mut(),
        }
    }

    /// Byte offset of the next record.
    pub(crate) fn position(&self) -> u64 {
        match &self.lines {
            Lines::Quoted(reader) => reader.position().byte(),
            Lines::Spaced { position, .. } => *position,
        }
    }
}

fn unreadable(name: &str, error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Error::io(format!("cannot read {name}"), &error),
        other => Error::data(format!("{name} cannot be read as a table: {other:?}")),
    }
}

fn read_spaced<R: Read>(
    reader: &mut BufReader<R>,
    line: &mut Vec<u8>,
    position: &mut u64,
    record: &mut ByteRecord,
) -> std::io::Result<bool> {
    line.clear();
    record.clear();
    let length = reader.read_until(b'\n', line)?;
    let mut start = Position::new();
    start.set_byte(*position);
    *position += length as u64;
    let fields = line.split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty());
    fields.for_each(|field| record.push_field(field));
    record.set_position(Some(start));
    Ok(length > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, delimiter: Delimiter) -> Vec<(u64, Vec<String>)> {
        let mut reader = FieldReader::new(text.as_bytes(), delimiter);
        let mut records = Vec::new();
        while let Some(record) = reader.next("a").unwrap() {
            records.push((record.offset(), record.texts().collect()));
        }
        assert_eq!(reader.position(), text.len() as u64);
        records
    }

    #[test]
    fn quotes_spaces_and_blank_lines() {
        let records = read("a, b \n\n\"x, \"\"y\"\"\nz\",2\n \n3,4", Delimiter::Byte(b','));
        let fields: Vec<_> = records.into_iter().map(|(_, fields)| fields).collect();
        assert_eq!(fields, [vec!["a", "b"], vec!["x, \"y\"\nz", "2"], vec!["3", "4"]]);
    }

    #[test]
    fn runs_of_spaces_separate() {
        let records = read(" 1  2\t3\r\n\n4 5 6", Delimiter::Spaces);
        assert_eq!(records[0].1, ["1", "2", "3"]);
        assert_eq!(records[1], (10, vec!["4".into(), "5".into(), "6".into()]));
    }
}
