//! Threads of one process.
//!
//! Every pair of ranks has a pipe in each direction. Frames pass through it as the bytes they would be on a
//! network, checksum and all, and are counted. A pipe is short, and a send is done only when the other rank has
//! taken its last byte: a schedule that secretly relies on a buffer hangs here, and a test finds it.
//! [`Links`] plays the saboteur: it kills ranks, cuts links and puts alien bytes on them.

use super::stream::{Link, Streamed, Wires};
use super::vigil::Interest;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A transport between threads.
pub type Mem = Streamed<Pipes>;

/// Bytes that fit into a pipe. More than a header, less than any tensor worth distributing.
const CAPACITY: usize = 64 << 10;

/// A group of `world` ranks, connected to each other; hand one to each thread.
pub fn mesh(world: usize) -> Vec<Mem> {
    let bells: Vec<Arc<Bell>> = (0..world).map(|_| Arc::default()).collect();
    let pipe = |from: usize, to: usize| {
        Arc::new(Pipe { state: Mutex::default(), ends: [bells[from].clone(), bells[to].clone()] })
    };
    let pipes: Vec<Vec<Arc<Pipe>>> =
        (0..world).map(|from| (0..world).map(|to| pipe(from, to)).collect()).collect();
    let links = Links { pipes: Arc::new(pipes) };
    let rank = |rank: usize| {
        let link = |peer: usize| Duplex {
            incoming: links.pipes[peer][rank].clone(),
            outgoing: links.pipes[rank][peer].clone(),
        };
        let streams = (0..world).map(|peer| (peer != rank).then(|| link(peer))).collect();
        let pipes = Pipes { streams, bells: bells.clone(), rank, heard: 0, links: links.clone() };
        Streamed::over(rank, pipes)
    };
    (0..world).map(rank).collect()
}

impl Mem {
    /// The handle that breaks things.
    pub fn links(&self) -> Links {
        self.wires().links.clone()
    }
}

/// Breaks the connections of an in-memory group.
#[derive(Clone)]
pub struct Links {
    pipes: Arc<Vec<Vec<Arc<Pipe>>>>,
}

impl Links {
    /// Ends both directions between two ranks at once.
    pub fn cut(&self, one: usize, other: usize) {
        self.pipes[one][other].close();
        self.pipes[other][one].close();
    }

    /// Ends all connections of a rank, as its death would.
    pub fn kill(&self, rank: usize) {
        for peer in (0..self.pipes.len()).filter(|&peer| peer != rank) {
            self.cut(rank, peer);
        }
    }

    /// Puts bytes on the way from one rank to another as if they had been sent.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        let pipe = &self.pipes[from][to];
        pipe.lock().bytes.extend(bytes);
        pipe.ring();
    }
}

/// Wakes one rank: a count of what happened to its pipes.
#[derive(Default)]
struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *unpoisoned(self.rung.lock()) += 1;
        self.changed.notify_all();
    }

    fn count(&self) -> u64 {
        *unpoisoned(self.rung.lock())
    }

    /// Returns when the count has passed `heard`, or after `timeout`.
    fn wait(&self, heard: u64, timeout: Duration) {
        let guard = unpoisoned(self.rung.lock());
        let waited = self.changed.wait_timeout_while(guard, timeout, |rung| *rung == heard);
        drop(waited);
    }
}

/// Bytes on their way from one rank to another.
struct Pipe {
    state: Mutex<Flow>,
    ends: [Arc<Bell>; 2],
}

#[derive(Default)]
struct Flow {
    bytes: VecDeque<u8>,
    closed: bool,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, Flow> {
        unpoisoned(self.state.lock())
    }

    fn ring(&self) {
        self.ends.iter().for_each(|bell| bell.ring());
    }

    fn close(&self) {
        self.lock().closed = true;
        self.ring();
    }
}

/// A thread that panicked holds nothing half-changed here: every change under a lock is complete in itself.
fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// The two pipes between this rank and another.
pub struct Duplex {
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
}

impl Read for Duplex {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut flow = self.incoming.lock();
        if flow.bytes.is_empty() {
            return if flow.closed { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let count = flow.bytes.read(buffer)?;
        drop(flow);
        self.incoming.ring();
        Ok(count)
    }
}

impl Write for Duplex {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut flow = self.outgoing.lock();
        if flow.closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(CAPACITY.saturating_sub(flow.bytes.len()));
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        flow.bytes.extend(&bytes[..count]);
        drop(flow);
        self.outgoing.ring();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Duplex {
    fn last_words(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.incoming.lock().bytes.iter().copied().collect())
    }

    fn is_drained(&mut self) -> bool {
        self.outgoing.lock().bytes.is_empty()
    }

    fn finish(&mut self) {
        self.outgoing.close();
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        self.outgoing.close();
        self.incoming.close();
    }
}

/// The pipes of one rank.
pub struct Pipes {
    streams: Vec<Option<Duplex>>,
    bells: Vec<Arc<Bell>>,
    rank: usize,
    heard: u64,
    links: Links,
}

impl Wires for Pipes {
    type Link = Duplex;

    fn links(&mut self) -> &mut [Option<Duplex>] {
        &mut self.streams
    }

    fn mark(&mut self) {
        self.heard = self.bells[self.rank].count();
    }

    fn wait(
        &mut self,
        _interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        self.bells[self.rank].wait(self.heard, timeout);
        for (peer, stream) in self.streams.iter().enumerate() {
            if watched[peer] && stream.as_ref().is_some_and(|stream| stream.incoming.lock().closed) {
                hung_up.push(peer);
            }
        }
        Ok(())
    }

    fn nudge(&mut self, peer: usize) {
        self.bells[peer].ring();
    }
}
