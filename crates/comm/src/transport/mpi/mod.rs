//! Ranks of an MPI job: the MPI library carries the bytes, over whatever network it is configured for.
//!
//! Between two ranks bytes travel as MPI messages ([`link`]), and whole buffers can be reduced by MPI's own
//! all-reduce. MPI does not report the death of a rank, and its messages progress only inside library calls. So every
//! link has a sentinel: a TCP connection that carries only the close frame, and whose end is the end of the rank. And
//! a frame counts as sent when the peer has begun to receive it, because afterwards this rank may be computing.
//!
//! MPI has no descriptor to sleep on: a waiting rank polls, then yields its core between polls, then sleeps in
//! between.

mod all_reduce;
mod library;
pub mod link;
mod request;

pub use library::{Library, MpiCommunicator};

use self::all_reduce::NativeAllReduce;
use self::link::MpiLink;
use super::IoProgress;
use super::link::{Link, LinkSet};
use super::polling::poll_peers;
use super::stream::StreamTransport;
use super::tcp::check_mesh;
use super::wait_state::Interest;
use crate::wait::SpinPolicy;
use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The shortest and the longest sleep between two polls.
const SLEEPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// A transport over MPI messages.
pub type Mpi = StreamTransport<MpiLinks>;

impl Mpi {
    /// This process's rank of the group, with a connection to each other rank as its sentinel and `local_peers` other
    /// ranks on this host. If it owns the library, it finalizes it after [`close`](super::Transport::close), and only
    /// then.
    pub fn new(
        group: MpiCommunicator,
        sentinels: Vec<Option<TcpStream>>,
        local_peers: usize,
        library: Option<Library>,
    ) -> io::Result<Mpi> {
        let (rank, world) = (group.rank(), group.world());
        check_mesh(rank, &sentinels)?;
        if sentinels.len() != world {
            let what = format!("{} ranks are connected, MPI has {world}", sentinels.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let link = |(peer, stream): (usize, Option<TcpStream>)| {
            stream.map(|stream| MpiLink::new(group, peer, stream)).transpose()
        };
        let links = sentinels.into_iter().enumerate().map(link).collect::<io::Result<_>>()?;
        let spin_policy = SpinPolicy::for_shared_memory(local_peers + 1);
        let all_reduce = NativeAllReduce::new(group);
        let links =
            MpiLinks { links, all_reduce, spin_policy, next_sleep: SLEEPS[0], library, closed: false };
        Ok(StreamTransport::over(rank, links))
    }

    /// Writes bytes to the stream to a rank, for tests.
    #[doc(hidden)]
    pub fn inject_bytes(&mut self, to: usize, bytes: &[u8]) -> io::Result<()> {
        let link = self.link_set_mut().links.get_mut(to).and_then(Option::as_mut);
        link.map_or(Err(io::ErrorKind::NotConnected.into()), |link| link.write_all(bytes))
    }
}

/// The links of one rank.
pub struct MpiLinks {
    links: Vec<Option<MpiLink>>,
    all_reduce: NativeAllReduce,
    spin_policy: SpinPolicy,
    next_sleep: Duration,
    library: Option<Library>,
    /// The group was left in good order.
    closed: bool,
}

impl LinkSet for MpiLinks {
    type Link = MpiLink;

    fn links(&mut self) -> &mut [Option<MpiLink>] {
        &mut self.links
    }

    fn wait(
        &mut self,
        _interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        std::thread::sleep(timeout.min(self.next_sleep));
        self.next_sleep = (self.next_sleep * 2).min(SLEEPS[1]);
        let poll_fd = |_, link| MpiLink::sentinel(link).poll_fd(Interest::default());
        poll_peers(&self.links, watched, poll_fd, None, Duration::ZERO, hung_up)
    }

    fn on_progress(&mut self) {
        self.next_sleep = SLEEPS[0];
    }

    fn spin_policy(&self) -> SpinPolicy {
        self.spin_policy
    }

    fn has_native_all_reduce(&self) -> bool {
        true
    }

    fn native_all_reduce(&mut self, buffer: &mut [f32]) -> io::Result<IoProgress> {
        self.all_reduce.progress(buffer)
    }

    fn on_close(&mut self) {
        self.closed = true;
    }
}

impl Drop for MpiLinks {
    /// Without a close the library is not finalized: MPI's launcher notices and ends the other ranks.
    fn drop(&mut self) {
        self.links.iter_mut().flatten().for_each(Link::shutdown_write);
        if let (Some(library), true) = (self.library.take(), self.closed) {
            library.finalize();
        }
    }
}
