//! Loss and metrics over a set of rows, shared among the ranks.

use thalweg_cluster::Rank;
use thalweg_core::{Batch, Error, Model, Result, Tally};
use thalweg_data::{Rows, share};

/// Rows evaluated at once.
const AT_ONCE: u64 = 512;

/// Evaluates this rank's share and adds up all shares, in the order of ranks: every rank gets the same sums.
pub fn validate(
    rank: &mut Rank,
    model: &mut dyn Model,
    parameters: &[f32],
    rows: &Rows,
    batch: &mut Batch,
) -> Result<Tally> {
    let mine = share(rows.len() as usize, rank.index(), rank.world());
    let tally = rank.compute("validation", 0, || {
        evaluate(model, parameters, rows, mine.start as u64..mine.end as u64, batch)
    })?;
    let text = postcard::to_stdvec(&tally).map_err(|error| Error::internal(error.to_string()))?;
    let mut total = Tally::default();
    for part in rank.all_gather("validation", &text)? {
        total.add(&postcard::from_bytes(&part).map_err(|error| Error::internal(error.to_string()))?);
    }
    Ok(total)
}

/// Evaluates a range of a set of rows.
pub fn evaluate(
    model: &mut dyn Model,
    parameters: &[f32],
    rows: &Rows,
    range: std::ops::Range<u64>,
    batch: &mut Batch,
) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut ids = Vec::new();
    let mut next = range.start;
    while next < range.end {
        let end = (next + AT_ONCE).min(range.end);
        ids.clear();
        ids.extend((next..end).map(|index| rows.id(index)));
        rows.load(&ids, 0, batch)?;
        tally.add(&model.evaluate(parameters, batch)?);
        next = end;
    }
    Ok(tally)
}
