//! Plain text: row `i` is the window of characters that starts at `i`; its class is the next character.
//!
//! Windows overlap, so a random split would leak validation characters into training. Instead the end of the
//! text validates, and windows that reach into it are left out.

use super::{OpenedSource, RowSource, index_files, mismatch, shape_name};
use crate::block::{Block, BlockFeatures, BlockIndex};
use crate::file_bytes::FileBytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use thalweg_core::schema::{RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::spec::data::{DataSpec, TaskChoice};
use thalweg_core::{Error, Result, Targets, Task};

/// Rows per block. Rows share their characters, so a block is small.
const TEXT_BLOCK_ROWS: u64 = 1 << 16;

/// Maximum size of the alphabet.
const MAX_CHARACTERS: usize = 10_000;

/// Bytes per read.
const CHUNK: u64 = 1 << 20;

struct TextSource {
    files: Vec<FileBytes>,
    checksums: Vec<u32>,
    extents: Vec<TextExtent>,
    blocks: Arc<BlockIndex>,
    window: usize,
    /// Index of each character in the alphabet; `u32::MAX` for characters outside it.
    indices: Vec<u32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct TextExtent {
    file: usize,
    start: u64,
    rows: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct TextIndex {
    alphabet: Vec<char>,
    extents: Vec<TextExtent>,
}

pub(crate) fn open(files: Vec<FileBytes>, spec: &DataSpec, known: Option<&Schema>) -> Result<OpenedSource> {
    if spec.task == TaskChoice::Regression || spec.window == 0 {
        return Err(Error::job(
            "a text is learned as characters: data.task cannot be regression, data.window cannot be 0",
        ));
    }
    let window = match known.map(|schema| &schema.shape) {
        Some(RowShape::Text { window, .. }) => *window,
        Some(other) => return Err(mismatch(files[0].name(), "a text", shape_name(other))),
        None => spec.window,
    };
    let (index, checksums) =
        index_files("text", &files, &DataSpec { window, ..spec.clone() }, None, || pass(&files, window))?;
    let schema = match known {
        Some(schema) => schema.clone(),
        None => schema(window, &index)?,
    };
    let RowShape::Text { alphabet, .. } = &schema.shape else {
        return Err(Error::internal("a text without an alphabet"));
    };
    let mut indices = vec![u32::MAX; alphabet.iter().max().map_or(0, |&last| last as usize + 1)];
    alphabet.iter().enumerate().for_each(|(number, &character)| indices[character as usize] = number as u32);
    if let Some(unknown) = index.alphabet.iter().find(|&&character| !alphabet.contains(&character)) {
        return Err(Error::data(format!(
            "the text holds {unknown:?}, a character the model has not seen in training"
        )));
    }
    let blocks = Arc::new(BlockIndex::from_sizes(index.extents.iter().map(|extent| extent.rows)));
    if blocks.rows() == 0 {
        return Err(Error::data(format!(
            "the text is shorter than data.window = {window} characters and one more"
        ))
        .hint("use a longer text or a smaller window"));
    }
    let source = TextSource { files, checksums, extents: index.extents, blocks, window, indices };
    Ok(OpenedSource { source: Arc::new(source), schema, validation: None })
}

fn schema(window: usize, index: &TextIndex) -> Result<Schema> {
    if let [character] = index.alphabet.as_slice() {
        return Err(Error::data(format!("the text holds nothing but {character:?}")));
    }
    Ok(Schema {
        shape: RowShape::Text { window, alphabet: index.alphabet.clone() },
        task: Task::Classification,
        label: None,
        classes: index.alphabet.iter().map(char::to_string).collect(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: Vec::new(),
    })
}

fn pass(files: &[FileBytes], window: usize) -> Result<TextIndex> {
    let mut alphabet = BTreeSet::new();
    let mut extents = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let mut starts = Vec::new();
        let mut count = 0;
        each_chunk(file, |offset, text| {
            for (index, character) in text.char_indices() {
                if count % TEXT_BLOCK_ROWS == 0 {
                    starts.push(offset + index as u64);
                }
                count += 1;
                // Most characters are known already; a lookup is cheaper than an insertion.
                if !alphabet.contains(&character) {
                    alphabet.insert(character);
                }
            }
            match alphabet.len() > MAX_CHARACTERS {
                true => Err(Error::data(format!(
                    "{} holds more than {MAX_CHARACTERS} different characters",
                    file.name()
                ))),
                false => Ok(()),
            }
        })?;
        let rows = u64::saturating_sub(count, window as u64);
        for (block, start) in starts.into_iter().enumerate() {
            let rows = rows.saturating_sub(block as u64 * TEXT_BLOCK_ROWS).min(TEXT_BLOCK_ROWS);
            if rows > 0 {
                extents.push(TextExtent { file: number, start, rows });
            }
        }
    }
    Ok(TextIndex { alphabet: alphabet.into_iter().collect(), extents })
}

/// Visits a file in chunks of whole characters.
fn each_chunk(file: &FileBytes, mut visit: impl FnMut(u64, &str) -> Result<()>) -> Result<()> {
    let mut offset = 0;
    while offset < file.len() {
        let end = (offset + CHUNK).min(file.len());
        let bytes = file.slice(offset..end)?;
        let whole = whole_characters(&bytes);
        // A character cut by the end of the chunk is read again with the next chunk; any other remainder is
        // not UTF-8.
        if whole.is_empty()
            || (end == file.len() || bytes.len() - whole.len() > 3) && whole.len() < bytes.len()
        {
            let position = offset + whole.len() as u64;
            return Err(Error::data(format!(
                "{} line {}: the byte at position {position} is not UTF-8",
                file.name(),
                file.line(position)?
            ))
            .hint("convert the file, for instance with iconv -f latin1 -t utf8"));
        }
        visit(offset, whole)?;
        offset += whole.len() as u64;
    }
    Ok(())
}

/// The longest prefix that is valid UTF-8.
fn whole_characters(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

impl RowSource for TextSource {
    fn blocks(&self) -> &Arc<BlockIndex> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        8
    }

    fn overlap(&self) -> u64 {
        self.window as u64
    }

    fn checksums(&self) -> &[u32] {
        &self.checksums
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        let TextExtent { file, start, rows } = self.extents[block];
        let file = &self.files[file];
        let count = rows as usize + self.window;
        // A character has at most four bytes.
        let bytes = file.slice(start..(start + 4 * count as u64).min(file.len()))?;
        let number =
            |character: char| self.indices.get(character as usize).copied().filter(|&n| n != u32::MAX);
        let symbols: Option<Vec<u32>> = whole_characters(&bytes).chars().take(count).map(number).collect();
        match symbols {
            Some(symbols) if symbols.len() == count => {
                Ok(Arc::new(Block::new(BlockFeatures::Text(symbols), Targets::Classes(Vec::new()))))
            }
            _ => Err(file.changed_error()),
        }
    }
}
