//! Checks the sizes stated in a Parquet file before the decoder allocates memory for them.
//!
//! The decoder trusts the sizes of pages, dictionaries and lengths. Here the page headers of a column are
//! read first, and the counts within delta-encoded pages are checked before those pages are decoded.

use super::thrift::CompactReader;
use crate::file_bytes::FileBytes;
use ::parquet::basic::{Encoding, Type};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result as Decoded};
use ::parquet::file::metadata::ColumnChunkMetaData;
use thalweg_core::Result;

/// Maximum rows per byte of file size: a column of one repeated value reaches about 10,000.
const MAX_ROWS_PER_BYTE: u64 = 1 << 16;

/// Maximum size of a page header, which may contain statistics.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// Returns an error if a file of `bytes` bytes cannot hold `rows` rows.
pub(super) fn check_rows(rows: u64, bytes: u64) -> Result<(), String> {
    match rows > bytes.saturating_mul(MAX_ROWS_PER_BYTE) {
        true => Err(format!("it claims {rows} rows in {bytes} bytes")),
        false => Ok(()),
    }
}

/// Maximum nesting of columns: the decoder recurses once per level.
const MAX_COLUMN_DEPTH: usize = 64;

/// Checks the schema in the footer; the inner error describes what is wrong with it.
pub(super) fn check_footer(file: &FileBytes) -> Result<Result<(), String>> {
    // A file that is not Parquet at all is reported by the decoder.
    let Some(end) = file.len().checked_sub(8) else { return Ok(Ok(())) };
    let tail = file.slice(end..file.len())?;
    let length = tail.first_chunk::<4>().map_or(0, |length| u64::from(u32::from_le_bytes(*length)));
    match end.checked_sub(length) {
        Some(begin) if tail.ends_with(b"PAR1") => Ok(check_columns(&file.slice(begin..end)?)),
        _ => Ok(Ok(())),
    }
}

/// Each schema element states its number of children: not more than there are elements, and not nested too
/// deep.
fn check_columns(footer: &[u8]) -> Result<(), String> {
    let mut problem = None;
    let read = CompactReader::new(footer).fields(&mut |reader, field, kind| {
        if field != 2 || kind != 9 {
            return reader.skip(kind, 0);
        }
        let (count, element) = reader.list()?;
        let mut open: Vec<u64> = Vec::new();
        for _ in 0..count {
            let mut within = 0;
            if element != 12 {
                return None;
            }
            reader.fields(&mut |reader, field, kind| match field {
                5 => reader.number(kind).map(|number| within = number),
                _ => reader.skip(kind, 0),
            })?;
            let within = u64::try_from(within).unwrap_or(u64::MAX);
            while open.pop_if(|left| *left == 0).is_some() {}
            if let Some(left) = open.last_mut() {
                *left -= 1;
            }
            if within > count || open.len() > MAX_COLUMN_DEPTH {
                problem = Some(format!("a column of {within} columns, {} deep, among {count}", open.len()));
                return None;
            }
            open.push(within);
        }
        Some(())
    });
    match (problem, read) {
        (Some(problem), _) => Err(problem),
        (None, None) => Err("its schema is invalid".into()),
        (None, Some(())) => Ok(()),
    }
}

/// The fields of a page header that state sizes.
#[derive(Debug, Default, PartialEq)]
struct PageHeader {
    /// Size of the header itself.
    length: u64,
    is_dictionary: bool,
    /// Bytes of the page body.
    uncompressed: i64,
    compressed: i64,
    values: i64,
}

impl PageHeader {
    /// Parses a header; `None` if it is truncated or invalid.
    fn read(bytes: &[u8]) -> Option<PageHeader> {
        let mut header = PageHeader::default();
        let mut reader = CompactReader::new(bytes);
        reader.fields(&mut |reader, field, kind| {
            match field {
                2 => header.uncompressed = reader.number(kind)?,
                3 => header.compressed = reader.number(kind)?,
                5 | 7 | 8 => {
                    header.is_dictionary |= field == 7;
                    reader.fields(&mut |reader, field, kind| {
                        match field {
                            1 => header.values = reader.number(kind)?,
                            _ => reader.skip(kind, 0)?,
                        }
                        Some(())
                    })?;
                }
                _ => reader.skip(kind, 0)?,
            }
            Some(())
        })?;
        header.length = reader.position() as u64;
        Some(header)
    }

