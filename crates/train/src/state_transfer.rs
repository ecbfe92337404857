//! State transfer: new members take the job's state from the others while these train.
//!
//! ```text
//! change at step T    a new member enters the group: it knows where the job stands, and has no rows
//! before each unit    the next chunk of all columns, as they are then; every holder sends a share of it
//! in each unit        the new member takes part in the exchange, and updates what it has as all others do
//! the last chunk      it has all of the state, the same bits as the others, and rows of its own from this unit on
//! ```
//!
//! No copies are kept for it, as the update of an element needs that element and the exchanged values alone: a received
//! element stays right, and the others are overwritten later. Rules that need whole tensors get whole tensors. The number
//! of chunks is a function of numbers that all ranks know, so no message carries it. The loss of a member ends the
//! generation, and the transfer starts again.
//!
//! There is one chunk, sent at the change while all wait: if the state is small, if it goes into a shared arena, if the new
//! member has rank 0 (which writes checkpoints), if no unit of the epoch is left (validation needs all of the state), and
//! if an update needs all parameters.

use crate::state::{Column, PARAMETERS, Spread, State};
use crate::strategy::TransferUnit;
use std::ops::Range;
use std::time::Duration;
use thalweg_cluster::Rank;
use thalweg_core::spec::setting::Auto;
use thalweg_core::{JobSpec, Layout, Result};
use thalweg_data::even_range;

/// A chunk is this share of the parameters' bytes, and at least [`MIN_CHUNK`] bytes.
const SHARE: usize = 4;
const MIN_CHUNK: usize = 1 << 20;

/// A transfer in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateTransfer {
    /// Ranks that have the state.
    pub(crate) holders: Vec<usize>,
    /// Ranks that receive it.
    pub(crate) receivers: Vec<usize>,
    /// The step of the change.
    pub(crate) first: u64,
    pub(crate) since: Duration,
    unit: TransferUnit,
    chunks: u64,
    sent: u64,
}

impl StateTransfer {
    /// The transfer to the ranks of a change at step `first`, with `units_left` units to the next validation; None if the
    /// state is sent at once.
    pub(crate) fn plan(
        job: &JobSpec,
        state: &State,
        (holders, receivers): (&[usize], &[usize]),
        (first, units_left): (u64, u64),
        unit: TransferUnit,
        since: Duration,
    ) -> Option<StateTransfer> {
        if unit == TransferUnit::State {
            return None;
        }
        let asked = match job.fault.join_piece {
            Auto::Auto => None,
            Auto::Is(bytes) => Some(bytes.0 as usize),
        };
        let chunks = chunks(state.bytes(), size_of_val(state.parameters()), asked, units_left);
        let (holders, receivers) = (holders.to_vec(), receivers.to_vec());
        (chunks > 1).then_some(StateTransfer { holders, receivers, first, since, unit, chunks, sent: 0 })
    }

    /// The elements that are sent next, and whether they are the last.
    pub(crate) fn next_chunk(&mut self, layout: &Layout) -> (Range<usize>, bool) {
        let align = |element| match self.unit {
            TransferUnit::Element => element,
            TransferUnit::Tensor | TransferUnit::State => tensor_end(layout, element),
        };
        let chunk = even_range(layout.len(), self.sent as usize, self.chunks as usize);
        self.sent += 1;
        (align(chunk.start)..align(chunk.end), self.sent >= self.chunks)
    }

    /// Whether a rank with the state would stay if these ranks left.
    pub(crate) fn survives(&self, leaving: &[usize]) -> bool {
        self.holders.iter().any(|holder| !leaving.contains(holder))
    }
}

/// The number of chunks for a state of `state` bytes, of which `parameters` are parameters.
fn chunks(state: usize, parameters: usize, asked: Option<usize>, units_left: u64) -> u64 {
    let chunk = asked.unwrap_or((parameters / SHARE).max(MIN_CHUNK)).max(1);
    (state.div_ceil(chunk) as u64).min(units_left)
}

/// The end of the tensor that an element is inside of; the element itself at the start of a tensor.
fn tensor_end(layout: &Layout, element: usize) -> usize {
    match layout.at(element) {
        Some(tensor) if element > tensor.offset => tensor.range().end,
        _ => element,
    }
}

/// Ranks that receive state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receivers {
    /// New members, which get every column.
    pub(crate) new: Vec<usize>,
    /// Members that are behind: they keep the columns of their own.
    pub(crate) behind: Vec<usize>,
    /// New ones that are servers: the group was interrupted before they had any state.
    pub(crate) servers: Vec<usize>,
}

