//! The workers of a group, as they introduce themselves.

use crate::context::Context;
use crate::work::pool::Worker;
use thalweg_core::Result;

/// All workers of the group, with the generation since which each is a member.
pub(super) fn gather_workers(cx: &mut Context<'_>, mine: Worker) -> Result<Vec<Worker>> {
    let all = cx.rank.world().all_gather("workers", &mine.since.to_le_bytes())?;
    let since = |bytes: &Vec<u8>| bytes.as_chunks().0.first().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let members = cx.rank.member_ids();
    let all = members.into_iter().zip(&all).map(|(member, bytes)| Worker { member, since: since(bytes) });
    // Servers have joined in no generation.
    Ok(all.filter(|worker| worker.since > 0).collect())
}
