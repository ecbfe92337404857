//! Mutual authentication by the shared token (HMAC over both nonces), before either side accepts any message.

use super::message::{receive_within, send};
use super::timed::Timed;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::io;

/// Oldest and newest protocol version supported.
pub const PROTOCOL: (u16, u16) = (8, 8);

/// Largest message of an unauthenticated peer, in bytes; valid ones are smaller than 64.
const MAX_UNAUTHENTICATED: u32 = 256;

/// What a connection is for. It is part of the proof, so that a proof cannot be reused for the other purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Rendezvous and control.
    Control,
    /// Data between two ranks.
    Data,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    magic: [u8; 4],
    protocol: (u16, u16),
    /// Optional features, one bit each; none is defined yet.
    features: u64,
    purpose: Purpose,
    nonce: [u8; 32],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Connects; proves itself first.
    Caller,
    /// Accepts; proves itself second, and only to an authenticated caller.
    Listener,
}

/// Runs the handshake within the deadline of the stream. An [`io::ErrorKind::PermissionDenied`] is a refusal that names
/// the reason; other errors may be temporary.
pub fn handshake(stream: &mut Timed<'_>, side: Side, purpose: Purpose, token: &[u8]) -> io::Result<()> {
    stream.stream().set_nodelay(true)?;
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    let mine = Hello { magic: *b"THLW", protocol: PROTOCOL, features: 0, purpose, nonce };
    send(stream, &mine)?;
    let theirs: Hello = receive_within(stream, MAX_UNAUTHENTICATED)?;
    check_hello(&theirs, purpose)?;
    match side {
        Side::Caller => prove_first(stream, token, purpose, &mine.nonce, &theirs.nonce),
        Side::Listener => prove_second(stream, token, purpose, &theirs.nonce, &mine.nonce),
    }
}

/// Whether the listener of this connection sends thalweg's hello. Sends nothing.
pub fn is_a_job(stream: &mut Timed<'_>) -> bool {
    receive_within::<Hello>(stream, MAX_UNAUTHENTICATED).is_ok_and(|hello| hello.magic == *b"THLW")
}

/// Checks magic, protocol version and purpose.
fn check_hello(theirs: &Hello, purpose: Purpose) -> io::Result<()> {
    if theirs.magic != *b"THLW" {
        return Err(refused("does not speak thalweg's protocol"));
    }
    if theirs.protocol.0 > PROTOCOL.1 || theirs.protocol.1 < PROTOCOL.0 {
        return Err(refused(&format!(
            "speaks protocol {}-{}, this side {}-{}; use the same version everywhere",
            theirs.protocol.0, theirs.protocol.1, PROTOCOL.0, PROTOCOL.1
        )));
    }
    if theirs.purpose != purpose {
        return Err(refused("wants something else of this port"));
    }
    Ok(())
}

/// The listener's response to the caller's proof: its own, or None if the caller's is wrong. The refusal is explicit,
/// because a connection that just closes may have been dropped for a newer one, and is retried.
type Reply = Option<[u8; 32]>;

fn prove_first(
    stream: &mut Timed<'_>,
    token: &[u8],
    purpose: Purpose,
    caller: &[u8; 32],
    listener: &[u8; 32],
) -> io::Result<()> {
    send(stream, &sum(proof(token, Side::Caller, purpose, caller, listener)?))?;
    let reply: Reply = receive_within(stream, MAX_UNAUTHENTICATED)?;
    let theirs =
        reply.ok_or_else(|| refused("refused the token; set the same THALWEG_TOKEN on every host"))?;
    verify(proof(token, Side::Listener, purpose, caller, listener)?, &theirs)
}

fn prove_second(
    stream: &mut Timed<'_>,
    token: &[u8],
    purpose: Purpose,
    caller: &[u8; 32],
    listener: &[u8; 32],
) -> io::Result<()> {
    let theirs: [u8; 32] = receive_within(stream, MAX_UNAUTHENTICATED)?;
    let verified = verify(proof(token, Side::Caller, purpose, caller, listener)?, &theirs);
    let reply: Reply = match verified {
        Ok(()) => Some(sum(proof(token, Side::Listener, purpose, caller, listener)?)),
        Err(_) => None,
    };
    send(stream, &reply)?;
    verified
}

fn verify(expected: Hmac<Sha256>, received: &[u8; 32]) -> io::Result<()> {
    expected
        .verify_slice(received)
        .map_err(|_| refused("does not know the token; set the same THALWEG_TOKEN on every host"))
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn proof(
    token: &[u8],
    side: Side,
    purpose: Purpose,
    caller: &[u8; 32],
    listener: &[u8; 32],
) -> io::Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token).map_err(io::Error::other)?;
    mac.update(if side == Side::Caller { b"thalweg caller" } else { b"thalweg listener" });
    mac.update(&[purpose as u8]);
    mac.update(caller);
    mac.update(listener);
    Ok(mac)
}

fn sum(mac: Hmac<Sha256>) -> [u8; 32] {
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::timed::HANDSHAKE_TIMEOUT;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn both(
        listener_token: &'static [u8],
        caller: impl FnOnce(TcpStream) -> io::Result<()>,
    ) -> (io::Result<()>, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            handshake(
                &mut Timed::new(&stream, HANDSHAKE_TIMEOUT),
                Side::Listener,
                Purpose::Control,
                listener_token,
            )
        });
        let called = caller(TcpStream::connect(address).unwrap());
        (served.join().unwrap(), called)
    }

    #[test]
    fn the_same_token_lets_in_and_another_does_not() {
        let call = |token: &'static [u8], purpose| {
            move |stream: TcpStream| {
                handshake(&mut Timed::new(&stream, HANDSHAKE_TIMEOUT), Side::Caller, purpose, token)
            }
        };
        let (served, called) = both(b"secret", call(b"secret", Purpose::Control));
        assert!(served.is_ok() && called.is_ok());
        let (served, called) = both(b"secret", call(b"guess", Purpose::Control));
        assert!(served.unwrap_err().to_string().contains("token"));
        assert!(called.unwrap_err().to_string().contains("THALWEG_TOKEN"));
        let (served, _) = both(b"secret", call(b"secret", Purpose::Data));
        assert!(served.is_err());
    }

    #[test]
    fn garbage_is_turned_away() {
        let (served, _) =
            both(b"secret", |mut stream| stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(served.is_err());
    }
    #[test]
    fn a_listener_that_hangs_up_has_not_refused_the_token() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        let nonce = [1; 32];
        let hello =
            Hello { magic: *b"THLW", protocol: PROTOCOL, features: 0, purpose: Purpose::Control, nonce };
        send(&mut served, &hello).unwrap();
        served.shutdown(std::net::Shutdown::Write).unwrap();
        let error =
            handshake(&mut Timed::new(&stream, HANDSHAKE_TIMEOUT), Side::Caller, Purpose::Control, b"secret")
                .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
    }
}
