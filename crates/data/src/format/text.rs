//! Plain text: row `i` shows the characters from `i` on, as many as the window, and its class is the next one.
//!
//! Windows overlap, so a split by chance would show validation characters in training. Instead the end of the text
//! validates, and the windows that reach into it are left out.

use super::{Opened, Source, indexed, mismatch, shape_name};
use crate::block::{Block, BlockFeatures, Blocks};
use crate::raw::Raw;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use thalweg_core::schema::{Scaling, Schema, Shape, TargetScaling};
use thalweg_core::spec::data::{DataSpec, TaskChoice};
use thalweg_core::{Error, Result, Targets, Task};

/// Rows of a block: they share their characters, so a block is cheap.
const TEXT_BLOCK_ROWS: u64 = 1 << 16;

/// Different characters there can be.
const MOST_CHARACTERS: usize = 10_000;

/// Bytes looked at together.
const CHUNK: u64 = 1 << 20;

struct Text {
    files: Vec<Raw>,
    checksums: Vec<u32>,
    stretches: Vec<Stretch>,
    blocks: Arc<Blocks>,
    window: usize,
    /// The number of each character; `u32::MAX` for those that do not occur.
    numbers: Vec<u32>,
}

/// Where a block of text stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stretch {
    file: usize,
    start: u64,
    rows: u64,
}

/// What the pass over the text found.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    alphabet: Vec<char>,
    stretches: Vec<Stretch>,
}

/// Indexes a text.
pub(crate) fn open(files: Vec<Raw>, spec: &DataSpec, known: Option<&Schema>) -> Result<Opened> {
    if spec.task == TaskChoice::Regression || spec.window == 0 {
        return Err(Error::job(
            "a text is learned as characters: data.task cannot be regression, data.window cannot be 0",
        ));
    }
    let window = match known.map(|schema| &schema.shape) {
        Some(Shape::Text { window, .. }) => *window,
        Some(other) => return Err(mismatch(files[0].name(), "a text", shape_name(other))),
        None => spec.window,
    };
    let (index, checksums) =
        indexed("text", &files, &DataSpec { window, ..spec.clone() }, None, || pass(&files, window))?;
    let schema = match known {
        Some(schema) => schema.clone(),
        None => schema(window, &index)?,
    };
    let Shape::Text { alphabet, .. } = &schema.shape else {
        return Err(Error::internal("a text without an alphabet"));
    };
    let mut numbers = vec![u32::MAX; alphabet.iter().max().map_or(0, |&last| last as usize + 1)];
    alphabet.iter().enumerate().for_each(|(number, &character)| numbers[character as usize] = number as u32);
    if let Some(foreign) = index.alphabet.iter().find(|&&character| !alphabet.contains(&character)) {
        return Err(Error::data(format!(
            "the text holds {foreign:?}, a character the model has not seen in training"
        )));
    }
    let blocks = Arc::new(Blocks::of_sizes(index.stretches.iter().map(|stretch| stretch.rows)));
    if blocks.rows() == 0 {
        return Err(Error::data(format!(
            "the text is shorter than data.window = {window} characters and one more"
        ))
        .hint("use a longer text or a smaller window"));
    }
    let source = Text { files, checksums, stretches: index.stretches, blocks, window, numbers };
    Ok(Opened { source: Arc::new(source), schema, held: None })
}

fn schema(window: usize, index: &Index) -> Result<Schema> {
    if let [character] = index.alphabet.as_slice() {
        return Err(Error::data(format!("the text holds nothing but {character:?}")));
    }
    Ok(Schema {
        shape: Shape::Text { window, alphabet: index.alphabet.clone() },
        task: Task::Classification,
        label: None,
        classes: index.alphabet.iter().map(char::to_string).collect(),
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: Vec::new(),
    })
}

fn pass(files: &[Raw], window: usize) -> Result<Index> {
    let mut alphabet = BTreeSet::new();
    let mut stretches = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let mut starts = Vec::new();
        let mut count = 0;
        each_chunk(file, |offset, text| {
            for (place, character) in text.char_indices() {
                if count % TEXT_BLOCK_ROWS == 0 {
                    starts.push(offset + place as u64);
                }
                count += 1;
                // Most characters were seen before; asking first is cheaper than inserting.
                if !alphabet.contains(&character) {
                    alphabet.insert(character);
                }
            }
            match alphabet.len() > MOST_CHARACTERS {
                true => Err(Error::data(format!(
                    "{} holds more than {MOST_CHARACTERS} different characters",
                    file.name()
                ))),
                false => Ok(()),
            }
        })?;
        let rows = u64::saturating_sub(count, window as u64);
        for (block, start) in starts.into_iter().enumerate() {
            let rows = rows.saturating_sub(block as u64 * TEXT_BLOCK_ROWS).min(TEXT_BLOCK_ROWS);
            if rows > 0 {
                stretches.push(Stretch { file: number, start, rows });
            }
        }
    }
    Ok(Index { alphabet: alphabet.into_iter().collect(), stretches })
}

/// Passes over a file in pieces of whole characters.
fn each_chunk(file: &Raw, mut visit: impl FnMut(u64, &str) -> Result<()>) -> Result<()> {
    let mut offset = 0;
    while offset < file.len() {
        let end = (offset + CHUNK).min(file.len());
        let bytes = file.slice(offset..end)?;
        let whole = whole_characters(&bytes);
        // A character cut by the end of the chunk is read again with the next; anything else is no UTF-8.
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

/// The valid text at the beginning of some bytes.
fn whole_characters(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

impl Source for Text {
    fn blocks(&self) -> &Arc<Blocks> {
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
        let Stretch { file, start, rows } = self.stretches[block];
        let file = &self.files[file];
        let count = rows as usize + self.window;
        // No character is longer than four bytes.
        let bytes = file.slice(start..(start + 4 * count as u64).min(file.len()))?;
        let number =
            |character: char| self.numbers.get(character as usize).copied().filter(|&n| n != u32::MAX);
        let symbols: Option<Vec<u32>> = whole_characters(&bytes).chars().take(count).map(number).collect();
        match symbols {
            Some(symbols) if symbols.len() == count => {
                Ok(Arc::new(Block::new(BlockFeatures::Text(symbols), Targets::Classes(Vec::new()))))
            }
            _ => Err(file.changed()),
        }
    }
}
