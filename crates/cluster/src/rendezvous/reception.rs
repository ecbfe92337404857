//! Who comes in: the one door of both listeners, rank 0's for control and each rank's for data.
//!
//! Each newcomer shakes hands in a thread of its own, with one deadline for all of it. There are only so many places:
//! when they are taken, the newcomer gets that of whoever has been there longest without a proof. So strangers, slow or
//! many, cost a bounded number of threads and a few hundred bytes each, and do not keep a true rank out.

use super::handshake::{Purpose, Side, shake};
use super::message::receive;
use super::timed::{PATIENCE, Timed};
use crate::exhaustion;
use serde::de::DeserializeOwned;
use std::io;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thalweg_core::Result;

/// Connections that may be in the middle of a handshake; more wait in the kernel's queue.
const PLACES: usize = 64;

/// Nobody loses its place before: a true rank is through by then, even from far away.
const GRACE: Duration = Duration::from_millis(250);

/// Callers that were turned away and are not told of yet; more are forgotten.
const REFUSED: usize = 16;

/// Where a caller came from that did not prove itself, and what it did.
pub type Refused = (IpAddr, String);

/// How long this process must have been short of files, memory or threads before that is the reason for a failure.
const SHORT: Duration = Duration::from_millis(500);

/// Takes connections and hands out those that are proven, each with its first message.
pub struct Reception<T> {
    purpose: Purpose,
    token: Vec<u8>,
    guests: Vec<Guest>,
    /// Since when no connection could be taken in.
    short: Option<Instant>,
    sender: Sender<(T, TcpStream)>,
    receiver: Receiver<(T, TcpStream)>,
    refused: (SyncSender<Refused>, Receiver<Refused>),
}

/// A connection in the middle of its handshake.
struct Guest {
    since: Instant,
    /// Set by whoever comes first: the thread, when the proof is there, or the reception, when it needs the place.
    settled: Arc<AtomicBool>,
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl<T: DeserializeOwned + Send + 'static> Reception<T> {
    /// Lets in those who come for this purpose and know the token; without a token, nobody.
    pub fn new(purpose: Purpose, token: &[u8]) -> Reception<T> {
        let ((sender, receiver), refused) = (channel(), sync_channel(REFUSED));
        Reception {
            purpose,
            token: token.to_vec(),
            guests: Vec::new(),
            short: None,
            sender,
            receiver,
            refused,
        }
    }

    /// Takes those who wait at a listener that does not block; never more at once than there are places. An error says that
    /// this process cannot take in anybody, which is not the doing of those who come: no handshake is under way.
    pub fn admit(&mut self, listener: &TcpListener) -> Result<()> {
        match self.accept_waiting(listener) {
            // A shortage of long ago is over, though no connection has arrived since.
            Ok(0) if self.short.is_none_or(|since| since.elapsed() < 20 * SHORT) => Ok(()),
            Ok(_) => {
                self.short = None;
                Ok(())
            }
            Err(error) => {
                let since = *self.short.get_or_insert_with(Instant::now);
                let over = self.guests.is_empty() && since.elapsed() >= SHORT;
                if over { Err(error) } else { Ok(()) }
            }
        }
    }

    /// Starts the handshakes of waiting connections and returns their number. The error names a missing resource: that
    /// connection is closed, and its caller may retry.
    fn accept_waiting(&mut self, listener: &TcpListener) -> Result<usize> {
        const WHAT: &str = "cannot take in connections";
        let short = |error: &io::Error| exhaustion::explain(WHAT, error);
        for count in 0..PLACES {
            self.guests.retain(|guest| !guest.thread.is_finished());
            let full = self.guests.len() >= PLACES;
            let oldest = self.oldest_unproven();
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
            if let (true, Some(place)) = (full, oldest) {
                self.dismiss(place);
            }
            match self.receive(stream) {
                Ok(guest) => self.guests.push(guest),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(exhaustion::explain_thread(WHAT));
                }
                Err(error) => return short(&error).map_or(Ok(count), Err),
            }
        }
        Ok(PLACES)
    }

    /// The next one that is proven, if one comes within the time.
    pub fn next(&self, patience: Duration) -> Option<(T, TcpStream)> {
        self.receiver.recv_timeout(patience).ok()
    }

    /// The next one that was turned away because it does not know the token, or speaks another protocol.
    pub fn next_refused(&self) -> Option<Refused> {
        self.refused.1.try_recv().ok()
    }

    fn oldest_unproven(&self) -> Option<usize> {
        self.guests
            .iter()
            .position(|guest| !guest.settled.load(Ordering::Acquire) && guest.since.elapsed() >= GRACE)
    }

    /// Ends a handshake, unless the proof came at the last moment.
    fn dismiss(&mut self, place: usize) {
        if self.guests[place].turn_away() {
            // Its thread wakes up by the closed connection and ends: threads are bounded as well as places.
            let _ = self.guests.remove(place).thread.join();
        }
    }

    fn receive(&self, stream: TcpStream) -> io::Result<Guest> {
        stream.set_nonblocking(false)?;
        let (ours, settled) = (stream.try_clone()?, Arc::new(AtomicBool::new(false)));
        let (sender, token, purpose) = (self.sender.clone(), self.token.clone(), self.purpose);
        let (proven, refused) = (Arc::clone(&settled), self.refused.0.clone());
        let thread = std::thread::Builder::new().name("handshake".into()).spawn(move || {
            match first_message(&stream, purpose, &token, &proven) {
                // The receivers are gone only when the rendezvous is over.
                Ok(message) => drop(sender.send((message, stream))),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let from = stream.peer_addr().map(|address| address.ip().to_canonical());
                    let _ = from.map(|from| refused.try_send((from, error.to_string())));
                }
                Err(_) => {}
            }
        })?;
        Ok(Guest { since: Instant::now(), settled, stream: ours, thread })
    }
}

