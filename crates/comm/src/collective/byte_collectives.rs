//! Collectives of byte strings of different lengths, known to their owners only: reports, counts, parts of a checkpoint.
//!
//! The lengths are exchanged first and bounded, so that no peer decides how much memory is allocated here; then the
//! contents, in chunks of these lengths. Both use the default algorithm for their size.

use super::executor::Executor;
use super::operator::Sum;
use super::partition::{Counts, Partition};
use super::schedule::{Action, Chunks, Schedule, Step};
use super::{Collective, Group, pairwise};
use crate::transport::{Cause, Tag, Transport, TransportError};
use std::time::Duration;

/// The longest byte string that one rank may contribute.
const MAX_LENGTH: usize = 256 << 20;

/// The maximum of all contributions on one rank together: frames have 32 bits for an element's index.
const MAX_TOTAL: usize = u32::MAX as usize;

/// [`Group::all_gather`] among all ranks.
pub fn all_gather(
    transport: &mut dyn Transport,
    tag: Tag,
    mine: &[u8],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, TransportError> {
    let group = Group::world(transport.rank(), transport.world());
    group.all_gather(transport, tag, mine, deadline)
}

impl Group {
    /// Returns the byte strings of all members, by group rank.
    pub fn all_gather(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let (group_rank, start) = (self.group_rank(), transport.now());
        check_length(transport.rank(), mine.len() as u64)?;
        let (mut executor, mut lengths) = (Executor::new(), vec![0u64; self.size()]);
        lengths[group_rank] = mine.len() as u64;
        let schedule = self.schedule(Collective::AllGather, size_of_val(&lengths[..]));
        executor.run(&schedule, transport, tag, &mut lengths, &Sum, deadline)?;
        let ends = ends(self.ranks(), &lengths)?;
        let total = ends.last().copied().unwrap_or(0);
        let mut all = vec![0u8; total];
        all[ends[group_rank] - mine.len()..ends[group_rank]].copy_from_slice(mine);
        let schedule = self.schedule(Collective::AllGather, total);
        let remaining = remaining(transport, start, deadline);
        executor.run_ragged(
            &schedule,
            transport,
            tag,
            (&mut all, Partition::Ends(&ends)),
            &Sum,
            remaining,
        )?;
        let starts = std::iter::once(0).chain(ends.iter().copied());
        Ok(starts.zip(&ends).map(|(start, end)| all[start..*end].to_vec()).collect())
    }

    /// Returns the byte strings of all members, by group rank, on the member with group rank `root`, and nothing on the
    /// others. They travel up a binomial tree, so that only the root holds all.
    pub fn gather(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        root: usize,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let (world, start) = (self.size(), transport.now());
        check_length(transport.rank(), mine.len() as u64)?;
        let position = (self.group_rank() + world - root % world) % world;
        let group_rank = |position: usize| (position + root) % world;
        let mut executor = Executor::new();
        // Of the members from this position on.
        let (mut lengths, mut bytes) = (vec![mine.len() as u64], mine.to_vec());
        let mut reach = 1;
        while reach < world && position & reach == 0 {
            let child = position + reach;
            if child < world {
                let receive = Step::receiving(group_rank(child), Chunks::one(0), Action::Copy);
                let schedule = self.translate_ranks(Schedule { chunks: 1, steps: vec![receive] });
                let mut counts = vec![0; reach.min(world - child)];
                let rest = remaining(transport, start, deadline);
                executor.run(&schedule, transport, tag, &mut counts, &Sum, rest)?;
                let senders: Vec<usize> = (child..child + counts.len())
                    .map(|position| self.ranks()[group_rank(position)])
                    .collect();
                let total = ends(&senders, &counts)?.last().copied().unwrap_or(0);
                check_total(&senders, &counts, bytes.len() + total)?;
                let end = bytes.len();
                bytes.resize(end + total, 0);
                let rest = remaining(transport, start, deadline);
                executor.run(&schedule, transport, tag, &mut bytes[end..], &Sum, rest)?;
                lengths.extend(counts);
            }
            reach *= 2;
        }
        if position > 0 {
            let send = Step::sending(group_rank(position - reach), Chunks::one(0));
            let schedule = self.translate_ranks(Schedule { chunks: 1, steps: vec![send] });
            let rest = remaining(transport, start, deadline);
            executor.run(&schedule, transport, tag, &mut lengths, &Sum, rest)?;
            let rest = remaining(transport, start, deadline);
            executor.run(&schedule, transport, tag, &mut bytes, &Sum, rest)?;
            return Ok(Vec::new());
        }
        let mut rest = &bytes[..];
        let mut all = vec![Vec::new(); world];
        for (position, length) in lengths.into_iter().enumerate() {
            let (own, others) = rest.split_at(length as usize);
            (all[group_rank(position)], rest) = (own.to_vec(), others);
        }
        Ok(all)
    }

    /// Returns the byte string of the member with group rank `root`; that of the other members is ignored.
    pub fn broadcast(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        root: usize,
        bytes: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<u8>, TransportError> {
        let (collective, start) = (Collective::Broadcast { root }, transport.now());
        let Some(&sender) = self.ranks().get(root) else {
            let what = format!("there is no rank {root} in a group of {}", self.size());
            return Err(TransportError::new(transport.rank(), Cause::Protocol(what)));
        };
        let is_root = self.group_rank() == root;
        if is_root {
            check_length(sender, bytes.len() as u64)?;
        }
        let (mut executor, mut length) = (Executor::new(), [bytes.len() as u64]);
        let schedule = self.schedule(collective, size_of_val(&length));
        executor.run(&schedule, transport, tag, &mut length, &Sum, deadline)?;
        let length = check_length(sender, length[0])?;
        let mut bytes = if is_root { bytes } else { vec![0; length] };
        let schedule = self.schedule(collective, length);
        let remaining = remaining(transport, start, deadline);
        executor.run(&schedule, transport, tag, &mut bytes, &Sum, remaining)?;
        Ok(bytes)
    }

    /// Sends one byte string to each member, itself included, and returns those received, by group rank.
    pub fn all_to_all(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        pieces: &[&[u8]],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, TransportError> {
        let (group_rank, world, start) = (self.group_rank(), self.size(), transport.now());
        if pieces.len() != world {
            let what = format!("{} pieces for {world} ranks", pieces.len());
            return Err(TransportError::new(transport.rank(), Cause::Protocol(what)));
        }
        check_length(transport.rank(), pieces.iter().map(|piece| piece.len() as u64).sum())?;
        let (mut executor, mut counts) = (Executor::new(), vec![0u64; world * world]);
        for (count, piece) in counts[group_rank * world..].iter_mut().zip(pieces) {
            *count = piece.len() as u64;
        }
        let schedule = self.schedule(Collective::AllGather, size_of_val(&counts[..]));
        executor.run(&schedule, transport, tag, &mut counts, &Sum, deadline)?;
        let counts = check_counts(self.ranks(), counts)?;
        let received = (0..world).map(|from| counts[from * world + group_rank]);
        let mut buffer = pieces.concat();
        let mut end = buffer.len();
        buffer.resize(end + received.clone().sum::<usize>(), 0);
        let partition = Partition::Pairs(Counts { counts: &counts, world }, group_rank);
        let schedule = self.translate_ranks(pairwise::all_to_all_v(group_rank, world));
        let remaining = remaining(transport, start, deadline);
        executor.run_ragged(&schedule, transport, tag, (&mut buffer, partition), &Sum, remaining)?;
        let mut take = |length: usize| {
            end += length;
            buffer[end - length..end].to_vec()
        };
        let mut parts: Vec<Vec<u8>> = received.map(&mut take).collect();
        parts[group_rank] = pieces[group_rank].to_vec();
        Ok(parts)
    }
}

/// The end of each rank's byte string in their concatenation.
fn ends(ranks: &[usize], lengths: &[u64]) -> Result<Vec<usize>, TransportError> {
    let mut end = 0;
    let mut ends = Vec::with_capacity(lengths.len());
    for (rank, length) in ranks.iter().zip(lengths) {
        end += check_length(*rank, *length)?;
        ends.push(end);
    }
    check_total(ranks, lengths, end)?;
    Ok(ends)
}

/// Checks the counts of an all-to-all: what a rank sends and receives must not be too long.
fn check_counts(ranks: &[usize], counts: Vec<u64>) -> Result<Vec<usize>, TransportError> {
    let world = ranks.len();
    let sent: Vec<u64> = counts
        .chunks(world)
        .map(|row| row.iter().fold(0u64, |sum, count| sum.saturating_add(*count)))
        .collect();
    let sent_lengths: Result<Vec<usize>, TransportError> =
        ranks.iter().zip(&sent).map(|(rank, length)| check_length(*rank, *length)).collect();
    let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
    for (rank, length) in sent_lengths?.into_iter().enumerate() {
        let received = (0..world).map(|from| counts[from * world + rank]).sum::<usize>();
        check_total(ranks, &sent, length + received)?;
    }
    Ok(counts)
}

/// Refuses contributions that are too long together; the error blames the rank with the longest.
fn check_total(ranks: &[usize], lengths: &[u64], total: usize) -> Result<(), TransportError> {
    let most = ranks.iter().zip(lengths).max_by_key(|(_, length)| **length);
    match most.filter(|_| total > MAX_TOTAL) {
        None => Ok(()),
        Some((rank, length)) => {
            let what = format!(
                "contributions of {total} bytes together are more than the {MAX_TOTAL} allowed; \
                 this rank's is the longest, {length} bytes"
            );
            Err(TransportError::new(*rank, Cause::Protocol(what)))
        }
    }
}

/// The rest of a deadline that began at `start`.
pub(super) fn remaining(transport: &dyn Transport, start: Duration, deadline: Duration) -> Duration {
    deadline.saturating_sub(transport.now().saturating_sub(start))
}

fn check_length(rank: usize, length: u64) -> Result<usize, TransportError> {
    match usize::try_from(length) {
        Ok(length) if length <= MAX_LENGTH => Ok(length),
        _ => {
            let what = format!("a contribution of {length} bytes is longer than the {MAX_LENGTH} allowed");
            Err(TransportError::new(rank, Cause::Protocol(what)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_that_are_too_long_together_are_refused() {
        let refusal = |error: TransportError| (error.peer, error.to_string());
        let most = MAX_LENGTH as u64;
        let ranks: Vec<usize> = (0..16).collect();
        assert!(ends(&ranks[..15], &[most; 15]).is_ok());
        let mut lengths = vec![most; 16];
        lengths[..4].fill(most - 1);
        assert!(ends(&ranks, &lengths).is_ok());
        let (peer, text) = refusal(ends(&ranks, &[most; 16]).expect_err("2^32 bytes"));
        assert!(peer.is_some() && text.contains("4294967296 bytes together"), "{text}");
        let (peer, text) = refusal(ends(&ranks, &[u64::MAX; 16]).expect_err("one alone"));
        assert_eq!(peer, Some(0), "{text}");
        // All ranks send the maximum to rank 3.
        let mut counts = vec![0; 256];
        (0..16).for_each(|from| counts[16 * from + 3] = most);
        assert!(check_counts(&ranks, counts).is_err());
    }
}
