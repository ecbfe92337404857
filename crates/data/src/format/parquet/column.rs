//! One Parquet file and its columns, value by value.

use super::claims::{CheckedPages, check_footer, check_pages, check_rows};
use crate::format::{budget, indexed};
use crate::raw::Raw;
use crate::spool::{self, Identity};
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

/// Values read at once.
const CHUNK: usize = 4096;

/// One value of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Missing,
    Number(f64),
    Text(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The value as a text; nothing for a missing or empty one. Words such as NA are texts here: the file has nulls.
    pub(crate) fn present<'b>(self, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        Some(self.spell(buffer)).filter(|text| !text.is_empty())
    }

    /// The value as a text, as it would stand in a table; nothing for a missing one.
    pub(crate) fn spell<'b>(self, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Value::Missing => b"",
            Value::Text(text) => text.trim_ascii(),
            Value::Number(number) => {
                buffer.clear();
                let _ = write!(buffer, "{number}");
                buffer
            }
        }
    }
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Numbers, to be multiplied by this (decimals are stored as whole numbers).
    Number {
        factor: f64,
        unsigned: bool,
    },
    Text,
    /// Something that has no place in a table of numbers and names.
    Other(&'static str),
}

/// A file, its columns and its row groups.
pub(crate) struct ParquetFile {
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    /// Rows of each group, as the file claims.
    pub(crate) groups: Vec<usize>,
    /// The reader moves the file's one position, so only one thread may read.
    reader: Mutex<Reader>,
    /// The most memory that a page may take.
    memory: u64,
    /// All its bytes, for their checksum.
    raw: Raw,
}

/// The decoder, and the columns of row groups whose claims it may believe.
struct Reader {
    file: SerializedFileReader<File>,
    checked: HashSet<(usize, usize)>,
}

/// Memory for a page, however little the job allows for rows: writers make pages of about 1 MiB.
const PAGE_MEMORY: u64 = 64 << 20;

