//! Reads the columns of one Parquet file value by value.

use super::size_checks::{CheckedPages, check_footer, check_pages, check_rows};
use crate::disk_cache::{self, FileIdentity};
use crate::file_bytes::FileBytes;
use crate::format::{index_files, memory_budget};
use ::parquet::basic::{Compression, ConvertedType, LogicalType, Type};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::DataType;
use ::parquet::file::metadata::ParquetMetaData;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use thalweg_core::spec::data::DataSpec;
use thalweg_core::{Error, Result};

/// Values per read.
const CHUNK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CellValue<'a> {
    Missing,
    Number(f64),
    Text(&'a [u8]),
}

impl<'a> CellValue<'a> {
    /// The value as text; `None` if missing or empty. Words such as NA are plain text here, because Parquet
    /// has nulls.
    pub(crate) fn present<'b>(self, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        Some(self.as_text(buffer)).filter(|text| !text.is_empty())
    }

    /// The value as text, formatted as in a CSV file; empty if missing.
    pub(crate) fn as_text<'b>(self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            CellValue::Missing => b"",
            CellValue::Text(text) => text.trim_ascii(),
            CellValue::Number(number) => {
                buffer.clear();
                let _ = write!(buffer, "{number}");
                buffer
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColumnType {
    /// `factor` scales decimals, which are stored as integers.
    Number {
        factor: f64,
        unsigned: bool,
    },
    Text,
    /// A type that cannot be a table column, with its description.
    Other(&'static str),
}

pub(crate) struct ParquetFile {
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) types: Vec<ColumnType>,
    /// Rows per row group according to the footer; not yet verified.
    pub(crate) groups: Vec<usize>,
    /// The reader seeks in a shared file descriptor, so only one thread may read.
    reader: Mutex<Reader>,
    /// Maximum memory per page.
    memory: u64,
    /// The whole file, for checksum and size checks.
    bytes: FileBytes,
}

/// The decoder, and the column chunks (group, column) that passed the size checks.
struct Reader {
    file: SerializedFileReader<File>,
    checked: HashSet<(usize, usize)>,
}

/// Minimum memory per page, independent of `data.memory`: writers produce pages of about 1 MiB.
const PAGE_MEMORY: u64 = 64 << 20;

impl ParquetFile {
    /// Opens a file and reads its footer. A gz file is first decompressed into the cache folder.
    pub(crate) fn open(path: &Path, spec: &DataSpec) -> Result<ParquetFile> {
        let name = path.display().to_string();
        let failed = |error: &std::io::Error| Error::io(format!("cannot read {name}"), error);
        let mut file = File::open(path).map_err(|error| failed(&error))?;
        let identity = FileIdentity::of(path, &file).map_err(|error| failed(&error))?;
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz")) {
            file = disk_cache::unpack_cached(path, &identity, &memory_budget(spec).cache)?;
        }
        let same = file.try_clone().map_err(|error| failed(&error))?;
        let bytes = FileBytes::on_disk(&name, identity, same)?;
        check_footer(&bytes)?.map_err(|why| damaged(&name, &why))?;
        let reader = guarded(&name, || SerializedFileReader::new(file))?;
        let metadata = reader.metadata();
        check_compression(&name, metadata)?;
        let schema = metadata.file_metadata().schema_descr();
        let groups = metadata.row_groups().iter().map(|group| usize::try_from(group.num_rows()));
        let groups: Vec<usize> =
            groups.collect::<Result<_, _>>().map_err(|_| damaged(&name, "a row group of negative size"))?;
        let rows = groups.iter().fold(0, |sum: u64, &rows| sum.saturating_add(rows as u64));
        check_rows(rows, bytes.len()).map_err(|why| damaged(&name, &why))?;
        Ok(ParquetFile {
            names: schema.columns().iter().map(|column| column.path().string()).collect(),
            types: schema.columns().iter().map(|column| column_type(column)).collect(),
            groups,
            reader: Mutex::new(Reader { file: reader, checked: HashSet::new() }),
            memory: spec.memory.0.max(PAGE_MEMORY),
            bytes,
            name,
        })
    }

    /// The checksum of the file. No index pass reads all columns, so that of a file too large for memory is
    /// stored in the cache.
    pub(crate) fn checksum(&self, spec: &DataSpec) -> Result<u32> {
        if self.bytes.len() <= memory_budget(spec).bytes {
            return self.bytes.checksum();
        }
        let files = std::slice::from_ref(&self.bytes);
        index_files("columns", files, spec, None, || self.bytes.checksum()).map(|(checksum, _)| checksum)
    }

    /// Visits a range of rows of a column with the row number within the range and the value. Fewer rows than
    /// requested are an error.
    pub(crate) fn read(
        &self,
        group: usize,
        leaf: usize,
        rows: Range<usize>,
        mut visit: impl FnMut(usize, CellValue<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_column(&mut reader, group, leaf)?;
        let column = guarded(&self.name, || {
            let pages = reader.file.get_row_group(group)?.get_column_page_reader(leaf)?;
            let described = reader.file.metadata().file_metadata().schema_descr().column(leaf);
            let optional = described.max_def_level() > 0;
            Ok(get_column_reader(described, Box::new(CheckedPages { pages, optional })))
        })?;
        let (factor, unsigned) = match self.types[leaf] {
            ColumnType::Number { factor, unsigned } => (factor, unsigned),
            _ => (1.0, false),
        };
        let name = &self.name;
        let number =
            |value: f64| if value.is_nan() { CellValue::Missing } else { CellValue::Number(value * factor) };
        match column {
            ColumnReader::BoolColumnReader(reader) => visit_rows(reader, name, rows, |row, value| {
                visit(row, value.map_or(CellValue::Missing, |v| number(f64::from(u8::from(*v)))))
            }),
            ColumnReader::Int32ColumnReader(reader) => visit_rows(reader, name, rows, |row, value| {
                let whole = |value: i32| if unsigned { f64::from(value as u32) } else { f64::from(value) };
                visit(row, value.map_or(CellValue::Missing, |value| number(whole(*value))))
            }),
            ColumnReader::Int64ColumnReader(reader) => visit_rows(reader, name, rows, |row, value| {
                let whole = |value: i64| if unsigned { value as u64 as f64 } else { value as f64 };
                visit(row, value.map_or(CellValue::Missing, |value| number(whole(*value))))
            }),
            ColumnReader::FloatColumnReader(reader) => visit_rows(reader, name, rows, |row, value| {
                visit(row, value.map_or(CellValue::Missing, |v| number(f64::from(*v))))
            }),
            ColumnReader::DoubleColumnReader(reader) => visit_rows(reader, name, rows, |row, value| {
                visit(row, value.map_or(CellValue::Missing, |v| number(*v)))
            }),
            ColumnReader::ByteArrayColumnReader(reader) => visit_rows(reader, name, rows, |row, value| {
                visit(row, value.map_or(CellValue::Missing, |value| CellValue::Text(value.data())))
            }),
            _ => Err(damaged(&self.name, "a column of another type than its schema says")),
        }
    }

    /// Returns an error if the page headers of a column contain impossible sizes.
    fn check_column(&self, reader: &mut Reader, group: usize, leaf: usize) -> Result<()> {
        if reader.checked.contains(&(group, leaf)) {
            return Ok(());
        }
        let chunk = reader.file.metadata().row_group(group).columns().get(leaf);
        let chunk = chunk.ok_or_else(|| damaged(&self.name, "a row group without one of the columns"))?;
        check_pages(&self.bytes, chunk, self.groups[group], self.memory)?.map_err(|why| {
            damaged(&self.name, &format!("row group {}, column `{}`: {why}", group + 1, self.names[leaf]))
        })?;
        reader.checked.insert((group, leaf));
        Ok(())
    }

    /// Whether the column can be used: its type is supported and it is not a pandas index.
    pub(crate) fn is_table_column(&self, leaf: usize) -> bool {
        !matches!(self.types[leaf], ColumnType::Other(_)) && !self.holds_row_names(leaf)
    }

    pub(crate) fn holds_numbers(&self, leaf: usize) -> bool {
        matches!(self.types[leaf], ColumnType::Number { .. })
    }

    /// Whether the column is a pandas index, which is stored after the data columns.
    pub(crate) fn holds_row_names(&self, leaf: usize) -> bool {
        self.names[leaf].starts_with("__index_level_")
    }

    /// `rows.parquet row 17`, counted from 1 over all row groups, for messages.
    pub(crate) fn location(&self, group: usize, row: usize) -> String {
        let before = self.groups[..group].iter().fold(0, |sum: usize, &rows| sum.saturating_add(rows));
        format!("{} row {}", self.name, before.saturating_add(row + 1))
    }
}

/// Visits a range of rows, with `None` for a null.
fn visit_rows<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    name: &str,
    rows: Range<usize>,
    mut visit: impl FnMut(usize, Option<&T::T>) -> Result<()>,
) -> Result<()> {
    if guarded(name, || reader.skip_records(rows.start))? != rows.start {
        return Err(damaged(name, "fewer rows than it claims"));
    }
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut row = 0;
    while row < rows.len() {
        values.clear();
        levels.clear();
        let wanted = CHUNK.min(rows.len() - row);
        let (records, present, level_count) =
            guarded(name, || reader.read_records(wanted, Some(&mut levels), None, &mut values))?;
        if records == 0 || present > values.len() {
            return Err(damaged(name, "fewer rows than it claims"));
        }
        // Required columns have no definition levels: no value is null. A null has a level below the highest.
        let highest = levels.iter().copied().max().unwrap_or_default();
        let nulls = level_count == records && present < records;
        let mut next = 0;
        for record in 0..records {
            let here = !nulls || (levels.get(record) == Some(&highest) && next < present);
            visit(row, if here { values.get(next) } else { None })?;
            next += usize::from(here);
            row += 1;
        }
    }
    Ok(())
}