impl Receivers {
    pub(crate) fn contains(&self, rank: usize) -> bool {
        self.new.contains(&rank) || self.behind.contains(&rank)
    }

    fn is_empty(&self) -> bool {
        self.new.is_empty() && self.behind.is_empty()
    }
}

/// The holder whose state a new member takes over, where every member has parameters of its own: the new members, by
/// number, take turns.
pub(crate) fn giver(number: usize, holders: &[usize]) -> usize {
    holders[number % holders.len()]
}

/// Sends a range of the state's columns to the receivers: from the holders, each a share of it, or from one alone to a new
/// member, where every member has parameters of its own. All ranks must call it.
pub(crate) fn transfer(
    rank: &mut Rank,
    state: &mut State,
    holders: &[usize],
    receivers: &Receivers,
    range: &Range<usize>,
) -> Result<()> {
    if receivers.is_empty() {
        return Ok(());
    }
    let (mine, own) = (rank.index(), state.has_own_parameters());
    let share = |number: usize| {
        let part = even_range(range.len(), number, holders.len());
        range.start + part.start..range.start + part.end
    };
    // Holders and the parts that they send, in the order of elements.
    let parts = |receiver: usize| -> Vec<(usize, Range<usize>)> {
        match receivers.new.iter().position(|new| *new == receiver).filter(|_| own) {
            Some(number) => vec![(giver(number, holders), range.clone())],
            None => holders.iter().enumerate().map(|(number, holder)| (*holder, share(number))).collect(),
        }
    };
    let gets = |receiver: usize, column: &Column| match column.spread {
        Spread::Replicated => true,
        Spread::PerMember => receivers.new.contains(&receiver),
        Spread::OnServers => column.name == PARAMETERS && receivers.servers.contains(&receiver),
    };
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    if holders.contains(&mine) {
        for &to in receivers.new.iter().chain(&receivers.behind) {
            for (_, part) in parts(to).into_iter().filter(|(holder, _)| *holder == mine) {
                let columns = state.columns().iter().filter(|column| gets(to, column));
                sends.extend(columns.map(|column| (to, &column.values[part.clone()])));
            }
        }
    } else if receivers.contains(mine) {
        let columns = state.columns_mut().iter_mut().filter(|column| gets(mine, column));
        let mut rests: Vec<&mut [f32]> = columns.map(|column| &mut column.values[range.clone()]).collect();
        for (holder, part) in parts(mine) {
            for rest in &mut rests {
                let (front, back) = std::mem::take(rest).split_at_mut(part.len());
                *rest = back;
                receives.push((holder, front));
            }
        }
    }
    rank.world().exchange("transfer", "parameters and optimizer state", &sends, &mut receives)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_core::model::{Density, TensorRole};

    #[test]
    fn large_states_take_several_chunks_and_small_ones_one() {
        const MIB: usize = 1 << 20;
        assert_eq!(chunks(3 * 40 * MIB, 40 * MIB, None, 1000), 12);
        assert_eq!(chunks(3 * 40 * MIB, 40 * MIB, None, 5), 5, "few steps are left");
        assert_eq!(chunks(3 * 40 * MIB, 40 * MIB, None, 0), 0);
        assert_eq!(chunks(MIB, MIB / 2, None, 1000), 1);
        assert_eq!(chunks(MIB, MIB / 2, Some(MIB / 8), 1000), 8);
    }

    proptest! {
        #[test]
        fn chunks_follow_each_other_to_the_end(
            sizes in prop::collection::vec(0usize..50, 1..8), chunks in 2u64..20, whole: bool,
        ) {
            let mut layout = Layout::default();
            for (index, size) in sizes.iter().enumerate() {
                layout.push(format!("{index}"), &[*size], TensorRole::Trainable, Density::Dense);
            }
            let unit = if whole { TransferUnit::Tensor } else { TransferUnit::Element };
            let mut transfer = StateTransfer {
                holders: vec![0], receivers: vec![1], first: 7, since: Duration::ZERO, unit, chunks, sent: 0,
            };
            let mut end = 0;
            for number in 0..chunks {
                let (chunk, is_last) = transfer.next_chunk(&layout);
                prop_assert!(chunk.start == end && chunk.end >= end && is_last == (number + 1 == chunks));
                end = chunk.end;
                let starts = layout.tensors().iter().any(|tensor| tensor.offset == end);
                prop_assert!(!whole || starts || end == layout.len());
            }
            prop_assert_eq!(end, layout.len());
        }
    }
}
