//! Stacking: how the members of an ensemble answer together is learned from rows that none was trained on
//! (`thalweg_graph::stacking`). All ranks predict for a part of the rows; rank 0 learns, so that all have the same numbers.

use crate::context::Context;
use serde::{Deserialize, Serialize};
use thalweg_cluster::Rank;
use thalweg_core::{Batch, Error, Model, Result, Targets};
use thalweg_data::{Rows, even_range};
use thalweg_graph::stacking;

/// Rows that are predicted at once.
const BLOCK: u64 = 256;

/// The predictions of every member for some rows, and what those rows are.
#[derive(Default, Serialize, Deserialize)]
struct Predicted {
    by_member: Vec<Vec<f32>>,
    classes: Vec<u32>,
    values: Vec<f32>,
}

/// Learns how members with these parameters, one after the other, answer together. All ranks must call it.
pub(crate) fn learn(cx: &mut Context<'_>, members: &[f32]) -> Result<Vec<f32>> {
    let internal = |error: postcard::Error| Error::internal(error.to_string());
    let Context { rank, compute, .. } = cx;
    let rows = compute.data.held_out.as_ref().ok_or_else(|| Error::internal("no rows are held out"))?;
    let (model, mut batch) = (compute.model.as_mut(), rows.empty_batch());
    let mine = even_range(rows.len().div_ceil(BLOCK) as usize, rank.index(), rank.size());
    let mine = rank.compute_with_collectives("stacking", 0, |rank| {
        predict(rank, model, members, (rows, mine.start as u64..mine.end as u64), &mut batch)
    })?;
    let all = rank.world().gather("predictions", 0, &postcard::to_stdvec(&mine).map_err(internal)?)?;
    let mut combiner = Vec::new();
    if rank.index() == 0 {
        let parts: std::result::Result<Vec<Predicted>, _> =
            all.iter().map(|part| postcard::from_bytes(part)).collect();
        let parts = parts.map_err(internal)?;
        let count = parts.iter().map(|part| part.by_member.len()).max().unwrap_or(0);
        let of = |member: usize| {
            parts.iter().flat_map(move |part| part.by_member.get(member).into_iter().flatten())
        };
        let predictions: Vec<f32> = (0..count).flat_map(of).copied().collect();
        let targets = match batch.targets {
            Targets::Classes(_) => {
                Targets::Classes(parts.iter().flat_map(|part| &part.classes).copied().collect())
            }
            Targets::Values(_) => {
                Targets::Values(parts.iter().flat_map(|part| &part.values).copied().collect())
            }
        };
        let operations = stacking::operations(predictions.len(), count);
        combiner = rank.compute("stacking", operations, || stacking::learn(&predictions, count, &targets))?;
    }
    let sent = rank.world().broadcast("combination", 0, postcard::to_stdvec(&combiner).map_err(internal)?)?;
    postcard::from_bytes(&sent).map_err(internal)
}

/// Predicts these blocks of rows by every member. Messages move between blocks.
fn predict(
    rank: &mut Rank,
    model: &mut dyn Model,
    members: &[f32],
    (rows, blocks): (&Rows, std::ops::Range<u64>),
    batch: &mut Batch,
) -> Result<Predicted> {
    let length = model.layout().len().max(1);
    let mut predicted = Predicted::default();
    predicted.by_member.resize_with(members.len() / length, Vec::new);
    for block in blocks {
        let ids = block * BLOCK..((block + 1) * BLOCK).min(rows.len());
        rows.load(&ids.map(|index| rows.id(index)).collect::<Vec<u64>>(), 0, batch)?;
        for (member, outputs) in members.chunks_exact(length).zip(&mut predicted.by_member) {
            model.predict(member, batch, outputs)?;
        }
        match &batch.targets {
            Targets::Classes(classes) => predicted.classes.extend(classes),
            Targets::Values(values) => predicted.values.extend(values),
        }
        rank.poll_messages_in_pause()?;
    }
    Ok(predicted)
}
