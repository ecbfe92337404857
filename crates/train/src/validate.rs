//! Loss and metrics over a set of rows, shared among the ranks.
//!
//! Rows are evaluated in blocks that depend on nothing but their number, and the blocks are added up in their order: the
//! same parameters get the same bits, however many ranks evaluate them.

use std::ops::Range;
use thalweg_cluster::Rank;
use thalweg_core::{Batch, Error, Model, Result, Tally};
use thalweg_data::{Rows, even_range};

/// Rows of a block: those of [`BLOCKS`] equal blocks, between [`FEWEST`] and [`MOST`].
const FEWEST: u64 = 32;
const MOST: u64 = 512;
const BLOCKS: u64 = 64;

/// Evaluates this rank's share of the blocks and adds up all of them: every rank gets the same sums. Messages move between
/// blocks.
pub fn validate(
    rank: &mut Rank,
    model: &mut dyn Model,
    parameters: &[f32],
    rows: &Rows,
    batch: &mut Batch,
) -> Result<Tally> {
    let mine = even_range(blocks(rows), rank.index(), rank.size());
    let evaluate = |rank: &mut Rank| {
        evaluate_blocks(model, parameters, rows, mine, batch, || rank.poll_messages_in_pause())
    };
    let tallies = rank.compute_with_collectives("validation", 0, evaluate)?;
    let text = postcard::to_stdvec(&tallies).map_err(|error| Error::internal(error.to_string()))?;
    let mut total = Tally::default();
    for part in rank.world().all_gather("validation", &text)? {
        let tallies: Vec<Tally> =
            postcard::from_bytes(&part).map_err(|error| Error::internal(error.to_string()))?;
        tallies.iter().for_each(|tally| total.add(tally));
    }
    Ok(total)
}

/// Evaluates all rows of a set on this rank, to the same bits. Messages move between blocks.
pub(crate) fn validate_alone(
    rank: &mut Rank,
    model: &mut dyn Model,
    parameters: &[f32],
    rows: &Rows,
    batch: &mut Batch,
) -> Result<Tally> {
    let tallies = rank.compute_with_collectives("validation of a worker's model", 0, |rank| {
        evaluate_blocks(model, parameters, rows, 0..blocks(rows), batch, || rank.poll_messages_in_pause())
    })?;
    let mut total = Tally::default();
    tallies.iter().for_each(|tally| total.add(tally));
    Ok(total)
}

/// Evaluates all rows of a set, to the same bits.
pub fn evaluate(model: &mut dyn Model, parameters: &[f32], rows: &Rows, batch: &mut Batch) -> Result<Tally> {
    let mut total = Tally::default();
    let tallies = evaluate_blocks(model, parameters, rows, 0..blocks(rows), batch, || Ok(()))?;
    tallies.iter().for_each(|tally| total.add(tally));
    Ok(total)
}

fn block(rows: &Rows) -> u64 {
    (rows.len() / BLOCKS).clamp(FEWEST, MOST)
}

fn blocks(rows: &Rows) -> usize {
    rows.len().div_ceil(block(rows)) as usize
}

fn evaluate_blocks(
    model: &mut dyn Model,
    parameters: &[f32],
    rows: &Rows,
    blocks: Range<usize>,
    batch: &mut Batch,
    mut after_block: impl FnMut() -> Result<()>,
) -> Result<Vec<Tally>> {
    let mut ids = Vec::new();
    let evaluate = |number: usize| {
        let start = number as u64 * block(rows);
        ids.clear();
        ids.extend((start..(start + block(rows)).min(rows.len())).map(|index| rows.id(index)));
        rows.load(&ids, 0, batch)?;
        let tally = model.evaluate(parameters, batch)?;
        after_block()?;
        Ok(tally)
    };
    blocks.map(evaluate).collect()
}
