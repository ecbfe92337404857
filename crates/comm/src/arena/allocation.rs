//! Allocates the segments of a shared arena and passes their file descriptors to the other ranks.

use crate::host::{LocalPeers, Segment, Writers, check_room};
use crate::linux::COUNTER_BYTES;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Offset of the elements in a segment, behind the words of the [barrier](super::barrier).
const ELEMENTS: usize = COUNTER_BYTES;

/// Timeout for descriptors that have been sent already.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// In elements: of one arena, and of all columns together.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) arena: usize,
    pub(super) columns: usize,
}

impl Sizes {
    /// Bytes of a segment with that many elements, which is also the offset of the element with that index.
    pub(super) fn bytes(elements: usize) -> usize {
        ELEMENTS + 4 * elements
    }

    /// Checks that the arenas of `world` ranks and the columns fit into this machine's memory. All ranks check before any
    /// allocates.
    pub(super) fn check_room(self, world: usize) -> io::Result<()> {
        let (arena, columns) = (Sizes::bytes(self.arena), Sizes::bytes(self.columns));
        check_room(arena.max(columns), arena.saturating_mul(world).saturating_add(columns))
    }
}

/// A rank's arena and, on rank 0, the columns.
pub(super) type OwnSegments = (Segment, Option<Segment>);

/// Allocates this rank's arena, and on rank 0 the columns, and sends their descriptors to all other ranks.
pub(super) fn allocate(
    peers: &LocalPeers,
    rank: usize,
    world: usize,
    sizes: Sizes,
) -> io::Result<OwnSegments> {
    let (arena, arena_file) = Segment::create(Sizes::bytes(sizes.arena), Writers::Owner)?;
    let mut files: Vec<OwnedFd> = vec![arena_file];
    let mut columns = None;
    if rank == 0 {
        let (segment, file) = Segment::create(Sizes::bytes(sizes.columns), Writers::All)?;
        columns = Some(segment);
        files.push(file);
    }
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let to = |peer: usize| {
        peers.get(peer).and_then(Option::as_ref).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotConnected, format!("rank {peer} is on another host"))
        })
    };
    let others = || (0..world).filter(|&peer| peer != rank);
    others().try_for_each(|peer| to(peer).map(drop))?;
    others().try_for_each(|peer| to(peer)?.send_fds(&files))?;
    Ok((arena, columns))
}

/// Receives the descriptors of all ranks whose allocation succeeded, even if this rank's failed: none may be left in the
/// sockets. `errors[r]` is empty if rank r succeeded.
pub(super) fn attach(
    peers: &LocalPeers,
    own: io::Result<OwnSegments>,
    errors: &[Vec<u8>],
    rank: usize,
    sizes: Sizes,
) -> io::Result<(Vec<Segment>, Segment)> {
    let mut received = Vec::new();
    for (peer, error) in errors.iter().enumerate() {
        if let (Some(Some(local)), true) = (peers.get(peer), error.is_empty()) {
            received.push((peer, local.receive_fds(if peer == 0 { 2 } else { 1 }, RECEIVE_TIMEOUT)?));
        }
    }
    let (arena, mut columns) = own?;
    let mut mine = Some(arena);
    let mut arenas = Vec::new();
    let mut received = received.into_iter().peekable();
    for peer in 0..errors.len() {
        if peer == rank {
            arenas.extend(mine.take());
            continue;
        }
        let Some((_, files)) = received.next_if(|(from, _)| *from == peer) else {
            return Err(io::Error::other(format!("rank {peer} has no arena")));
        };
        arenas.push(Segment::attach(&files[0], Sizes::bytes(sizes.arena), Writers::Owner)?);
        if let Some(file) = files.get(1) {
            columns = Some(Segment::attach(file, Sizes::bytes(sizes.columns), Writers::All)?);
        }
    }
    Ok((arenas, columns.ok_or_else(|| io::Error::other("rank 0 has no columns"))?))
}
