//! Offers a message to processes of the same user on this host: how ranks without a token get one.
//!
//! The offer is a listening socket in the abstract namespace, named after a port. The kernel identifies the process
//! at the other end (`SO_PEERCRED`), so both sides know that they belong to one user before a byte is sent. Processes
//! of another PID namespace are invisible and count as foreign: with the host's network, root of one container is not
//! root of another. Any process can bind an abstract name, so there are several per port, and those of foreign
//! processes are skipped.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Names per port: foreign processes and jobs on other addresses may hold some.
const NAMES: usize = 16;

/// Callers answered per call of [`TokenOffer::answer`].
const BATCH: usize = 64;

/// The longest message, in bytes.
const MAX_MESSAGE: u64 = 1024;

/// How long a caller waits for the message.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Offers a message to processes of this user until it is dropped.
#[derive(Debug)]
pub struct TokenOffer {
    listener: UnixListener,
    message: Vec<u8>,
}

impl TokenOffer {
    /// Binds the first free name of a port.
    pub fn open(port: u16, message: &[u8]) -> io::Result<TokenOffer> {
        for index in 0..NAMES {
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(port, index))?) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(TokenOffer { listener, message: message.to_vec() });
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(ErrorKind::AddrInUse, format!("all {NAMES} names of the port are taken")))
    }

    /// Answers the waiting callers without blocking.
    pub fn answer(&self) {
        for _ in 0..BATCH {
            let Ok((mut caller, _)) = self.listener.accept() else { return };
            if is_own(&caller) && caller.set_nonblocking(true).is_ok() {
                // A few hundred bytes fit the socket's buffer; a caller that has disconnected needs none.
                let _ = caller.write_all(&self.message);
            }
        }
    }
}

/// What was found under the names of a port.
#[derive(Debug, Default)]
pub struct FoundOffers {
    /// The messages of this user's processes.
    pub messages: Vec<Vec<u8>>,
    /// Whether a process of another user, or of another container, holds a name.
    pub foreign: bool,
    /// Whether a process of this user holds a name and does not answer, or refused this one.
    pub unanswered: bool,
}

/// Asks all names of a port.
pub fn find_token_offers(port: u16) -> FoundOffers {
    let mut offers = FoundOffers::default();
    for index in 0..NAMES {
        match request(&name(port, index)) {
            Ok(Some(message)) if message.is_empty() => offers.unanswered = true,
            Ok(Some(message)) => offers.messages.push(message),
            Ok(None) => offers.foreign = true,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(_) => offers.unanswered = true,
        }
    }
    offers
}

/// The message under a name; `None` if a foreign process holds it.
fn request(name: &str) -> io::Result<Option<Vec<u8>>> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The full queue of a foreign process would block the connection for ever.
    match connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
        Err(Errno::EAGAIN) => return Err(ErrorKind::WouldBlock.into()),
        other => other?,
    }
    let stream = UnixStream::from(socket);
    if !is_own(&stream) {
        return Ok(None);
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut message = Vec::new();
    stream.take(MAX_MESSAGE).read_to_end(&mut message)?;
    Ok(Some(message))
}

fn name(port: u16, index: usize) -> String {
    format!("thalweg-token-{port}-{index}")
}

/// Whether the other end is a process of this user in this PID namespace.
fn is_own(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw() && peer.pid() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, listen};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A port number for names that no other test uses; it is never bound as a port.
    fn unique_port(test: u16) -> u16 {
        (std::process::id() as u16).wrapping_mul(7).wrapping_add(test)
    }

    fn find_answered(port: u16, offers: &[&TokenOffer]) -> FoundOffers {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    offers.iter().for_each(|offer| offer.answer());
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let found = find_token_offers(port);
            over.store(true, Ordering::Relaxed);
            found
        })
    }

    #[test]
    fn processes_of_one_user_get_the_message_while_it_is_offered() {
        let port = unique_port(0);
        assert!(find_token_offers(port).messages.is_empty());
        let offer = TokenOffer::open(port, b"a token").unwrap();
        let other = TokenOffer::open(port, b"of another address").unwrap();
        assert_eq!(find_answered(port, &[&offer, &other]).messages, [&b"a token"[..], b"of another address"]);
        drop(offer);
        assert_eq!(find_answered(port, &[&other]).messages, [b"of another address"]);
    }

    #[test]
    fn an_unanswered_offer_is_distinguished_from_none() {
        let port = unique_port(1);
        let offer = TokenOffer::open(port, b"a token").unwrap();
        let found = find_token_offers(port);
        assert!(found.messages.is_empty() && found.unanswered && !found.foreign);
        drop(offer);
        assert!(!find_token_offers(port).unanswered);
    }

    #[test]
    fn a_full_queue_does_not_block_a_caller() {
        let port = unique_port(2);
        let held = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(port, 0)).unwrap()).unwrap();
        listen(&held, Backlog::new(1).unwrap()).unwrap();
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let mut kept = Vec::new();
        loop {
            let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
            let address = UnixAddr::new_abstract(name(port, 0).as_bytes()).unwrap();
            let connected = connect(socket.as_raw_fd(), &address);
            kept.push(socket);
            if connected.is_err() || kept.len() > 8192 {
                break;
            }
        }
        assert!(find_token_offers(port).messages.is_empty());
    }
}
