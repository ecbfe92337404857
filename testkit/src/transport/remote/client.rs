//! The suite's side: a pool of processes, and a transport that forwards every call to one of them.

use super::protocol::{FrameKey, Request, Response, receive, send};
use crate::transport::LONG_TIMEOUT;
use std::collections::HashSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thalweg_comm::transport::{
    Abort, Incoming, Interest, IoProgress, MatchMode, Outgoing, ProgressCounters, Tag, Traffic, Transport,
    TransportError, WaitState,
};

/// The connections to all processes; one group at a time.
pub struct ProcessPool {
    sockets: Vec<Arc<Mutex<UnixStream>>>,
    in_use: Mutex<bool>,
    released: Condvar,
}

impl ProcessPool {
    /// The processes behind these sockets, by rank.
    pub fn new(sockets: Vec<UnixStream>) -> ProcessPool {
        let sockets = sockets.into_iter().map(|socket| Arc::new(Mutex::new(socket))).collect();
        ProcessPool { sockets, in_use: Mutex::new(false), released: Condvar::new() }
    }

    /// Forms a group of the first `world` processes, once the previous group is dropped.
    pub fn connect(&'static self, world: usize) -> Vec<RemoteTransport> {
        let in_use = unpoisoned(self.in_use.lock());
        let (mut in_use, timeout) = self
            .released
            .wait_timeout_while(in_use, 10 * LONG_TIMEOUT, |in_use| *in_use)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the previous group was not dropped");
        *in_use = true;
        drop(in_use);
        let lease = Arc::new(Lease(self));
        let prepare =
            |socket: &Arc<Mutex<UnixStream>>| send(&unpoisoned(socket.lock()), &Request::Prepare(world));
        self.sockets.iter().try_for_each(prepare).expect("all processes run");
        let port = |socket: &Arc<Mutex<UnixStream>>| match receive(&unpoisoned(socket.lock())) {
            Ok(Response::Port(port)) => port,
            _ => panic!("a process is not ready"),
        };
        let ports: Vec<u16> = self.sockets.iter().map(port).collect();
        let connect = Request::Connect(ports[..world].to_vec());
        let members = &self.sockets[..world];
        members.iter().for_each(|socket| send(&unpoisoned(socket.lock()), &connect).expect("a process"));
        let remote = |(rank, socket): (usize, &Arc<Mutex<UnixStream>>)| RemoteTransport {
            rank,
            world,
            has_native_all_reduce: matches!(
                receive(&unpoisoned(socket.lock())),
                Ok(Response::Ready { has_native_all_reduce: true })
            ),
            socket: socket.clone(),
            abort: Abort::default(),
            counters: ProgressCounters::default(),
            sent: HashSet::new(),
            background: Default::default(),
            is_reducing: false,
            start: Instant::now(),
            _lease: lease.clone(),
        };
        members.iter().enumerate().map(remote).collect()
    }

    /// Inserts bytes into the stream from one rank to another.
    pub fn inject(&self, from: usize, to: usize, bytes: &[u8]) {
        request(&self.sockets[from], &Request::Inject(to, bytes.to_vec())).expect("room for a few bytes");
    }
}