fn column_type(column: &ColumnDescriptor) -> ColumnType {
    if column.max_rep_level() > 0 {
        return ColumnType::Other("lists");
    }
    let decimal = column.converted_type() == ConvertedType::DECIMAL
        || matches!(column.logical_type_ref(), Some(LogicalType::Decimal { .. }));
    let factor = if decimal { 10f64.powi(-column.type_scale().clamp(0, 300)) } else { 1.0 };
    let unsigned = matches!(
        column.converted_type(),
        ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64
    );
    match column.physical_type() {
        Type::BOOLEAN | Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE => {
            ColumnType::Number { factor, unsigned }
        }
        Type::BYTE_ARRAY if decimal => ColumnType::Other("decimals as bytes"),
        Type::BYTE_ARRAY => ColumnType::Text,
        Type::INT96 => ColumnType::Other("96-bit times"),
        Type::FIXED_LEN_BYTE_ARRAY => ColumnType::Other("bytes of fixed length"),
    }
}

/// Returns an error for codecs that this build does not include.
fn check_compression(name: &str, metadata: &ParquetMetaData) -> Result<()> {
    for column in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        let what = match column.compression() {
            Compression::BROTLI(_) => "brotli",
            Compression::LZO => "lzo",
            _ => continue,
        };
        return Err(Error::data(format!("{name} is compressed with {what}, which this build cannot read"))
            .hint("write it again compressed with zstd, snappy, gzip or lz4, or not compressed"));
    }
    Ok(())
}

/// Runs decoder code; a panic becomes an error.
fn guarded<T>(name: &str, run: impl FnOnce() -> ::parquet::errors::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(damaged(name, &error.to_string())),
        Err(_) => Err(damaged(name, "the decoder failed")),
    }
}

pub(crate) fn damaged(name: &str, why: &str) -> Error {
    Error::data(format!("{name} is damaged or no Parquet file: {why}")).hint("write or copy it again")
}
