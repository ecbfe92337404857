//! Ranks that an MPI connects: its library carries the bytes, over whatever network the cluster has for it.
//!
//! Between two ranks bytes travel as MPI's messages ([`lane`]), and whole buffers can be added up by its own all-reduce
//! (`sum`). MPI tells nobody that a rank is gone, and its messages move on only while somebody calls the library. So every
//! lane has a sentinel beside it, a connection on which nothing travels but a farewell, and whose end is that of the rank;
//! and a frame counts as sent when the other rank has begun to take it, because afterwards this one may be computing.
//!
//! There is nothing to sleep on: who waits looks again and again, then offers its core between looks, then takes naps.

mod flight;
pub mod lane;
mod library;
mod sum;

pub use library::{Group, Library};

use self::lane::Lane;
use self::sum::Sums;
use super::Moved;
use super::links::{Link, Wires};
use super::polling::poll_peers;
use super::stream::Streamed;
use super::tcp::check_mesh;
use super::vigil::Interest;
use crate::wait::Patience;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The shortest and the longest time between two looks of a rank that takes naps.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// A transport over MPI's messages.
pub type Mpi = Streamed<Lanes>;

impl Mpi {
    /// This process's rank of the group, with a connection to each other rank as its sentinel; `neighbours` others are on
    /// this host. If it is given the library, it leaves that in good order when it leaves the group so, and else not.
    pub fn new(
        group: Group,
        sentinels: Vec<Option<TcpStream>>,
        neighbours: usize,
        library: Option<Library>,
    ) -> io::Result<Mpi> {
        let (rank, world) = (group.rank(), group.world());
        check_mesh(rank, &sentinels)?;
        if sentinels.len() != world {
            let what = format!("{} ranks have met, MPI has {world}", sentinels.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let lane = |(peer, stream): (usize, Option<TcpStream>)| {
            stream.map(|stream| Lane::new(group, peer, stream)).transpose()
        };
        let lanes = sentinels.into_iter().enumerate().map(lane).collect::<io::Result<_>>()?;
        let patience = Patience::in_memory(neighbours + 1);
        let sums = Sums::new(group);
        Ok(Streamed::over(rank, Lanes { lanes, sums, patience, nap: NAPS[0], library, orderly: false }))
    }

    /// Puts bytes on the way to a rank as if they were part of a frame, for tests.
    #[doc(hidden)]
    pub fn forge(&mut self, to: usize, bytes: &[u8]) -> io::Result<()> {
        let lane = self.wires_mut().lanes.get_mut(to).and_then(Option::as_mut);
        lane.map_or(Err(io::ErrorKind::NotConnected.into()), |lane| lane.write_all(bytes))
    }
}

/// The lanes of one rank.
pub struct Lanes {
    lanes: Vec<Option<Lane>>,
    sums: Sums,
    patience: Patience,
    nap: Duration,
    library: Option<Library>,
    /// The group was left in good order.
    orderly: bool,
}

impl Wires for Lanes {
    type Link = Lane;

    fn links(&mut self) -> &mut [Option<Lane>] {
        &mut self.lanes
    }

    fn wait(
        &mut self,
        _interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        std::thread::sleep(timeout.min(self.nap));
        self.nap = (self.nap * 2).min(NAPS[1]);
        let polled = |_, lane| Lane::sentinel(lane).polled(Interest::default());
        poll_peers(&self.lanes, watched, polled, None, Duration::ZERO, hung_up)
    }

    fn awake(&mut self) {
        self.nap = NAPS[0];
    }

    fn patience(&self) -> Patience {
        self.patience
    }

    fn adds_up(&self) -> bool {
        true
    }

    fn add_up(&mut self, buffer: &mut [f32]) -> io::Result<Moved> {
        self.sums.progress(buffer)
    }

    fn left(&mut self) {
        self.orderly = true;
    }
}

impl Drop for Lanes {
    /// Who ends without having left lets MPI's launcher see it: that ends the other ranks.
    fn drop(&mut self) {
        self.lanes.iter_mut().flatten().for_each(Link::finish);
        if let (Some(library), true) = (self.library.take(), self.orderly) {
            library.finalize();
        }
    }
}
