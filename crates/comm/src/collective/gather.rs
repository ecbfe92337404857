//! Byte strings whose lengths only their owners know: reports, counts, agreements, a checkpoint's pieces.
//!
//! Lengths travel first and are bounded, so that no peer decides how much memory is allocated here; then the contents, in
//! chunks of those lengths. Both by the way that is taken for so many bytes on these hosts.

use super::executor::Executor;
use super::operator::Sum;
use super::partition::{Counts, Partition};
use super::{Circle, Goal, pairwise};
use crate::transport::{Cause, Fault, Tag, Transport};
use std::time::Duration;

/// The longest byte string one rank may contribute.
pub const MAX_LENGTH: usize = 256 << 20;

/// The most bytes of all contributions that meet on a rank: frames number them with 32 bits.
pub const MAX_TOTAL: usize = u32::MAX as usize;

/// [`Circle::all_gather`] among all ranks, wherever they are.
pub fn all_gather(
    transport: &mut dyn Transport,
    tag: Tag,
    mine: &[u8],
    deadline: Duration,
) -> Result<Vec<Vec<u8>>, Fault> {
    let everybody = Circle::everybody(transport.rank(), transport.world());
    everybody.all_gather(transport, tag, mine, deadline)
}

impl Circle {
    /// Every member gives a byte string and gets those of all members, by their places.
    pub fn all_gather(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        mine: &[u8],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let (place, start) = (self.place(), transport.now());
        check_length(transport.rank(), mine.len() as u64)?;
        let (mut executor, mut lengths) = (Executor::new(), vec![0u64; self.size()]);
        lengths[place] = mine.len() as u64;
        let schedule = self.schedule(Goal::AllGather, size_of_val(&lengths[..]));
        executor.run(&schedule, transport, tag, &mut lengths, &Sum, deadline)?;
        let ends = ends(self.ranks(), &lengths)?;
        let total = ends.last().copied().unwrap_or(0);
        let mut all = vec![0u8; total];
        all[ends[place] - mine.len()..ends[place]].copy_from_slice(mine);
        let (schedule, left) = (self.schedule(Goal::AllGather, total), left(transport, start, deadline));
        executor.run_ragged(&schedule, transport, tag, (&mut all, Partition::Ends(&ends)), &Sum, left)?;
        let starts = std::iter::once(0).chain(ends.iter().copied());
        Ok(starts.zip(&ends).map(|(start, end)| all[start..*end].to_vec()).collect())
    }

