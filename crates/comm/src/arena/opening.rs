//! How the memory of the commons is made, handed round and taken.

use crate::host::{Neighbours, Segment, Writers, check_room};
use crate::linux::WORDS;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Where the elements of a segment begin; before them is what a rank says of itself.
const ELEMENTS: usize = WORDS;

/// How long open files may take to arrive that were handed over before.
const PASSING: Duration = Duration::from_secs(5);

/// Elements of an arena and of all columns together.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) arena: usize,
    pub(super) shared: usize,
}

impl Sizes {
    /// Bytes of a segment with so many elements: also where the element of that number begins.
    pub(super) fn bytes(elements: usize) -> usize {
        ELEMENTS + 4 * elements
    }

    /// Whether so many ranks can have their arenas, and the columns, on this machine. To be asked before any of them
    /// makes one.
    pub(super) fn check_room(self, world: usize) -> io::Result<()> {
        let (arena, shared) = (Sizes::bytes(self.arena), Sizes::bytes(self.shared));
        check_room(arena.max(shared), arena.saturating_mul(world).saturating_add(shared))
    }
}

/// A rank's arena and, on the first, the columns.
pub(super) type Made = (Segment, Option<Segment>);

/// Makes this rank's arena, and on the first rank the columns, and hands them to all the others.
pub(super) fn offer(neighbours: &Neighbours, rank: usize, world: usize, sizes: Sizes) -> io::Result<Made> {
    let (arena, arena_file) = Segment::create(Sizes::bytes(sizes.arena), Writers::Owner)?;
    let mut files: Vec<OwnedFd> = vec![arena_file];
    let mut shared = None;
    if rank == 0 {
        let (segment, file) = Segment::create(Sizes::bytes(sizes.shared), Writers::All)?;
        shared = Some(segment);
        files.push(file);
    }
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let to = |peer: usize| {
        neighbours.get(peer).and_then(Option::as_ref).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotConnected, format!("rank {peer} is on another host"))
        })
    };
    let others = || (0..world).filter(|&peer| peer != rank);
    others().try_for_each(|peer| to(peer).map(drop))?;
    others().try_for_each(|peer| to(peer)?.hand(&files))?;
    Ok((arena, shared))
}

/// Takes what all who could make theirs have handed over, also if it will not be used: nothing must be left on the way.
pub(super) fn attach(
    neighbours: &Neighbours,
    offered: io::Result<Made>,
    made: &[Vec<u8>],
    rank: usize,
    sizes: Sizes,
) -> io::Result<(Vec<Segment>, Segment)> {
    let mut taken = Vec::new();
    for (peer, words) in made.iter().enumerate() {
        if let (Some(Some(neighbour)), true) = (neighbours.get(peer), words.is_empty()) {
            taken.push((peer, neighbour.take(if peer == 0 { 2 } else { 1 }, PASSING)?));
        }
    }
    let (arena, mut shared) = offered?;
    let mut mine = Some(arena);
    let mut arenas = Vec::new();
    let mut taken = taken.into_iter().peekable();
    for peer in 0..made.len() {
        if peer == rank {
            arenas.extend(mine.take());
            continue;
        }
        let Some((_, files)) = taken.next_if(|(from, _)| *from == peer) else {
            return Err(io::Error::other(format!("rank {peer} has none")));
        };
        arenas.push(Segment::attach(&files[0], Sizes::bytes(sizes.arena), Writers::Owner)?);
        if let Some(columns) = files.get(1) {
            shared = Some(Segment::attach(columns, Sizes::bytes(sizes.shared), Writers::All)?);
        }
    }
    Ok((arenas, shared.ok_or_else(|| io::Error::other("rank 0 has none"))?))
}
