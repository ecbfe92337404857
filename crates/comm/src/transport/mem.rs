//! Threads of one process.
//!
//! Every pair of ranks has a pipe in each direction. Frames pass through it as the same bytes as on a network,
//! checksum included, and are counted. A pipe is short, and a send is complete only when the peer has read its last
//! byte: a schedule that relies on buffering hangs here, and a test finds it. [`LinkControl`] injects faults: it
//! kills and stops ranks, cuts links and inserts bytes.

use super::link::{Link, LinkSet};
use super::stream::StreamTransport;
use super::wait_state::Interest;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A transport between threads.
pub type Mem = StreamTransport<MemLinks>;

/// Bytes that fit into a pipe: more than a header, less than any tensor worth distributing.
const CAPACITY: usize = 64 << 10;

/// A fully connected group of `world` ranks, one for each thread.
pub fn mesh(world: usize) -> Vec<Mem> {
    let wakeups: Vec<Arc<Wakeups>> = (0..world).map(|_| Arc::default()).collect();
    let pipe = |from: usize, to: usize| {
        Arc::new(Pipe { state: Mutex::default(), ends: [wakeups[from].clone(), wakeups[to].clone()] })
    };
    let pipes: Vec<Vec<Arc<Pipe>>> =
        (0..world).map(|from| (0..world).map(|to| pipe(from, to)).collect()).collect();
    let gates = (0..world).map(|_| Arc::default()).collect();
    let control = LinkControl { pipes: Arc::new(pipes), gates, meter: Arc::default() };
    let rank = |rank: usize| {
        let link = |peer: usize| MemLink {
            incoming: control.pipes[peer][rank].clone(),
            outgoing: control.pipes[rank][peer].clone(),
            gate: control.gates[rank].clone(),
            meter: control.meter.clone(),
        };
        let links = (0..world).map(|peer| (peer != rank).then(|| link(peer))).collect();
        let wakeups = wakeups.clone();
        StreamTransport::over(rank, MemLinks { links, wakeups, rank, seen: 0, control: control.clone() })
    };
    (0..world).map(rank).collect()
}

impl Mem {
    pub fn link_control(&self) -> LinkControl {
        self.link_set().control.clone()
    }
}

/// Injects faults into the connections of an in-memory group.
#[derive(Clone)]
pub struct LinkControl {
    pipes: Arc<Vec<Vec<Arc<Pipe>>>>,
    gates: Vec<Arc<StopGate>>,
    meter: Arc<SendMeter>,
}

impl LinkControl {
    /// Closes both directions between two ranks.
    pub fn cut(&self, one: usize, other: usize) {
        self.pipes[one][other].close();
        self.pipes[other][one].close();
    }

    /// Closes all connections of a rank, as its death would.
    pub fn kill(&self, rank: usize) {
        for peer in (0..self.pipes.len()).filter(|&peer| peer != rank) {
            self.cut(rank, peer);
        }
    }

    /// Stops a rank at its next access to its pipes, with its connections open, until [`LinkControl::resume`].
    pub fn stop(&self, rank: usize) {
        self.gates[rank].stopped.store(true, Ordering::Release);
    }

    pub fn resume(&self, rank: usize) {
        let gate = &self.gates[rank];
        let guard = unpoisoned(gate.lock.lock());
        gate.stopped.store(false, Ordering::Release);
        drop(guard);
        gate.resumed.notify_all();
    }

    /// Bytes that all ranks have sent so far; tests use it to time faults.
    pub fn bytes_sent(&self) -> u64 {
        self.meter.sent.load(Ordering::Relaxed)
    }

    /// Blocks all sends once this many bytes were sent, to inject a fault at that moment; for tests.
    #[doc(hidden)]
    pub fn block_sends_at(&self, bytes: u64) {
        self.meter.limit_complement.store(u64::MAX - bytes, Ordering::Relaxed);
        self.pipes.iter().flatten().for_each(|pipe| pipe.wake_ends());
    }

    /// Inserts bytes into the stream from one rank to another.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        let pipe = &self.pipes[from][to];
        let mut pipe_state = pipe.lock();
        pipe_state.bytes.extend(bytes);
        pipe_state.injected += bytes.len();
        drop(pipe_state);
        pipe.wake_ends();
    }
}

/// Bytes that a group has sent, and its limit.
#[derive(Default)]
struct SendMeter {
    sent: AtomicU64,
    /// `u64::MAX` minus the limit, so that the default is no limit.
    limit_complement: AtomicU64,
}

impl SendMeter {
    fn is_at_limit(&self) -> bool {
        self.sent.load(Ordering::Relaxed) >= u64::MAX - self.limit_complement.load(Ordering::Relaxed)
    }
}

