//! The timing loop of one all-reduce: calls between barriers, and checks of the result.

use std::time::Instant;
use thalweg_cluster::collective::operator::Max;
use thalweg_cluster::{AllReduceMethod, Collective, Rank, SharedArena};
use thalweg_core::{Error, Result};

/// Bounds of the number of calls; the first `WARM_UP` are not counted.
const MAX_CALLS: usize = 3000;
const MIN_CALLS: usize = 6;
const WARM_UP: usize = 2;
/// An arena is filled again, and its sum checked, every this many calls.
const REFILL_EVERY: usize = 8;

/// How an all-reduce is carried out.
pub(super) enum Variant<'a> {
    /// By messages between ranks.
    Messages(AllReduceMethod),
    /// In place, on tensors that live in shared memory.
    Arena(&'a mut SharedArena),
    /// On private buffers that are copied through shared memory.
    Copying(&'a mut SharedArena),
}

impl Variant<'_> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Variant::Messages(method) => method.name(),
            Variant::Arena(_) => "arena",
            Variant::Copying(_) => "arena-copying",
        }
    }
}

/// Seconds of one call on this rank, from a barrier on. An arena keeps its input, so it is filled only if `refill`; a
/// barrier after the call keeps ranks that are done from taking the cores of those that are not.
fn time_call(rank: &mut Rank, variant: &mut Variant<'_>, buffer: &mut [f32], refill: bool) -> Result<f64> {
    let index = rank.index();
    let took;
    match variant {
        Variant::Messages(_) => {
            fill(buffer, index);
            rank.world().barrier("start")?;
            let begun = Instant::now();
            rank.world().all_reduce("buffer", buffer)?;
            took = begun.elapsed();
        }
        Variant::Arena(arena) => {
            let length = arena.length();
            if refill {
                fill(arena.arena(), index);
            }
            rank.world().arena_barrier("start", arena)?;
            let begun = Instant::now();
            rank.world().sum_and_apply("buffer", arena, length, |_, _| ())?;
            took = begun.elapsed();
            rank.world().arena_barrier("end", arena)?;
        }
        Variant::Copying(arena) => {
            fill(buffer, index);
            rank.world().arena_barrier("start", arena)?;
            let begun = Instant::now();
            rank.world().all_reduce_copying("buffer", arena, buffer)?;
            took = begun.elapsed();
            rank.world().arena_barrier("end", arena)?;
        }
    }
    Ok(took.as_secs_f64())
}

/// Median and minimum, over repeated calls, of the seconds that the slowest rank takes.
pub(super) fn measure(
    rank: &mut Rank,
    variant: &mut Variant<'_>,
    length: usize,
    seconds: f64,
) -> Result<(f64, f64)> {
    let mut buffer = if matches!(variant, Variant::Arena(_)) { Vec::new() } else { vec![0.0; length] };
    let mut times = Vec::new();
    let start = Instant::now();
    for call in 0..MAX_CALLS {
        let refill = call % REFILL_EVERY == 0;
        let mine = time_call(rank, variant, &mut buffer, refill)?;
        // Rank 0's clock decides for all ranks when to stop.
        let enough = rank.index() == 0 && call >= MIN_CALLS && start.elapsed().as_secs_f64() > seconds;
        let mut slowest = [mine, if enough { 1.0 } else { 0.0 }];
        rank.world().collective(Collective::AllReduce, "times", &mut slowest, &Max)?;
        let [slowest, enough] = slowest;
        // Checked after the exchange: with more ranks than cores, an earlier check would delay ranks still in the call.
        match variant {
            Variant::Arena(arena) if refill => check(arena.column(0), rank.size())?,
            Variant::Arena(_) => {}
            Variant::Messages(_) | Variant::Copying(_) => check(&buffer, rank.size())?,
        }
        if call >= WARM_UP {
            times.push(slowest);
        }
        if enough > 0.0 {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |index: usize| times.get(index).copied().unwrap_or(0.0);
    Ok((at(times.len() / 2), at(0)))
}

/// Small whole numbers: their sum is exact in any order.
fn fill(buffer: &mut [f32], rank: usize) {
    for (index, element) in buffer.iter_mut().enumerate() {
        *element = ((index & 1023) + rank) as f32;
    }
}

fn check(buffer: &[f32], world: usize) -> Result<()> {
    let ranks = world * (world - 1) / 2;
    let wrong = |(index, element): (usize, &f32)| *element != ((index & 1023) * world + ranks) as f32;
    match buffer.iter().enumerate().position(wrong) {
        None => Ok(()),
        Some(index) => Err(Error::internal(format!("element {index} of the sum is {}", buffer[index]))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_element_is_found() {
        let mut buffer = vec![0.0; 3000];
        fill(&mut buffer, 0);
        assert!(check(&buffer, 1).is_ok());
        buffer[2049] += 1.0;
        assert!(check(&buffer, 1).unwrap_err().to_string().contains("element 2049"));
    }
}
