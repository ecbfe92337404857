//! Authenticated Unix sockets between processes of one host.
//!
//! The listener is a socket in the abstract namespace: it has no file, so that nothing remains however its process
//! ends, and it is visible only inside its network namespace. Each expected rank gets a token of its own over a
//! connection that is already authenticated. Other callers only occupy one of [`MAX_UNAUTHENTICATED`] slots for a
//! moment: processes of other users are refused at once, slow callers are dropped in favour of new ones, and a wrong
//! token closes the connection.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Authenticates one rank at one listener, once.
pub type LocalToken = [u8; 32];

/// Callers without a complete token at a time.
const MAX_UNAUTHENTICATED: usize = 64;

/// Time between two polls of the listener.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Accepts connections of the expected ranks.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    name: String,
    expected: Vec<(usize, LocalToken)>,
    unauthenticated: Vec<(UnixStream, Vec<u8>)>,
    authenticated: Vec<(usize, UnixStream)>,
}

impl LocalListener {
    /// Binds a socket with an unguessable name.
    pub fn bind() -> io::Result<LocalListener> {
        let name: String = random()?.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let listener = UnixListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        let (expected, unauthenticated, authenticated) = (Vec::new(), Vec::new(), Vec::new());
        Ok(LocalListener { listener, name, expected, unauthenticated, authenticated })
    }

    /// The name to connect to.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Expects a connection of this rank, which must present the returned token.
    pub fn expect(&mut self, rank: usize) -> io::Result<LocalToken> {
        let token = random()?;
        self.expected.push((rank, token));
        Ok(token)
    }

    /// Waits for the connection of an expected rank, unless the wait is over; each rank can connect once.
    pub fn accept_from(
        &mut self,
        rank: usize,
        deadline: Instant,
        is_over: impl Fn() -> bool,
    ) -> io::Result<UnixStream> {
        loop {
            self.accept_callers();
            self.read_tokens();
            if let Some(at) = self.authenticated.iter().position(|(authenticated, _)| *authenticated == rank)
            {
                let stream = self.authenticated.swap_remove(at).1;
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            if Instant::now() >= deadline || is_over() {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("rank {rank} did not connect in time"),
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn accept_callers(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if is_of_this_user(&stream) && stream.set_nonblocking(true).is_ok() {
                if self.unauthenticated.len() == MAX_UNAUTHENTICATED {
                    self.unauthenticated.remove(0);
                }
                self.unauthenticated.push((stream, Vec::new()));
            }
        }
    }

    fn read_tokens(&mut self) {
        let (expected, authenticated) = (&mut self.expected, &mut self.authenticated);
        self.unauthenticated.retain_mut(|(stream, received)| {
            let mut bytes = [0; size_of::<LocalToken>()];
            match stream.read(&mut bytes[received.len()..]) {
                Ok(count) if count > 0 => received.extend_from_slice(&bytes[received.len()..][..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                _ => return false,
            }
            if received.len() < size_of::<LocalToken>() {
                return true;
            }
            let known = expected.iter().position(|(_, token)| is_same(token, received));
            if let (Some(at), Ok(stream)) = (known, stream.try_clone()) {
                authenticated.push((expected.swap_remove(at).0, stream));
            }
            false
        });
    }
}

/// Connects to the listener of this name and presents the token.
pub fn connect_local(name: &str, token: &LocalToken) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&address(name)?)?;
    if !is_of_this_user(&stream) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the socket belongs to another user"));
    }
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(token)?;
    Ok(stream)
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("thalweg-{name}"))
}

fn is_of_this_user(stream: &UnixStream) -> bool {
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| peer.uid() == nix::unistd::geteuid().as_raw())
}

/// Compares in constant time, so that its duration reveals nothing about the token.
fn is_same(token: &LocalToken, received: &[u8]) -> bool {
    token.len() == received.len()
        && token.iter().zip(received).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

fn random() -> io::Result<LocalToken> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn ranks_are_identified_by_their_tokens_in_any_order() {
        let mut listener = LocalListener::bind().unwrap();
        let tokens = [listener.expect(1).unwrap(), listener.expect(2).unwrap()];
        let mut second = connect_local(listener.name(), &tokens[1]).unwrap();
        let mut first = connect_local(listener.name(), &tokens[0]).unwrap();
        for (rank, caller) in [(1, &mut first), (2, &mut second)] {
            let mut accepted = listener.accept_from(rank, deadline(), || false).unwrap();
            caller.write_all(&[rank as u8]).unwrap();
            let mut received = [0];
            accepted.read_exact(&mut received).unwrap();
            assert_eq!(received, [rank as u8]);
        }
    }

    #[test]
    fn other_callers_do_not_disturb() {
        let mut listener = LocalListener::bind().unwrap();
        let token = listener.expect(1).unwrap();
        let silent: Vec<UnixStream> = (0..MAX_UNAUTHENTICATED + 10)
            .map(|_| {
                let stream = UnixStream::connect_addr(&address(listener.name()).unwrap()).unwrap();
                listener.accept_callers();
                stream
            })
            .collect();
        let mut wrong = connect_local(listener.name(), &[7; 32]).unwrap();
        let _right = connect_local(listener.name(), &token).unwrap();
        listener.accept_from(1, deadline(), || false).unwrap();
        assert_eq!(wrong.read(&mut [0]).unwrap(), 0, "the connection was closed");
        // A token is valid once.
        let _again = connect_local(listener.name(), &token).unwrap();
        let late = listener.accept_from(1, Instant::now(), || false).unwrap_err();
        let ended = listener.accept_from(1, deadline(), || true).unwrap_err();
        assert_eq!((late.kind(), ended.kind()), (ErrorKind::TimedOut, ErrorKind::TimedOut));
        drop(silent);
    }

    #[test]
    fn a_listener_ends_with_its_owner() {
        let name = LocalListener::bind().unwrap().name().to_owned();
        assert!(connect_local(&name, &[0; 32]).is_err());
    }
}
