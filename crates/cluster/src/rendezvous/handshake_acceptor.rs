//! Accepts connections and authenticates them, for both listeners: rank 0's for control and each rank's for data.
//!
//! Each connection runs its handshake in a thread of its own, with one deadline. The number of pending handshakes is
//! limited: at the limit a new connection replaces the oldest unauthenticated one. So foreign clients, slow or many,
//! cost a limited number of threads and a few hundred bytes each, and cannot keep a rank out.

use super::handshake::{Purpose, Side, handshake};
use super::message::receive;
use super::timed::{HANDSHAKE_TIMEOUT, Timed};
use crate::resource_limits;
use serde::de::DeserializeOwned;
use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thalweg_core::Result;

/// Largest number of pending handshakes; further connections wait in the kernel's queue.
const MAX_PENDING: usize = 64;

/// A handshake is not replaced before this time, in which a rank completes it even over a slow link.
const GRACE: Duration = Duration::from_millis(250);

/// Largest number of queued refusals; further ones are dropped.
const MAX_REFUSALS: usize = 16;

/// The address of a caller that failed to authenticate, and the reason.
pub type Refusal = (IpAddr, String);

/// A shortage of files, memory or threads is an error after this time.
const SHORTAGE_LIMIT: Duration = Duration::from_millis(500);

/// Accepts connections and yields the authenticated ones, each with its first message.
pub struct HandshakeAcceptor<T> {
    purpose: Purpose,
    token: Vec<u8>,
    pending: Vec<PendingHandshake>,
    /// Since when a resource has been missing.
    short_since: Option<Instant>,
    sender: Sender<(T, TcpStream)>,
    receiver: Receiver<(T, TcpStream)>,
    refusals: (SyncSender<Refusal>, Receiver<Refusal>),
}

struct PendingHandshake {
    since: Instant,
    /// Set by the thread when the caller is authenticated, or by the acceptor when it drops the connection.
    decided: Arc<AtomicBool>,
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl<T: DeserializeOwned + Send + 'static> HandshakeAcceptor<T> {
    /// Accepts callers with this purpose and token; with an empty token, none.
    pub fn new(purpose: Purpose, token: &[u8]) -> HandshakeAcceptor<T> {
        let ((sender, receiver), refusals) = (channel(), sync_channel(MAX_REFUSALS));
        HandshakeAcceptor {
            purpose,
            token: token.to_vec(),
            pending: Vec::new(),
            short_since: None,
            sender,
            receiver,
            refusals,
        }
    }

    /// Starts handshakes with the connections waiting at a nonblocking listener. Fails if this process has been short
    /// of a resource for `SHORTAGE_LIMIT` with no handshake pending, so that pending ones are not the reason.
    pub fn accept(&mut self, listener: &TcpListener) -> Result<()> {
        match self.accept_waiting(listener) {
            // A shortage of long ago is over, though no connection has arrived since.
            Ok(0) if self.short_since.is_none_or(|since| since.elapsed() < 20 * SHORTAGE_LIMIT) => Ok(()),
            Ok(_) => {
                self.short_since = None;
                Ok(())
            }
            Err(error) => {
                let since = *self.short_since.get_or_insert_with(Instant::now);
                let over = self.pending.is_empty() && since.elapsed() >= SHORTAGE_LIMIT;
                if over { Err(error) } else { Ok(()) }
            }
        }
    }

    /// Starts the handshakes of waiting connections and returns their number. The error names a missing resource: that
    /// connection is closed, and its caller may retry.
    fn accept_waiting(&mut self, listener: &TcpListener) -> Result<usize> {
        const WHAT: &str = "cannot accept connections";
        let short = |error: &io::Error| resource_limits::explain(WHAT, error);
        for count in 0..MAX_PENDING {
            self.pending.retain(|handshake| !handshake.thread.is_finished());
            let full = self.pending.len() >= MAX_PENDING;
            let oldest = self.oldest_unauthenticated();
            if full && oldest.is_none() {
                return Ok(count);
            }
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => return short(&error).map_or(Ok(count), Err),
            };
            if self.token.is_empty() {
                continue;
            }
            if let (true, Some(index)) = (full, oldest) {
                self.replace(index);
            }
            match self.start(stream) {
                Ok(handshake) => self.pending.push(handshake),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(resource_limits::explain_thread(WHAT));
                }
                Err(error) => return short(&error).map_or(Ok(count), Err),
            }
        }
        Ok(MAX_PENDING)
    }

    /// The next authenticated connection; None after `timeout`.
    pub fn next(&self, timeout: Duration) -> Option<(T, TcpStream)> {
        self.receiver.recv_timeout(timeout).ok()
    }

    /// The next caller refused for a wrong token or another protocol, if any.
    pub fn next_refusal(&self) -> Option<Refusal> {
        self.refusals.1.try_recv().ok()
    }

    fn oldest_unauthenticated(&self) -> Option<usize> {
        let old = |handshake: &PendingHandshake| {
            !handshake.decided.load(Ordering::Acquire) && handshake.since.elapsed() >= GRACE
        };
        self.pending.iter().position(old)
    }

    /// Ends a handshake, unless it completed at the last moment.
    fn replace(&mut self, index: usize) {
        if self.pending[index].close() {
            // The closed connection wakes its thread, which exits: threads are limited as well.
            let _ = self.pending.remove(index).thread.join();
        }
    }

    fn start(&self, stream: TcpStream) -> io::Result<PendingHandshake> {
        stream.set_nonblocking(false)?;
        let (ours, decided) = (stream.try_clone()?, Arc::new(AtomicBool::new(false)));
        let (sender, token, purpose) = (self.sender.clone(), self.token.clone(), self.purpose);
        let (authenticated, refusals) = (Arc::clone(&decided), self.refusals.0.clone());
        let thread = std::thread::Builder::new().name("handshake".into()).spawn(move || {
            match first_message(&stream, purpose, &token, &authenticated) {
                // Fails only when the acceptor was dropped.
                Ok(message) => drop(sender.send((message, stream))),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let from = stream.peer_addr().map(|address| address.ip().to_canonical());
                    let _ = from.map(|from| refusals.try_send((from, error.to_string())));
                }
                Err(_) => {}
            }
        })?;
        Ok(PendingHandshake { since: Instant::now(), decided, stream: ours, thread })
    }
}

