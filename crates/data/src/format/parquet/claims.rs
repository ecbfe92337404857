//! What a Parquet file claims about its sizes, checked before the decoder reserves memory for it.
//!
//! The decoder takes the sizes of pages, dictionaries and lengths as they are written. Here the headers of a column's
//! pages are read first, and the counts inside delta-encoded pages before those pages are decoded.

use super::thrift::Compact;
use crate::raw::Raw;
use ::parquet::basic::{Encoding, Type};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result as Decoded};
use ::parquet::file::metadata::ColumnChunkMetaData;
use thalweg_core::Result;

/// Rows that a byte of a file can stand for: a column that repeats one value has about 10,000 for each.
const ROWS_PER_BYTE: u64 = 1 << 16;

/// The longest header of a page: it may hold statistics.
const LONGEST_HEADER: u64 = 1 << 20;

/// Whether a file of so many bytes can hold so many rows; else why not.
pub(super) fn check_rows(rows: u64, bytes: u64) -> Result<(), String> {
    match rows > bytes.saturating_mul(ROWS_PER_BYTE) {
        true => Err(format!("it claims {rows} rows in {bytes} bytes")),
        false => Ok(()),
    }
}

/// Columns within columns at most: the decoder calls itself for each.
const DEEPEST_COLUMN: usize = 64;

/// Checks the description of the columns at the end of a file; the inner error is what is wrong with it.
pub(super) fn check_footer(raw: &Raw) -> Result<Result<(), String>> {
    // What is no Parquet file at all is told by the decoder.
    let Some(end) = raw.len().checked_sub(8) else { return Ok(Ok(())) };
    let tail = raw.slice(end..raw.len())?;
    let length = tail.first_chunk::<4>().map_or(0, |length| u64::from(u32::from_le_bytes(*length)));
    match end.checked_sub(length) {
        Some(begin) if tail.ends_with(b"PAR1") => Ok(check_columns(&raw.slice(begin..end)?)),
        _ => Ok(Ok(())),
    }
}

/// Each entry says how many of the following lie within it: no more than there are, and none too deep.
fn check_columns(footer: &[u8]) -> Result<(), String> {
    let mut problem = None;
    let read = Compact::new(footer).fields(&mut |reader, field, kind| {
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
            if within > count || open.len() > DEEPEST_COLUMN {
                problem = Some(format!("a column of {within} columns, {} deep, among {count}", open.len()));
                return None;
            }
            open.push(within);
        }
        Some(())
    });
    match (problem, read) {
        (Some(problem), _) => Err(problem),
        (None, None) => Err("its description of columns makes no sense".into()),
        (None, Some(())) => Ok(()),
    }
}

/// What the header of a page says.
#[derive(Debug, Default, PartialEq)]
struct PageClaim {
    /// Bytes of the header itself.
    header: u64,
    is_dictionary: bool,
    /// Bytes of the page, unpacked and packed.
    plain: i64,
    packed: i64,
    values: i64,
}

impl PageClaim {
    /// Reads a header; nothing where the bytes end too early or are none.
    fn read(bytes: &[u8]) -> Option<PageClaim> {
        let mut claim = PageClaim::default();
        let mut reader = Compact::new(bytes);
        reader.fields(&mut |reader, field, kind| {
            match field {
                2 => claim.plain = reader.number(kind)?,
                3 => claim.packed = reader.number(kind)?,
                5 | 7 | 8 => {
                    claim.is_dictionary |= field == 7;
                    reader.fields(&mut |reader, field, kind| {
                        match field {
                            1 => claim.values = reader.number(kind)?,
                            _ => reader.skip(kind, 0)?,
                        }
                        Some(())
                    })?;
                }
                _ => reader.skip(kind, 0)?,
            }
            Some(())
        })?;
        claim.header = reader.position() as u64;
        Some(claim)
    }

    /// Why it cannot be: it claims more than its bytes, its rows or the memory hold.
    fn problem(&self, left: u64, rows: u64, memory: u64, kind: Type) -> Option<String> {
        let (Ok(plain), Ok(packed), Ok(values)) =
            (u64::try_from(self.plain), u64::try_from(self.packed), u64::try_from(self.values))
        else {
            return Some("a page of negative size".into());
        };
        if packed.saturating_add(self.header) > left {
            return Some(format!("a page claims {packed} bytes where {left} are left"));
        }
        if plain > memory {
            return Some(format!("a page of {plain} bytes, more than data.memory allows ({memory})"));
        }
        let most = if self.is_dictionary { plain.saturating_mul(8) / bits_of(kind) } else { rows };
        (values > most).then(|| {
            let what = if self.is_dictionary { "dictionary" } else { "page" };
            format!("a {what} claims {values} values where there can be {most}")
        })
    }
}

