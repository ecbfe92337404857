//! Threads of one process.
//!
//! Every pair of ranks has a pipe in each direction. Frames pass through it as the bytes they would be on a
//! network, checksum and all, and are counted. A pipe is short, and a send is done only when the other rank has
//! taken its last byte: a schedule that secretly relies on a buffer hangs here, and a test finds it.
//! [`Links`] plays the saboteur: it kills and stops ranks, cuts links and puts alien bytes on them.

use super::links::{Link, Wires};
use super::stream::Streamed;
use super::vigil::Interest;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    let gates = (0..world).map(|_| Arc::default()).collect();
    let links = Links { pipes: Arc::new(pipes), gates, meter: Arc::default() };
    let rank = |rank: usize| {
        let link = |peer: usize| Duplex {
            incoming: links.pipes[peer][rank].clone(),
            outgoing: links.pipes[rank][peer].clone(),
            gate: links.gates[rank].clone(),
            meter: links.meter.clone(),
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
    gates: Vec<Arc<Gate>>,
    meter: Arc<Meter>,
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

    /// Lets a rank stand still where it next touches its pipes, its connections open, until [`Links::resume`].
    pub fn stop(&self, rank: usize) {
        self.gates[rank].shut.store(true, Ordering::Release);
    }

    /// Lets a stopped rank go on.
    pub fn resume(&self, rank: usize) {
        let gate = &self.gates[rank];
        let guard = unpoisoned(gate.lock.lock());
        gate.shut.store(false, Ordering::Release);
        drop(guard);
        gate.opened.notify_all();
    }

    /// Bytes that ranks have sent so far, all together: by it a moment of a run can be named.
    pub fn carried(&self) -> u64 {
        self.meter.carried.load(Ordering::Relaxed)
    }

    /// Lets no rank send more once so many bytes were sent; to strike at that moment, for tests.
    #[doc(hidden)]
    pub fn hold_at(&self, bytes: u64) {
        self.meter.held_below.store(u64::MAX - bytes, Ordering::Relaxed);
        self.pipes.iter().flatten().for_each(|pipe| pipe.ring());
    }

    /// Puts bytes on the way from one rank to another as if they had been sent.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        let pipe = &self.pipes[from][to];
        let mut flow = pipe.lock();
        flow.bytes.extend(bytes);
        flow.forged += bytes.len();
        drop(flow);
        pipe.ring();
    }
}

/// What a group has sent so far, and where it is held.
#[derive(Default)]
struct Meter {
    carried: AtomicU64,
    /// How far below the largest number the limit is: nothing is held at first.
    held_below: AtomicU64,
}

impl Meter {
    fn is_held(&self) -> bool {
        self.carried.load(Ordering::Relaxed) >= u64::MAX - self.held_below.load(Ordering::Relaxed)
    }
}

/// Where a stopped rank stands.
#[derive(Default)]
struct Gate {
    shut: AtomicBool,
    lock: Mutex<()>,
    opened: Condvar,
}

impl Gate {
    /// Returns at once if it is open.
    fn pass(&self) {
        if self.shut.load(Ordering::Acquire) {
            let guard = unpoisoned(self.lock.lock());
            drop(self.opened.wait_while(guard, |_| self.shut.load(Ordering::Acquire)));
        }
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
    /// How many of them stand at the end without having been sent: nobody waits until they are read.
    forged: usize,
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
    gate: Arc<Gate>,
    meter: Arc<Meter>,
}

impl Read for Duplex {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.gate.pass();
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
        self.gate.pass();
        let mut flow = self.outgoing.lock();
        if flow.closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(CAPACITY.saturating_sub(flow.bytes.len()));
        if count == 0 || self.meter.is_held() {
            return Err(ErrorKind::WouldBlock.into());
        }
        flow.bytes.extend(&bytes[..count]);
        flow.forged = 0;
        drop(flow);
        self.meter.carried.fetch_add(count as u64, Ordering::Relaxed);
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
        let flow = self.outgoing.lock();
        flow.bytes.len() <= flow.forged
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
        self.links.gates[self.rank].pass();
        self.bells[self.rank].wait(self.heard, timeout);
        for (peer, stream) in self.streams.iter().enumerate() {
            if watched[peer] && stream.as_ref().is_some_and(|stream| stream.incoming.lock().closed) {
                hung_up.push(peer);
            }
        }
        Ok(())
    }

    fn nudge(&mut self) {
        let others = self.bells.iter().enumerate().filter(|(peer, _)| *peer != self.rank);
        others.for_each(|(_, bell)| bell.ring());
    }
}
