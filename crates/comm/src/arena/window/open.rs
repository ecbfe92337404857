//! Opens a window: a collective of all ranks, of which each pair on one host shares memory or not.

use super::region::{self, Region};
use super::{Window, WindowTraffic};
use crate::arena::OperationContext;
use crate::collective::byte_collectives::all_gather;
use crate::host::{LocalPeers, Segment, Writers, check_room};
use crate::transport::TransportError;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Timeout for descriptors that have been sent already.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);

impl Window {
    /// Allocates a region of `length` elements, all zero under version 0, and maps those of the other ranks of this host;
    /// lengths may differ. A collective of all ranks, whatever they share.
    ///
    /// Two ranks read each other's region or neither does. The inner error says why this rank shares memory with no other; the
    /// group remains usable.
    pub fn open(
        peers: &LocalPeers,
        length: usize,
        context: OperationContext<'_>,
    ) -> Result<Result<Window, String>, TransportError> {
        let OperationContext { transport, tag, deadline } = context;
        let (rank, world, start) = (transport.rank(), transport.world(), transport.now());
        let mut gather = |mine: Report| {
            let remaining = deadline.saturating_sub(transport.now().saturating_sub(start));
            let all = all_gather(transport, tag, &mine.encode(), remaining)?;
            Ok(all.iter().map(|bytes| Report::decode(bytes, world)).collect::<Vec<_>>())
        };
        let local: Vec<bool> = (0..world).map(|peer| peers.get(peer).is_some_and(Option::is_some)).collect();
        let lengths = gather(Report { length, ranks: local.clone(), error: String::new() })?;
        if lengths.iter().all(|report| !report.ranks.contains(&true)) {
            return Ok(Err("no two ranks share memory".into()));
        }
        // All ranks check free memory before any allocates.
        let here = (0..world).filter(|&peer| peer == rank || local[peer]).map(|peer| lengths[peer].length);
        let sizes: Vec<usize> = here.map(|length| region::bytes(world, length)).collect();
        let total = sizes.iter().fold(0, |sum: usize, size| sum.saturating_add(*size));
        let room = check_room(sizes.iter().copied().max().unwrap_or(0), total);
        let checked = gather(Report { error: text(&room), ..Report::default() })?;
        let own = room.and_then(|()| Segment::create(region::bytes(world, length), Writers::Owner));
        let sent_to = own.as_ref().map_or_else(|_| Vec::new(), |(_, file)| send(peers, &local, file));
        let sent = gather(Report { ranks: sent_to, error: text(&own), ..Report::default() })?;
        let (mut others, why) = attach(peers, rank, &lengths, &sent);
        let mapped_from = others.iter().map(Option::is_some).collect();
        let mapped = gather(Report { ranks: mapped_from, error: why, ..Report::default() })?;
        for (peer, other) in others.iter_mut().enumerate() {
            other.take_if(|_| !mapped[peer].includes(rank));
        }
        let reports = [&checked, &sent, &mapped];
        match own {
            Ok((segment, _)) if others.iter().any(Option::is_some) => Ok(Ok(Window {
                rank,
                generation: tag.generation,
                own: Region::new(segment, world, length),
                others,
                scratch: Vec::new(),
                traffic: Arc::new(WindowTraffic::default()),
            })),
            _ => Ok(Err(reports
                .into_iter()
                .find_map(|all| first_reason(all))
                .unwrap_or_else(|| format!("no other rank shares memory with rank {rank}")))),
        }
    }
}

/// Sends the descriptor of the own region to all ranks of this host; returns those it was sent to.
fn send(peers: &LocalPeers, local: &[bool], file: &OwnedFd) -> Vec<bool> {
    let sent = |(peer, local): (usize, &bool)| {
        let peer = peers.get(peer).and_then(Option::as_ref).filter(|_| *local);
        peer.is_some_and(|peer| peer.send_fds(&[file.as_fd()]).is_ok())
    };
    local.iter().enumerate().map(sent).collect()
}

/// Maps the regions of all ranks that sent theirs, even if this rank has none: no descriptor may be left in a socket. Also
/// returns the first error.
fn attach(
    peers: &LocalPeers,
    rank: usize,
    lengths: &[Report],
    sent: &[Report],
) -> (Vec<Option<Region>>, String) {
    let (world, mut why) = (lengths.len(), String::new());
    let mut regions = Vec::with_capacity(world);
    for (peer, (length, sent)) in lengths.iter().zip(sent).enumerate() {
        let local = peers.get(peer).and_then(Option::as_ref).filter(|_| sent.includes(rank));
        let map = |length: usize| -> Option<io::Result<Region>> {
            let files = local?.receive_fds(1, RECEIVE_TIMEOUT);
            let segment = files
                .and_then(|files| Segment::attach(&files[0], region::bytes(world, length), Writers::Owner));
            Some(segment.map(|segment| Region::new(segment, world, length)))
        };
        regions.push(match map(length.length) {
            Some(Err(error)) => {
                why = format!("memory of rank {peer}: {error}");
                None
            }
            region => region.and_then(Result::ok),
        });
    }
    (regions, why)
}

fn text<T>(outcome: &io::Result<T>) -> String {
    outcome.as_ref().err().map(io::Error::to_string).unwrap_or_default()
}

fn first_reason(reports: &[Report]) -> Option<String> {
    let (rank, report) = reports.iter().enumerate().find(|(_, report)| !report.error.is_empty())?;
    Some(format!("rank {rank}: {}", report.error))
}

/// What a rank tells all others in one stage.
#[derive(Default)]
struct Report {
    length: usize,
    /// By rank: whether they share memory, were sent to, were mapped.
    ranks: Vec<bool>,
    error: String,
}

impl Report {
    fn includes(&self, rank: usize) -> bool {
        self.ranks.get(rank).copied().unwrap_or(false)
    }

    fn encode(&self) -> Vec<u8> {
        let ranks = (0..self.ranks.len()).map(|rank| u8::from(self.includes(rank)));
        let count = self.ranks.len() as u64;
        let mut bytes = [(self.length as u64).to_le_bytes(), count.to_le_bytes()].concat();
        bytes.extend(ranks);
        bytes.extend_from_slice(self.error.as_bytes());
        bytes
    }

    /// Of untrusted bytes; what is missing counts as not shared.
    fn decode(bytes: &[u8], world: usize) -> Report {
        let word = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_le_bytes)
        };
        let rest = bytes.get(16..).unwrap_or_default();
        let (ranks, error) = rest.split_at(rest.len().min(word(8) as usize).min(world));
        Report {
            length: usize::try_from(word(0)).unwrap_or(usize::MAX),
            ranks: ranks.iter().map(|byte| *byte == 1).collect(),
            error: String::from_utf8_lossy(error).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_read_from_any_bytes() {
        let report = Report { length: 7, ranks: vec![true, false, true], error: "why".into() };
        let read = Report::decode(&report.encode(), 3);
        assert_eq!((read.length, &read.ranks[..], &read.error[..]), (7, &report.ranks[..], "why"));
        assert!(read.includes(2) && !read.includes(1) && !read.includes(3));
        for end in 0..16 {
            assert!(!Report::decode(&report.encode()[..end], 3).includes(0));
        }
        Report::decode(&[0xFF; 40], 3);
    }
}