impl PendingHandshake {
    /// Closes an unauthenticated connection; false if it was authenticated or closed before.
    fn close(&self) -> bool {
        let undecided = !self.decided.swap(true, Ordering::AcqRel);
        if undecided {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        undecided
    }
}

impl<T> Drop for HandshakeAcceptor<T> {
    fn drop(&mut self) {
        for handshake in &self.pending {
            handshake.close();
        }
    }
}

/// Runs the handshake and reads the first message, within one deadline.
fn first_message<T: DeserializeOwned>(
    stream: &TcpStream,
    purpose: Purpose,
    token: &[u8],
    authenticated: &AtomicBool,
) -> io::Result<T> {
    let mut timed = Timed::new(stream, HANDSHAKE_TIMEOUT);
    handshake(&mut timed, Side::Listener, purpose, token)?;
    if authenticated.swap(true, Ordering::AcqRel) {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    receive(&mut timed)
}

#[cfg(test)]
mod tests {
    use super::super::message::send;
    use super::*;
    use std::io::{Read, Write};
    use std::net::SocketAddr;

    fn open() -> (TcpListener, SocketAddr, HandshakeAcceptor<u32>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address, HandshakeAcceptor::new(Purpose::Control, b"secret"))
    }

    fn connect(address: SocketAddr, number: u32) -> io::Result<()> {
        let stream = TcpStream::connect(address)?;
        let mut timed = Timed::new(&stream, HANDSHAKE_TIMEOUT);
        handshake(&mut timed, Side::Caller, Purpose::Control, b"secret")?;
        send(&mut timed, &number)
    }

    /// Accepts until a caller is authenticated.
    fn await_next(listener: &TcpListener, acceptor: &mut HandshakeAcceptor<u32>) -> Option<u32> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            acceptor.accept(listener).unwrap();
            assert!(acceptor.pending.len() <= MAX_PENDING);
            if let Some((number, _)) = acceptor.next(Duration::from_millis(1)) {
                return Some(number);
            }
        }
        None
    }

    #[test]
    fn more_foreign_connections_than_the_limit_do_not_keep_a_rank_out() {
        let (listener, address, mut acceptor) = open();
        let mut foreign: Vec<TcpStream> =
            (0..MAX_PENDING + 16).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stream in &mut foreign {
            stream.write_all(&[200, 0, 0, 0, b'T']).unwrap();
        }
        let caller = std::thread::spawn(move || connect(address, 7));
        assert_eq!(await_next(&listener, &mut acceptor), Some(7));
        caller.join().unwrap().unwrap();
        // The oldest was replaced: its connection is closed after the hello.
        let first = foreign.first_mut().unwrap();
        first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut hello = Vec::new();
        let ended = first.read_to_end(&mut hello);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn a_large_announced_length_is_refused_at_once() {
        let (listener, address, mut acceptor) = open();
        let mut foreign = TcpStream::connect(address).unwrap();
        foreign.write_all(&0x000f_ffff_u32.to_le_bytes()).unwrap();
        foreign.set_nonblocking(true).unwrap();
        let end = Instant::now() + HANDSHAKE_TIMEOUT;
        // It receives the hello, and then the end of the stream.
        while !matches!(foreign.read(&mut [0; 256]), Ok(0)) {
            assert!(Instant::now() < end, "the acceptor waits for the rest");
            acceptor.accept(&listener).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_unauthenticated_connections_are_replaced_and_not_within_the_grace() {
        let (listener, address, mut acceptor) = open();
        let _foreign = TcpStream::connect(address).unwrap();
        while acceptor.pending.is_empty() {
            acceptor.accept(&listener).unwrap();
        }
        acceptor.pending[0].since = Instant::now() + Duration::from_secs(60);
        assert_eq!(acceptor.oldest_unauthenticated(), None);
        acceptor.pending[0].since = Instant::now() - GRACE;
        assert_eq!(acceptor.oldest_unauthenticated(), Some(0));
        acceptor.pending[0].decided.store(true, Ordering::Release);
        assert_eq!(acceptor.oldest_unauthenticated(), None);
        acceptor.replace(0);
        assert_eq!(acceptor.pending.len(), 1, "it is authenticated");
        acceptor.pending[0].decided.store(false, Ordering::Release);
        acceptor.replace(0);
        assert_eq!(acceptor.pending.len(), 0);
    }
}