    /// Describes a size that exceeds the remaining bytes, the rows of the group or the memory limit.
    fn size_error(&self, left: u64, rows: u64, memory: u64, kind: Type) -> Option<String> {
        let (Ok(uncompressed), Ok(compressed), Ok(values)) =
            (u64::try_from(self.uncompressed), u64::try_from(self.compressed), u64::try_from(self.values))
        else {
            return Some("a page of negative size".into());
        };
        if compressed.saturating_add(self.length) > left {
            return Some(format!("a page claims {compressed} bytes where {left} are left"));
        }
        if uncompressed > memory {
            return Some(format!("a page of {uncompressed} bytes, more than data.memory allows ({memory})"));
        }
        let most = if self.is_dictionary { uncompressed.saturating_mul(8) / bits_of(kind) } else { rows };
        (values > most).then(|| {
            let what = if self.is_dictionary { "dictionary" } else { "page" };
            format!("a {what} claims {values} values where there can be {most}")
        })
    }
}

/// Minimum bits per value; text is preceded by its length.
fn bits_of(kind: Type) -> u64 {
    match kind {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
        Type::INT64 | Type::DOUBLE => 64,
        Type::INT96 => 96,
        Type::FIXED_LEN_BYTE_ARRAY => 8,
    }
}

/// Checks the pages of a column in a row group of `rows` rows; the inner error describes what is wrong with
/// them.
pub(super) fn check_pages(
    file: &FileBytes,
    column: &ColumnChunkMetaData,
    rows: usize,
    memory: u64,
) -> Result<Result<(), String>> {
    let begin = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let (Ok(mut position), Ok(length)) = (u64::try_from(begin), u64::try_from(column.compressed_size()))
    else {
        return Ok(Err("a column of negative size".into()));
    };
    let end = position.saturating_add(length);
    if end > file.len() {
        return Ok(Err(format!("a column ends at byte {end} of {}", file.len())));
    }
    while position < end {
        let left = end - position;
        let mut window = left.min(1 << 10);
        let header = loop {
            let header = PageHeader::read(&file.slice(position..position + window)?);
            if header.is_some() || window == left.min(MAX_HEADER_BYTES) {
                break header;
            }
            window = left.min(MAX_HEADER_BYTES);
        };
        let Some(header) = header else { return Ok(Err("a page has no header".into())) };
        if let Some(problem) = header.size_error(left, rows as u64, memory, column.column_type()) {
            return Ok(Err(problem));
        }
        position += header.length + header.compressed.unsigned_abs();
    }
    Ok(Ok(()))
}

/// A page reader that checks the counts within each page before it is decoded.
pub(super) struct CheckedPages {
    pub(super) pages: Box<dyn PageReader>,
    /// Whether values may be null: then definition levels precede them.
    pub(super) optional: bool,
}

impl CheckedPages {
    fn check(&self, page: &Page) -> Decoded<()> {
        let (values, encoding) = match page {
            Page::DictionaryPage { .. } => return Ok(()),
            Page::DataPage { num_values, encoding, .. } | Page::DataPageV2 { num_values, encoding, .. } => {
                (u64::from(*num_values), *encoding)
            }
        };
        let is_on_disk = match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        let mut bytes = self.values_after_levels(page).unwrap_or_default();
        for _ in 0..is_on_disk {
            match delta_stream(bytes) {
                Some((count, end)) if count <= values => bytes = &bytes[end..],
                _ => return Err(ParquetError::General("the lengths in a page are inconsistent".into())),
            }
        }
        Ok(())
    }

    /// The encoded values of a page.
    fn values_after_levels<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        match page {
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                buf.get((*def_levels_byte_len as usize).checked_add(*rep_levels_byte_len as usize)?..)
            }
            page if self.optional => {
                let (length, rest) = page.buffer().split_first_chunk::<4>()?;
                rest.get(u32::from_le_bytes(*length) as usize..)
            }
            page => Some(page.buffer()),
        }
    }
}

