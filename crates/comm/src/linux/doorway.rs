//! A door at which processes of one host find each other.
//!
//! It is a socket in the abstract namespace: it has no file, so that nothing of it is left behind however its process
//! ends, and it is seen only inside its network namespace. Each expected caller is given a token of its own over a
//! connection that is trusted already; by it the caller is known. Strangers cost a place among many for a moment and
//! are otherwise not noticed: other users' processes are turned away at once, the slow lose their place to newcomers,
//! and a wrong token ends the conversation.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What a caller proves itself with.
pub type Token = [u8; 32];

/// Callers that may stand at the door without having said who they are.
const PLACES: usize = 64;

/// How long to rest between two looks at the door.
const LOOK: Duration = Duration::from_millis(1);

/// A door of this process.
#[derive(Debug)]
pub struct Doorway {
    listener: UnixListener,
    name: String,
    expected: Vec<(usize, Token)>,
    unproven: Vec<(UnixStream, Vec<u8>)>,
    proven: Vec<(usize, UnixStream)>,
}

impl Doorway {
    /// Opens a door under a name that nobody can guess.
    pub fn open() -> io::Result<Doorway> {
        let name: String = random()?.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let listener = UnixListener::bind_addr(&address(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Doorway { listener, name, expected: Vec::new(), unproven: Vec::new(), proven: Vec::new() })
    }

    /// The name to call it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From now on this rank is expected; it is to be given the token.
    pub fn expect(&mut self, rank: usize) -> io::Result<Token> {
        let token = random()?;
        self.expected.push((rank, token));
        Ok(token)
    }

    /// Waits for the call of a rank that is expected. It lets in only once.
    pub fn await_caller(&mut self, rank: usize, deadline: Instant) -> io::Result<UnixStream> {
        loop {
            self.admit();
            self.listen();
            if let Some(at) = self.proven.iter().position(|(caller, _)| *caller == rank) {
                let stream = self.proven.swap_remove(at).1;
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(ErrorKind::TimedOut, format!("rank {rank} did not come in time")));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn admit(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if is_of_this_user(&stream) && stream.set_nonblocking(true).is_ok() {
                if self.unproven.len() == PLACES {
                    self.unproven.remove(0);
                }
                self.unproven.push((stream, Vec::new()));
            }
        }
    }

    fn listen(&mut self) {
        let (expected, proven) = (&mut self.expected, &mut self.proven);
        self.unproven.retain_mut(|(stream, said)| {
            let mut words = [0; size_of::<Token>()];
            match stream.read(&mut words[said.len()..]) {
                Ok(count) if count > 0 => said.extend_from_slice(&words[said.len()..][..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                _ => return false,
            }
            if said.len() < size_of::<Token>() {
                return true;
            }
            let known = expected.iter().position(|(_, token)| is_same(token, said));
            if let (Some(at), Ok(stream)) = (known, stream.try_clone()) {
                proven.push((expected.swap_remove(at).0, stream));
            }
            false
        });
    }
}

/// Goes to the door of that name and shows the token.
pub fn call(name: &str, token: &Token) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect_addr(&address(name)?)?;
    if !is_of_this_user(&stream) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the door belongs to another user"));
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

/// Looks at every byte, so that the time it takes says nothing about the token.
fn is_same(token: &Token, said: &[u8]) -> bool {
    token.len() == said.len()
        && token.iter().zip(said).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

fn random() -> io::Result<Token> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn callers_are_known_by_their_tokens_in_any_order() {
        let mut door = Doorway::open().unwrap();
        let tokens = [door.expect(1).unwrap(), door.expect(2).unwrap()];
        let mut second = call(door.name(), &tokens[1]).unwrap();
        let mut first = call(door.name(), &tokens[0]).unwrap();
        for (rank, caller) in [(1, &mut first), (2, &mut second)] {
            let mut met = door.await_caller(rank, soon()).unwrap();
            caller.write_all(&[rank as u8]).unwrap();
            let mut said = [0];
            met.read_exact(&mut said).unwrap();
            assert_eq!(said, [rank as u8]);
        }
    }

    #[test]
    fn strangers_do_not_disturb() {
        let mut door = Doorway::open().unwrap();
        let token = door.expect(1).unwrap();
        let silent: Vec<UnixStream> = (0..PLACES + 10)
            .map(|_| {
                let stream = UnixStream::connect_addr(&address(door.name()).unwrap()).unwrap();
                door.admit();
                stream
            })
            .collect();
        let mut wrong = call(door.name(), &[7; 32]).unwrap();
        let _right = call(door.name(), &token).unwrap();
        door.await_caller(1, soon()).unwrap();
        assert_eq!(wrong.read(&mut [0]).unwrap(), 0, "the door was closed on it");
        // A token lets in once.
        let _again = call(door.name(), &token).unwrap();
        assert_eq!(door.await_caller(1, Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(silent);
    }

    #[test]
    fn a_door_ends_with_its_process() {
        let name = Doorway::open().unwrap().name().to_owned();
        assert!(call(&name, &[0; 32]).is_err());
    }
}