/// Releases the pool when all ranks of a group are dropped.
struct Lease(&'static ProcessPool);

impl Drop for Lease {
    fn drop(&mut self) {
        *unpoisoned(self.0.in_use.lock()) = false;
        self.0.released.notify_all();
    }
}

type Locked<'a, T> = MutexGuard<'a, T>;

fn unpoisoned<'a, T>(lock: Result<Locked<'a, T>, PoisonError<Locked<'a, T>>>) -> Locked<'a, T> {
    lock.unwrap_or_else(PoisonError::into_inner)
}

fn request(socket: &Mutex<UnixStream>, request: &Request) -> io::Result<Response> {
    let socket = unpoisoned(socket.lock());
    send(&socket, request)?;
    receive(&socket)
}

/// A rank whose transport is in another process.
pub struct RemoteTransport {
    rank: usize,
    world: usize,
    has_native_all_reduce: bool,
    socket: Arc<Mutex<UnixStream>>,
    abort: Abort,
    counters: ProgressCounters,
    /// Frames in progress whose bytes the process already has.
    sent: HashSet<FrameKey>,
    /// What the process was told to wait for in the background.
    background: (Vec<(bool, bool)>, Vec<bool>),
    /// An all-reduce is in progress, whose input the process already has.
    is_reducing: bool,
    start: Instant,
    _lease: Arc<Lease>,
}

impl RemoteTransport {
    fn request(&self, message: &Request) -> Result<Response, TransportError> {
        match request(&self.socket, message) {
            Ok(Response::Failed(error)) => Err(error),
            Ok(response) => Ok(response),
            Err(error) => panic!("the process of rank {} has ended: {error}", self.rank),
        }
    }

    fn progress(&self, message: &Request) -> Result<(IoProgress, Vec<u8>), TransportError> {
        match self.request(message)? {
            Response::Progress(progress, bytes) => Ok((progress, bytes)),
            _ => panic!("an unexpected response of rank {}", self.rank),
        }
    }
}

impl Transport for RemoteTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn send(&mut self, tag: Tag, frame: Outgoing<'_>) -> Result<IoProgress, TransportError> {
        let key = (frame.to, tag.group, tag.operation, tag.tensor, frame.chunk, frame.bytes.len());
        let bytes = self.sent.insert(key).then(|| frame.bytes.to_vec());
        let (progress, _) = self.progress(&Request::Send(tag.generation, key, bytes))?;
        if progress == IoProgress::Complete {
            self.sent.remove(&key);
        }
        Ok(progress)
    }

    fn receive(
        &mut self,
        tag: Tag,
        frame: Incoming<'_>,
        mode: MatchMode,
    ) -> Result<IoProgress, TransportError> {
        let key = (frame.from, tag.group, tag.operation, tag.tensor, frame.chunk, frame.bytes.len());
        let message = Request::Receive(tag.generation, key, mode == MatchMode::AnyOperation);
        let (progress, bytes) = self.progress(&message)?;
        if progress == IoProgress::Complete {
            frame.bytes.copy_from_slice(&bytes);
        }
        Ok(progress)
    }

    fn wait(&mut self, wait: &mut WaitState, wanted: &[Interest], moved: bool) -> Result<(), TransportError> {
        let message = Request::Wait {
            fresh: wait.waited().is_zero(),
            remaining: wait.remaining(),
            wanted: flags(wanted),
            moved,
            aborted: self.abort.is_aborted(),
        };
        let response = self.request(&message);
        wait.tick(self.now());
        response.map(drop)
    }

    fn timeout_error(&self, _: &WaitState, pending: Vec<usize>) -> TransportError {
        match self.request(&Request::TimeoutError(pending)) {
            Err(error) => error,
            Ok(_) => panic!("an unexpected response of rank {}", self.rank),
        }
    }

    fn wake_peers(&mut self) {}

    fn set_background(&mut self, interests: &[Interest], unsent: &[bool]) {
        let background = (flags(interests), unsent.to_vec());
        if background != self.background {
            self.background.clone_from(&background);
            drop(self.request(&Request::Background(background.0, background.1)));
        }
    }

    fn is_held(&self, peer: usize) -> bool {
        // A broken transport blocks nothing.
        matches!(self.progress(&Request::IsHeld(peer)), Ok((IoProgress::Blocked, _)))
    }

    fn poll(&mut self, timeout: Duration) -> Result<(), TransportError> {
        self.request(&Request::Poll(timeout)).map(drop)
    }

    fn admit_groups(&mut self) {
        drop(self.request(&Request::AdmitGroups));
    }

    fn has_native_all_reduce(&self) -> bool {
        self.has_native_all_reduce
    }

    fn native_all_reduce(&mut self, tag: Tag, buffer: &mut [f32]) -> Result<IoProgress, TransportError> {
        let fresh = !std::mem::replace(&mut self.is_reducing, true);
        let input = fresh.then(|| buffer.to_vec());
        match self.request(&Request::NativeAllReduce(tag.generation, tag.operation, input))? {
            Response::Sum(sum) => {
                buffer.copy_from_slice(&sum);
                self.is_reducing = false;
                Ok(IoProgress::Complete)
            }
            Response::Progress(IoProgress::Partial, _) => Ok(IoProgress::Partial),
            _ => Ok(IoProgress::Blocked),
        }
    }

    fn traffic(&self) -> Traffic {
        match self.request(&Request::Traffic) {
            Ok(Response::Traffic([payload_sent, payload_received, total_sent, total_received])) => {
                Traffic { payload_sent, payload_received, total_sent, total_received }
            }
            _ => panic!("an unexpected response of rank {}", self.rank),
        }
    }

    fn abort_handle(&self) -> Abort {
        self.abort.clone()
    }

    fn progress_counters(&self) -> &ProgressCounters {
        &self.counters
    }

    fn close(&mut self) {
        drop(self.request(&Request::Close));
    }
}

fn flags(interests: &[Interest]) -> Vec<(bool, bool)> {
    interests.iter().map(|interest| (interest.read, interest.write)).collect()
}

impl Drop for RemoteTransport {
    fn drop(&mut self) {
        // A process that has ended has dropped everything.
        drop(request(&self.socket, &Request::Drop));
    }
}