impl Guest {
    /// Closes the connection of somebody unproven; false if it is proven, or was turned away before.
    fn turn_away(&self) -> bool {
        let unproven = !self.settled.swap(true, Ordering::AcqRel);
        if unproven {
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        unproven
    }
}

impl<T> Drop for Reception<T> {
    fn drop(&mut self) {
        for guest in &self.guests {
            guest.turn_away();
        }
    }
}

/// Shakes hands and reads what the other side came to say, all within one deadline.
fn first_message<T: DeserializeOwned>(
    stream: &TcpStream,
    purpose: Purpose,
    token: &[u8],
    proven: &AtomicBool,
) -> io::Result<T> {
    let mut timed = Timed::new(stream, PATIENCE);
    shake(&mut timed, Side::Listener, purpose, token)?;
    if proven.swap(true, Ordering::AcqRel) {
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

    fn open() -> (TcpListener, SocketAddr, Reception<u32>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address, Reception::new(Purpose::Control, b"secret"))
    }

    fn arrive(address: SocketAddr, number: u32) -> io::Result<()> {
        let stream = TcpStream::connect(address)?;
        let mut timed = Timed::new(&stream, PATIENCE);
        shake(&mut timed, Side::Caller, Purpose::Control, b"secret")?;
        send(&mut timed, &number)
    }

    /// Admits until one is proven.
    fn await_next(listener: &TcpListener, reception: &mut Reception<u32>) -> Option<u32> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            reception.admit(listener).unwrap();
            assert!(reception.guests.len() <= PLACES);
            if let Some((number, _)) = reception.next(Duration::from_millis(1)) {
                return Some(number);
            }
        }
        None
    }

    #[test]
    fn more_strangers_than_places_do_not_keep_a_rank_out() {
        let (listener, address, mut reception) = open();
        let mut strangers: Vec<TcpStream> =
            (0..PLACES + 16).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stranger in &mut strangers {
            stranger.write_all(&[200, 0, 0, 0, b'T']).unwrap();
        }
        let caller = std::thread::spawn(move || arrive(address, 7));
        assert_eq!(await_next(&listener, &mut reception), Some(7));
        caller.join().unwrap().unwrap();
        // Who came first had to leave: its connection is closed behind the greeting.
        let first = strangers.first_mut().unwrap();
        first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = Vec::new();
        let ended = first.read_to_end(&mut greeting);
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn a_large_announcement_is_refused_at_once() {
        let (listener, address, mut reception) = open();
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(&0x000f_ffff_u32.to_le_bytes()).unwrap();
        stranger.set_nonblocking(true).unwrap();
        let end = Instant::now() + PATIENCE;
        // It gets our greeting, and then the end.
        while !matches!(stranger.read(&mut [0; 256]), Ok(0)) {
            assert!(Instant::now() < end, "the reception waits for the rest");
            reception.admit(&listener).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_the_unproven_are_turned_away_and_not_within_the_grace() {
        let (listener, address, mut reception) = open();
        let _stranger = TcpStream::connect(address).unwrap();
        while reception.guests.is_empty() {
            reception.admit(&listener).unwrap();
        }
        reception.guests[0].since = Instant::now() + Duration::from_secs(60);
        assert_eq!(reception.oldest_unproven(), None);
        reception.guests[0].since = Instant::now() - GRACE;
        assert_eq!(reception.oldest_unproven(), Some(0));
        reception.guests[0].settled.store(true, Ordering::Release);
        assert_eq!(reception.oldest_unproven(), None);
        reception.dismiss(0);
        assert_eq!(reception.guests.len(), 1, "it is proven");
        reception.guests[0].settled.store(false, Ordering::Release);
        reception.dismiss(0);
        assert_eq!(reception.guests.len(), 0);
    }
}