/// Number of values stated by a delta-encoded stream, and the offset of its end.
fn delta_stream(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut reader = CompactReader::new(bytes);
    let (block, miniblocks, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
    reader.varint()?;
    let each = block.checked_div(miniblocks)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        reader.varint()?;
        let widths = reader.take(miniblocks)?;
        for width in widths {
            if left == 0 {
                break;
            }
            reader.take(u64::from(*width).checked_mul(each)? / 8)?;
            left = left.saturating_sub(each.max(1));
        }
    }
    Some((count, reader.position()))
}

impl Iterator for CheckedPages {
    type Item = Decoded<Page>;

    fn next(&mut self) -> Option<Decoded<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Decoded<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.iter().try_for_each(|page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Decoded<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Decoded<()> {
        self.pages.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Decoded<Option<Page>> {
        self.pages.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Decoded<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_beyond_the_limits_are_refused() {
        let page = |uncompressed, compressed, values| PageHeader {
            length: 20,
            is_dictionary: false,
            uncompressed,
            compressed,
            values,
        };
        let problem = |header: &PageHeader| header.size_error(1000, 50, 1 << 20, Type::BYTE_ARRAY);
        assert_eq!(problem(&page(900, 900, 50)), None);
        assert!(problem(&page(900, 990, 50)).unwrap().contains("990 bytes where 1000 are left"));
        assert!(problem(&page(2 << 20, 900, 50)).unwrap().contains("more than data.memory"));
        assert!(problem(&page(900, 900, 51)).unwrap().contains("a page claims 51 values"));
        assert!(problem(&page(900, -1, 50)).unwrap().contains("negative"));
        let dictionary = PageHeader { is_dictionary: true, ..page(900, 900, 1 << 31) };
        assert_eq!(
            problem(&dictionary).unwrap(),
            "a dictionary claims 2147483648 values where there can be 225"
        );
        assert!(check_rows(1 << 31, 322).is_err() && check_rows(1 << 20, 322).is_ok());
    }

    #[test]
    fn schema_elements_with_too_many_children_are_refused() {
        let element = |children: u64| {
            let mut element = vec![0x55];
            let mut number = children * 2;
            while number >= 0x80 {
                element.push(number as u8 | 0x80);
                number >>= 7;
            }
            element.extend([number as u8, 0]);
            element
        };
        let footer = |elements: &[u64]| {
            let mut footer =
                vec![0x15, 2, 0x19, 0xfc, elements.len() as u8 | 0x80, (elements.len() >> 7) as u8];
            elements.iter().for_each(|children| footer.extend(element(*children)));
            footer.extend([0x16, 8, 0]);
            check_columns(&footer)
        };
        assert_eq!(footer(&[2, 0, 0]), Ok(()));
        assert_eq!(footer(&[2, 2, 0, 0, 0]), Ok(()));
        assert!(footer(&[1 << 30, 0, 0]).unwrap_err().contains("a column of 1073741824 columns"));
        assert!(footer(&[1; 200]).unwrap_err().contains("65 deep"));
        assert!(check_columns(&[0x15]).unwrap_err().contains("schema is invalid"));
    }

    #[test]
    fn a_page_header_is_parsed() {
        // type 2 (dictionary), 40 bytes uncompressed, 30 compressed, dictionary { 5 values, encoding 0 }.
        let bytes = [0x15, 4, 0x15, 80, 0x15, 60, 0x4c, 0x15, 10, 0x15, 0, 0, 0, 99];
        let header =
            PageHeader { length: 13, is_dictionary: true, uncompressed: 40, compressed: 30, values: 5 };
        assert_eq!(PageHeader::read(&bytes), Some(header));
        assert_eq!(PageHeader::read(&bytes[..12]), None);
    }

    #[test]
    fn a_delta_stream_ends_with_its_last_block() {
        // Blocks of 128 in 4 miniblocks, 34 numbers, the first 7: one block, its first miniblock 8 bits wide,
        // its second empty.
        let mut bytes = vec![128, 1, 4, 34, 14, 0, 8, 0, 0, 0];
        bytes.extend([1; 32]);
        bytes.push(99);
        assert_eq!(delta_stream(&bytes), Some((34, 42)));
        assert_eq!(delta_stream(&bytes[..30]), None);
        assert_eq!(delta_stream(&[128, 1, 0, 34, 14]), None, "no parts");
    }
}