/// Bits that a value takes at least; a text has its length in front.
fn bits_of(kind: Type) -> u64 {
    match kind {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
        Type::INT64 | Type::DOUBLE => 64,
        Type::INT96 => 96,
        Type::FIXED_LEN_BYTE_ARRAY => 8,
    }
}

/// Checks the pages of a column in a row group of so many rows; the inner error is what is wrong with them.
pub(super) fn check_pages(
    raw: &Raw,
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
    if end > raw.len() {
        return Ok(Err(format!("a column ends at byte {end} of {}", raw.len())));
    }
    while position < end {
        let left = end - position;
        let mut window = left.min(1 << 10);
        let claim = loop {
            let claim = PageClaim::read(&raw.slice(position..position + window)?);
            if claim.is_some() || window == left.min(LONGEST_HEADER) {
                break claim;
            }
            window = left.min(LONGEST_HEADER);
        };
        let Some(claim) = claim else { return Ok(Err("a page has no header".into())) };
        if let Some(problem) = claim.problem(left, rows as u64, memory, column.column_type()) {
            return Ok(Err(problem));
        }
        position += claim.header + claim.packed.unsigned_abs();
    }
    Ok(Ok(()))
}

/// Pages whose inner counts are checked before they are decoded.
pub(super) struct CheckedPages {
    pub(super) pages: Box<dyn PageReader>,
    /// Whether values may be missing: then levels stand before them.
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
        let streams = match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        let mut bytes = self.behind_levels(page).unwrap_or_default();
        for _ in 0..streams {
            match delta_stream(bytes) {
                Some((count, end)) if count <= values => bytes = &bytes[end..],
                _ => return Err(ParquetError::General("the lengths of a page make no sense".into())),
            }
        }
        Ok(())
    }

    /// The values of a page.
    fn behind_levels<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
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

/// How many numbers a delta-encoded stream claims, and where it ends.
fn delta_stream(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut reader = Compact::new(bytes);
    let (block, minis, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
    reader.varint()?;
    let each = block.checked_div(minis)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        reader.varint()?;
        let widths = reader.take(minis)?;
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
    fn more_than_a_page_can_hold_is_refused() {
        let page =
            |plain, packed, values| PageClaim { header: 20, is_dictionary: false, plain, packed, values };
        let problem = |claim: &PageClaim| claim.problem(1000, 50, 1 << 20, Type::BYTE_ARRAY);
        assert_eq!(problem(&page(900, 900, 50)), None);
        assert!(problem(&page(900, 990, 50)).unwrap().contains("990 bytes where 1000 are left"));
        assert!(problem(&page(2 << 20, 900, 50)).unwrap().contains("more than data.memory"));
        assert!(problem(&page(900, 900, 51)).unwrap().contains("a page claims 51 values"));
        assert!(problem(&page(900, -1, 50)).unwrap().contains("negative"));
        let dictionary = PageClaim { is_dictionary: true, ..page(900, 900, 1 << 31) };
        assert_eq!(
            problem(&dictionary).unwrap(),
            "a dictionary claims 2147483648 values where there can be 225"
        );
        assert!(check_rows(1 << 31, 322).is_err() && check_rows(1 << 20, 322).is_ok());
    }

    #[test]
    fn columns_that_claim_more_columns_than_there_are_are_refused() {
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
        assert!(check_columns(&[0x15]).unwrap_err().contains("makes no sense"));
    }

    #[test]
    fn the_header_of_a_page_is_read() {
        // type 2 (dictionary), 40 bytes plain, 30 packed, dictionary { 5 values, encoding 0 }.
        let bytes = [0x15, 4, 0x15, 80, 0x15, 60, 0x4c, 0x15, 10, 0x15, 0, 0, 0, 99];
        let claim = PageClaim { header: 13, is_dictionary: true, plain: 40, packed: 30, values: 5 };
        assert_eq!(PageClaim::read(&bytes), Some(claim));
        assert_eq!(PageClaim::read(&bytes[..12]), None);
    }

    #[test]
    fn a_stream_of_deltas_ends_where_its_blocks_do() {
        // Blocks of 128 in 4 parts, 34 numbers, the first 7: one block, its first part 8 bits wide, its second empty.
        let mut bytes = vec![128, 1, 4, 34, 14, 0, 8, 0, 0, 0];
        bytes.extend([1; 32]);
        bytes.push(99);
        assert_eq!(delta_stream(&bytes), Some((34, 42)));
        assert_eq!(delta_stream(&bytes[..30]), None);
        assert_eq!(delta_stream(&[128, 1, 0, 34, 14]), None, "no parts");
    }
}