impl ParquetFile {
    /// Opens a file and reads its footer. A packed one is unpacked into the cache folder first.
    pub(crate) fn open(path: &Path, spec: &DataSpec) -> Result<ParquetFile> {
        let name = path.display().to_string();
        let failed = |error: &std::io::Error| Error::io(format!("cannot read {name}"), error);
        let mut file = File::open(path).map_err(|error| failed(&error))?;
        let identity = Identity::of(path, &file).map_err(|error| failed(&error))?;
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz")) {
            file = spool::unpacked(path, &identity, &budget(spec).cache)?;
        }
        let same = file.try_clone().map_err(|error| failed(&error))?;
        let raw = Raw::by_position(&name, identity, same)?;
        check_footer(&raw)?.map_err(|why| damaged(&name, &why))?;
        let reader = guarded(&name, || SerializedFileReader::new(file))?;
        let metadata = reader.metadata();
        check_compression(&name, metadata)?;
        let schema = metadata.file_metadata().schema_descr();
        let groups = metadata.row_groups().iter().map(|group| usize::try_from(group.num_rows()));
        let groups: Vec<usize> =
            groups.collect::<Result<_, _>>().map_err(|_| damaged(&name, "a row group of negative size"))?;
        let rows = groups.iter().fold(0, |sum: u64, &rows| sum.saturating_add(rows as u64));
        check_rows(rows, raw.len()).map_err(|why| damaged(&name, &why))?;
        Ok(ParquetFile {
            names: schema.columns().iter().map(|column| column.path().string()).collect(),
            kinds: schema.columns().iter().map(|column| kind(column)).collect(),
            groups,
            reader: Mutex::new(Reader { file: reader, checked: HashSet::new() }),
            memory: spec.memory.0.max(PAGE_MEMORY),
            raw,
            name,
        })
    }

    /// The checksum of all bytes. No pass looks at all columns: for a file too large for memory it is remembered.
    pub(crate) fn checksum(&self, spec: &DataSpec) -> Result<u32> {
        if self.raw.len() <= budget(spec).bytes {
            return self.raw.checksum();
        }
        let files = std::slice::from_ref(&self.raw);
        indexed("columns", files, spec, None, || self.raw.checksum()).map(|(checksum, _)| checksum)
    }

    /// Visits some rows of a column: number of the row within the range, and value. Fewer rows than asked for are an
    /// error.
    pub(crate) fn read(
        &self,
        group: usize,
        leaf: usize,
        rows: Range<usize>,
        mut visit: impl FnMut(usize, Value<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_column(&mut reader, group, leaf)?;
        let column = guarded(&self.name, || {
            let pages = reader.file.get_row_group(group)?.get_column_page_reader(leaf)?;
            let described = reader.file.metadata().file_metadata().schema_descr().column(leaf);
            let optional = described.max_def_level() > 0;
            Ok(get_column_reader(described, Box::new(CheckedPages { pages, optional })))
        })?;
        let (factor, unsigned) = match self.kinds[leaf] {
            Kind::Number { factor, unsigned } => (factor, unsigned),
            _ => (1.0, false),
        };
        let name = &self.name;
        let number = |value: f64| if value.is_nan() { Value::Missing } else { Value::Number(value * factor) };
        match column {
            ColumnReader::BoolColumnReader(reader) => walk(reader, name, rows, |row, value| {
                visit(row, value.map_or(Value::Missing, |v| number(f64::from(u8::from(*v)))))
            }),
            ColumnReader::Int32ColumnReader(reader) => walk(reader, name, rows, |row, value| {
                let whole = |value: i32| if unsigned { f64::from(value as u32) } else { f64::from(value) };
                visit(row, value.map_or(Value::Missing, |value| number(whole(*value))))
            }),
            ColumnReader::Int64ColumnReader(reader) => walk(reader, name, rows, |row, value| {
                let whole = |value: i64| if unsigned { value as u64 as f64 } else { value as f64 };
                visit(row, value.map_or(Value::Missing, |value| number(whole(*value))))
            }),
            ColumnReader::FloatColumnReader(reader) => walk(reader, name, rows, |row, value| {
                visit(row, value.map_or(Value::Missing, |v| number(f64::from(*v))))
            }),
            ColumnReader::DoubleColumnReader(reader) => walk(reader, name, rows, |row, value| {
                visit(row, value.map_or(Value::Missing, |v| number(*v)))
            }),
            ColumnReader::ByteArrayColumnReader(reader) => walk(reader, name, rows, |row, value| {
                visit(row, value.map_or(Value::Missing, |value| Value::Text(value.data())))
            }),
            _ => Err(damaged(&self.name, "a column of another type than its schema says")),
        }
    }

    /// Refuses a column whose pages claim what cannot be.
    fn check_column(&self, reader: &mut Reader, group: usize, leaf: usize) -> Result<()> {
        if reader.checked.contains(&(group, leaf)) {
            return Ok(());
        }
        let chunk = reader.file.metadata().row_group(group).columns().get(leaf);
        let chunk = chunk.ok_or_else(|| damaged(&self.name, "a row group without one of the columns"))?;
        check_pages(&self.raw, chunk, self.groups[group], self.memory)?.map_err(|why| {
            damaged(&self.name, &format!("row group {}, column `{}`: {why}", group + 1, self.names[leaf]))
        })?;
        reader.checked.insert((group, leaf));
        Ok(())
    }

    /// Whether a column can be one of a table: it can be read, and is not made of the names of rows.
    pub(crate) fn is_table_column(&self, leaf: usize) -> bool {
        !matches!(self.kinds[leaf], Kind::Other(_)) && !self.holds_row_names(leaf)
    }

    /// Whether a column holds numbers.
    pub(crate) fn holds_numbers(&self, leaf: usize) -> bool {
        matches!(self.kinds[leaf], Kind::Number { .. })
    }

    /// Whether a column holds the names of rows, which data frames store behind their columns.
    pub(crate) fn holds_row_names(&self, leaf: usize) -> bool {
        self.names[leaf].starts_with("__index_level_")
    }

    /// `rows.parquet row 17`, counted from 1 over all row groups.
    pub(crate) fn place(&self, group: usize, row: usize) -> String {
        let before = self.groups[..group].iter().fold(0, |sum: usize, &rows| sum.saturating_add(rows));
        format!("{} row {}", self.name, before.saturating_add(row + 1))
    }
}

/// Reads the values of a range of rows, `None` for a null.
fn walk<T: DataType>(
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
        // Required columns have no levels: every value is there. Nulls are the levels below the highest.
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

/// What a column holds, by its types.
fn kind(column: &ColumnDescriptor) -> Kind {
    if column.max_rep_level() > 0 {
        return Kind::Other("lists");
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
            Kind::Number { factor, unsigned }
        }
        Type::BYTE_ARRAY if decimal => Kind::Other("decimals as bytes"),
        Type::BYTE_ARRAY => Kind::Text,
        Type::INT96 => Kind::Other("96-bit times"),
        Type::FIXED_LEN_BYTE_ARRAY => Kind::Other("bytes of fixed length"),
    }
}

/// Refuses compressions that need a decoder this build does not have.
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

/// Runs a piece of the decoder; what it throws becomes an error.
fn guarded<T>(name: &str, run: impl FnOnce() -> ::parquet::errors::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(damaged(name, &error.to_string())),
        Err(_) => Err(damaged(name, "the decoder gave up")),
    }
}

pub(crate) fn damaged(name: &str, why: &str) -> Error {
    Error::data(format!("{name} is damaged or no Parquet file: {why}")).hint("write or copy it again")
}
