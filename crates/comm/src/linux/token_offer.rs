//! A message for processes of the same user on this host: how ranks without a token get one.
//!
//! The offer is a listening socket in the abstract namespace, named after a port. The kernel tells who is at the other end
//! (`SO_PEERCRED`), so both sides know that they belong to one user before a byte is said. Processes of another PID
//! namespace are not seen and count as strangers: with the host's network, root of one container is not root of another.
//! Abstract names can be taken by anybody, so there are several per port, and those that strangers hold are passed over.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Names per port: as many strangers, or jobs on other addresses, may hold one.
const NAMES: usize = 16;

/// Callers that are answered in one call.
const BATCH: usize = 64;

/// The longest message, in bytes.
const LIMIT: u64 = 1024;

/// How long a caller waits for the message.
const PATIENCE: Duration = Duration::from_secs(1);

/// A message that is offered to this user's processes for as long as this lives.
#[derive(Debug)]
pub struct TokenOffer {
    listener: UnixListener,
    message: Vec<u8>,
}

impl TokenOffer {
    /// Opens the first free name of a port.
    pub fn open(port: u16, message: &[u8]) -> io::Result<TokenOffer> {
        for place in 0..NAMES {
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(port, place))?) {
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

    /// Answers the callers that wait; never blocks.
    pub fn answer(&self) {
        for _ in 0..BATCH {
            let Ok((mut caller, _)) = self.listener.accept() else { return };
            if is_own(&caller) && caller.set_nonblocking(true).is_ok() {
                // A few hundred bytes fit the socket's buffer; a caller that has gone needs none.
                let _ = caller.write_all(&self.message);
            }
        }
    }
}

/// What is offered under the names of a port.
#[derive(Debug, Default)]
pub struct Offers {
    /// The messages of this user's processes.
    pub messages: Vec<Vec<u8>>,
    /// Whether a process of another user, or of another container, holds a name.
    pub strangers: bool,
    /// Whether a process of this user holds a name and does not answer, or turned this one away.
    pub unanswered: bool,
}

/// Asks all names of a port.
pub fn token_offers(port: u16) -> Offers {
    let mut offers = Offers::default();
    for place in 0..NAMES {
        match call(&name(port, place)) {
            Ok(Some(message)) if message.is_empty() => offers.unanswered = true,
            Ok(Some(message)) => offers.messages.push(message),
            Ok(None) => offers.strangers = true,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(_) => offers.unanswered = true,
        }
    }
    offers
}

/// The message behind a name; nothing if a stranger holds it.
fn call(name: &str) -> io::Result<Option<Vec<u8>>> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // A stranger's full queue would block a connection for ever.
    match connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?) {
        Err(Errno::EAGAIN) => return Err(ErrorKind::WouldBlock.into()),
        other => other?,
    }
    let stream = UnixStream::from(socket);
    if !is_own(&stream) {
        return Ok(None);
    }
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = Vec::new();
    stream.take(LIMIT).read_to_end(&mut message)?;
    Ok(Some(message))
}

fn name(port: u16, place: usize) -> String {
    format!("thalweg-token-{port}-{place}")
}

/// Whether the other end is a process of this user that this one can see.
fn is_own(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials)
        .is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw() && peer.pid() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, listen};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A number for names that no other test uses: they need no free port.
    fn number(test: u16) -> u16 {
        (std::process::id() as u16).wrapping_mul(7).wrapping_add(test)
    }

    fn asked(port: u16, offers: &[&TokenOffer]) -> Offers {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    offers.iter().for_each(|offer| offer.answer());
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let found = token_offers(port);
            over.store(true, Ordering::Relaxed);
            found
        })
    }

    #[test]
    fn processes_of_one_user_get_the_message_for_as_long_as_it_is_offered() {
        let port = number(0);
        assert!(token_offers(port).messages.is_empty());
        let offer = TokenOffer::open(port, b"a token").unwrap();
        let other = TokenOffer::open(port, b"of another address").unwrap();
        assert_eq!(asked(port, &[&offer, &other]).messages, [&b"a token"[..], b"of another address"]);
        drop(offer);
        assert_eq!(asked(port, &[&other]).messages, [b"of another address"]);
    }

    #[test]
    fn one_that_does_not_answer_is_told_apart_from_none() {
        let port = number(1);
        let offer = TokenOffer::open(port, b"a token").unwrap();
        let found = token_offers(port);
        assert!(found.messages.is_empty() && found.unanswered && !found.strangers);
        drop(offer);
        assert!(!token_offers(port).unanswered);
    }

    #[test]
    fn a_full_queue_does_not_block_a_caller() {
        let port = number(2);
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
        assert!(token_offers(port).messages.is_empty());
    }
}