/// Blocks the thread of a stopped rank.
#[derive(Default)]
struct StopGate {
    stopped: AtomicBool,
    lock: Mutex<()>,
    resumed: Condvar,
}

impl StopGate {
    fn pass(&self) {
        if self.stopped.load(Ordering::Acquire) {
            let guard = unpoisoned(self.lock.lock());
            drop(self.resumed.wait_while(guard, |_| self.stopped.load(Ordering::Acquire)));
        }
    }
}

/// Wakes one rank: counts the changes of its pipes.
#[derive(Default)]
struct Wakeups {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Wakeups {
    fn wake(&self) {
        *unpoisoned(self.count.lock()) += 1;
        self.changed.notify_all();
    }

    fn count(&self) -> u64 {
        *unpoisoned(self.count.lock())
    }

    /// Returns when the count is no longer `seen`, or after `timeout`.
    fn wait(&self, seen: u64, timeout: Duration) {
        let guard = unpoisoned(self.count.lock());
        let waited = self.changed.wait_timeout_while(guard, timeout, |count| *count == seen);
        drop(waited);
    }
}

/// A byte stream from one rank to another.
struct Pipe {
    state: Mutex<PipeState>,
    ends: [Arc<Wakeups>; 2],
}

#[derive(Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    closed: bool,
    /// Injected bytes at the end of `bytes`: no send waits until they are read.
    injected: usize,
}

impl Pipe {
    fn lock(&self) -> MutexGuard<'_, PipeState> {
        unpoisoned(self.state.lock())
    }

    fn wake_ends(&self) {
        self.ends.iter().for_each(|end| end.wake());
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake_ends();
    }
}

/// A panic of another thread leaves no inconsistent state here: every change under a lock is complete in itself.
fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// The two pipes between this rank and a peer.
pub struct MemLink {
    incoming: Arc<Pipe>,
    outgoing: Arc<Pipe>,
    gate: Arc<StopGate>,
    meter: Arc<SendMeter>,
}

impl Read for MemLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.gate.pass();
        let mut pipe = self.incoming.lock();
        if pipe.bytes.is_empty() {
            return if pipe.closed { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let count = pipe.bytes.read(buffer)?;
        drop(pipe);
        self.incoming.wake_ends();
        Ok(count)
    }
}

impl Write for MemLink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gate.pass();
        let mut pipe = self.outgoing.lock();
        if pipe.closed {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(CAPACITY.saturating_sub(pipe.bytes.len()));
        if count == 0 || self.meter.is_at_limit() {
            return Err(ErrorKind::WouldBlock.into());
        }
        pipe.bytes.extend(&bytes[..count]);
        pipe.injected = 0;
        drop(pipe);
        self.meter.sent.fetch_add(count as u64, Ordering::Relaxed);
        self.outgoing.wake_ends();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for MemLink {
    fn unread(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.incoming.lock().bytes.iter().copied().collect())
    }

    fn is_drained(&mut self) -> bool {
        let pipe = self.outgoing.lock();
        pipe.bytes.len() <= pipe.injected
    }

    fn shutdown_write(&mut self) {
        self.outgoing.close();
    }
}

impl Drop for MemLink {
    fn drop(&mut self) {
        self.outgoing.close();
        self.incoming.close();
    }
}

/// The links of one rank.
pub struct MemLinks {
    links: Vec<Option<MemLink>>,
    wakeups: Vec<Arc<Wakeups>>,
    rank: usize,
    /// Count of this rank's wakeups at the last [`LinkSet::mark`].
    seen: u64,
    control: LinkControl,
}

impl LinkSet for MemLinks {
    type Link = MemLink;

    fn links(&mut self) -> &mut [Option<MemLink>] {
        &mut self.links
    }

    fn mark(&mut self) {
        self.seen = self.wakeups[self.rank].count();
    }

    fn wait(
        &mut self,
        _interests: &[Interest],
        watched: &[bool],
        timeout: Duration,
        hung_up: &mut Vec<usize>,
    ) -> io::Result<()> {
        self.control.gates[self.rank].pass();
        self.wakeups[self.rank].wait(self.seen, timeout);
        for (peer, link) in self.links.iter().enumerate() {
            if watched[peer] && link.as_ref().is_some_and(|link| link.incoming.lock().closed) {
                hung_up.push(peer);
            }
        }
        Ok(())
    }

    fn wake_peers(&mut self) {
        let others = self.wakeups.iter().enumerate().filter(|(peer, _)| *peer != self.rank);
        others.for_each(|(_, wakeups)| wakeups.wake());
    }
}