    /// Every member gets the byte string of the one in place `root`; what the others give is ignored.
    pub fn broadcast(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        root: usize,
        bytes: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<u8>, Fault> {
        let (goal, start) = (Goal::Broadcast { root }, transport.now());
        let Some(&sender) = self.ranks().get(root) else {
            let words = format!("there is no place {root} in a circle of {}", self.size());
            return Err(Fault::of(transport.rank(), Cause::Protocol(words)));
        };
        let is_root = self.place() == root;
        if is_root {
            check_length(sender, bytes.len() as u64)?;
        }
        let (mut executor, mut length) = (Executor::new(), [bytes.len() as u64]);
        let schedule = self.schedule(goal, size_of_val(&length));
        executor.run(&schedule, transport, tag, &mut length, &Sum, deadline)?;
        let length = check_length(sender, length[0])?;
        let mut bytes = if is_root { bytes } else { vec![0; length] };
        let (schedule, left) = (self.schedule(goal, length), left(transport, start, deadline));
        executor.run(&schedule, transport, tag, &mut bytes, &Sum, left)?;
        Ok(bytes)
    }

    /// Every member gives a byte string to each, itself included, and gets what each has for it, by their places.
    pub fn all_to_all(
        &self,
        transport: &mut dyn Transport,
        tag: Tag,
        pieces: &[&[u8]],
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let (place, world, start) = (self.place(), self.size(), transport.now());
        if pieces.len() != world {
            let what = format!("{} pieces for {world} ranks", pieces.len());
            return Err(Fault::of(transport.rank(), Cause::Protocol(what)));
        }
        check_length(transport.rank(), pieces.iter().map(|piece| piece.len() as u64).sum())?;
        let (mut executor, mut counts) = (Executor::new(), vec![0u64; world * world]);
        for (count, piece) in counts[place * world..].iter_mut().zip(pieces) {
            *count = piece.len() as u64;
        }
        let schedule = self.schedule(Goal::AllGather, size_of_val(&counts[..]));
        executor.run(&schedule, transport, tag, &mut counts, &Sum, deadline)?;
        let counts = checked(self.ranks(), counts)?;
        let arriving = (0..world).map(|from| counts[from * world + place]);
        let mut buffer = pieces.concat();
        let mut end = buffer.len();
        buffer.resize(end + arriving.clone().sum::<usize>(), 0);
        let partition = Partition::Pairs(Counts { counts: &counts, world }, place);
        let schedule = self.carry(pairwise::all_to_all_apart(place, world));
        let left = left(transport, start, deadline);
        executor.run_ragged(&schedule, transport, tag, (&mut buffer, partition), &Sum, left)?;
        let mut take = |length: usize| {
            end += length;
            buffer[end - length..end].to_vec()
        };
        let mut arrived: Vec<Vec<u8>> = arriving.map(&mut take).collect();
        arrived[place] = pieces[place].to_vec();
        Ok(arrived)
    }
}

/// Where each of the byte strings of these ranks ends, one behind the other.
fn ends(ranks: &[usize], lengths: &[u64]) -> Result<Vec<usize>, Fault> {
    let mut end = 0;
    let mut ends = Vec::with_capacity(lengths.len());
    for (rank, length) in ranks.iter().zip(lengths) {
        end += check_length(*rank, *length)?;
        ends.push(end);
    }
    check_total(ranks, lengths, end)?;
    Ok(ends)
}

/// How much each of these ranks has for each, if every one of them can hold what it gives and gets.
fn checked(ranks: &[usize], counts: Vec<u64>) -> Result<Vec<usize>, Fault> {
    let world = ranks.len();
    let given: Vec<u64> = counts
        .chunks(world)
        .map(|row| row.iter().fold(0u64, |sum, count| sum.saturating_add(*count)))
        .collect();
    let given_lengths: Result<Vec<usize>, Fault> =
        ranks.iter().zip(&given).map(|(rank, length)| check_length(*rank, *length)).collect();
    let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
    for (place, length) in given_lengths?.into_iter().enumerate() {
        let got = (0..world).map(|from| counts[from * world + place]).sum::<usize>();
        check_total(ranks, &given, length + got)?;
    }
    Ok(counts)
}

/// Refuses contributions of these ranks that are too much together; whoever gives most is named.
fn check_total(ranks: &[usize], lengths: &[u64], total: usize) -> Result<(), Fault> {
    let most = ranks.iter().zip(lengths).max_by_key(|(_, length)| **length);
    match most.filter(|_| total > MAX_TOTAL) {
        None => Ok(()),
        Some((rank, length)) => {
            let what = format!(
                "contributions of {total} bytes together are more than the {MAX_TOTAL} allowed; \
                 this rank's is the longest, {length} bytes"
            );
            Err(Fault::of(*rank, Cause::Protocol(what)))
        }
    }
}

/// What is left of a deadline that began at `start`.
pub(super) fn left(transport: &dyn Transport, start: Duration, deadline: Duration) -> Duration {
    deadline.saturating_sub(transport.now().saturating_sub(start))
}

/// Refuses lengths that nobody may ask for.
fn check_length(rank: usize, length: u64) -> Result<usize, Fault> {
    match usize::try_from(length) {
        Ok(length) if length <= MAX_LENGTH => Ok(length),
        _ => {
            let what = format!("a contribution of {length} bytes is longer than the {MAX_LENGTH} allowed");
            Err(Fault::of(rank, Cause::Protocol(what)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_that_are_too_long_together_are_refused_by_name() {
        let refusal = |fault: Fault| (fault.peer, fault.to_string());
        let most = MAX_LENGTH as u64;
        let ranks: Vec<usize> = (0..16).collect();
        assert!(ends(&ranks[..15], &[most; 15]).is_ok());
        let mut lengths = vec![most; 16];
        lengths[..4].fill(most - 1);
        assert!(ends(&ranks, &lengths).is_ok());
        let (peer, words) = refusal(ends(&ranks, &[most; 16]).expect_err("2^32 bytes"));
        assert!(peer.is_some() && words.contains("4294967296 bytes together"), "{words}");
        let (peer, words) = refusal(ends(&ranks, &[u64::MAX; 16]).expect_err("one alone"));
        assert_eq!(peer, Some(0), "{words}");
        // Everybody has everything for rank 3.
        let mut counts = vec![0; 256];
        (0..16).for_each(|from| counts[16 * from + 3] = most);
        assert!(checked(&ranks, counts).is_err());
    }
}
