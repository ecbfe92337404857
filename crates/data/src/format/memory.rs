//! Rows given as arrays.

use super::{OpenedSource, RowSource};
use crate::block::{BLOCK_ROWS, Block, BlockFeatures, BlockIndex};
use crate::checksum::Checksum;
use crate::table::column_roles::default_names;
use std::sync::Arc;
use thalweg_core::schema::{Column, Encoding, RowShape, Scaling, Schema, TargetScaling};
use thalweg_core::{Error, Result, Targets, Task};

/// Numbers converted to bytes at a time.
const CHUNK_NUMBERS: usize = 1 << 14;

struct MemorySource {
    blocks: Arc<BlockIndex>,
    decoded: Vec<Arc<Block>>,
    row_bytes: u64,
    checksum: u32,
}

impl RowSource for MemorySource {
    fn blocks(&self) -> &Arc<BlockIndex> {
        &self.blocks
    }

    fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    fn checksums(&self) -> &[u32] {
        std::slice::from_ref(&self.checksum)
    }

    fn decode(&self, block: usize) -> Result<Arc<Block>> {
        Ok(self.decoded[block].clone())
    }
}

/// Dense features, row-major, `width` numbers per row.
pub(crate) fn open(width: usize, features: &[f32], targets: &Targets) -> Result<OpenedSource> {
    check(width, features, targets)?;
    let rows = targets.len() as u64;
    let blocks = Arc::new(BlockIndex::even(rows, BLOCK_ROWS));
    let decoded = (0..blocks.len()).map(|block| {
        let range = blocks.range(block).start as usize..blocks.range(block).end as usize;
        let targets = match targets {
            Targets::Classes(classes) => Targets::Classes(classes[range.clone()].to_vec()),
            Targets::Values(values) => Targets::Values(values[range.clone()].to_vec()),
        };
        let features = BlockFeatures::Dense(features[range.start * width..range.end * width].to_vec());
        Arc::new(Block::new(features, targets))
    });
    let decoded = decoded.collect();
    let checksum = checksum(features, targets);
    let source = MemorySource { blocks, decoded, row_bytes: width as u64 * 4 + 8, checksum };
    Ok(OpenedSource { source: Arc::new(source), schema: schema(width, targets), validation: None })
}

/// Over features and targets as little-endian bytes, so that the value does not depend on the machine.
fn checksum(features: &[f32], targets: &Targets) -> u32 {
    let mut checksum = Checksum::default();
    let mut update = |numbers: &mut dyn Iterator<Item = [u8; 4]>| loop {
        let chunk: Vec<u8> = numbers.take(CHUNK_NUMBERS).flatten().collect();
        if chunk.is_empty() {
            break;
        }
        checksum.update(&chunk);
    };
    update(&mut features.iter().map(|value| value.to_le_bytes()));
    match targets {
        Targets::Classes(classes) => update(&mut classes.iter().map(|class| class.to_le_bytes())),
        Targets::Values(values) => update(&mut values.iter().map(|value| value.to_le_bytes())),
    }
    checksum.value()
}

fn check(width: usize, features: &[f32], targets: &Targets) -> Result<()> {
    if targets.is_empty() || width == 0 {
        return Err(Error::data("there are no rows to learn from"));
    }
    if features.len() != width * targets.len() {
        return Err(Error::data(format!(
            "{} rows of {width} numbers are {} numbers, but there are {}",
            targets.len(),
            width * targets.len(),
            features.len()
        )));
    }
    if let Some(index) = features.iter().position(|value| !value.is_finite()) {
        return Err(Error::data(format!(
            "row {}, column {}: {} is not a finite number",
            index / width,
            index % width,
            features[index]
        )));
    }
    match targets {
        Targets::Values(values) => match values.iter().position(|value| !value.is_finite()) {
            Some(row) => {
                Err(Error::data(format!("row {row}: the target {} is not a finite number", values[row])))
            }
            None => Ok(()),
        },
        Targets::Classes(_) => Ok(()),
    }
}

fn schema(width: usize, targets: &Targets) -> Schema {
    let number = |name| Column { name, encoding: Encoding::Number { imputed: None } };
    let (task, classes) = match targets {
        Targets::Classes(classes) => {
            let count = classes.iter().max().map_or(0, |class| class + 1);
            (Task::Classification, (0..count.max(2)).map(|class| class.to_string()).collect())
        }
        Targets::Values(_) => (Task::Regression, Vec::new()),
    };
    Schema {
        shape: RowShape::Table { columns: default_names(width).into_iter().map(number).collect() },
        task,
        label: None,
        classes,
        scaling: Scaling::default(),
        target: TargetScaling::default(),
        reconstruct: false,
        source_columns: default_names(width),
    }
}
