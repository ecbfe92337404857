//! Two sides prove to each other that they know the token, before either believes anything.

use super::message::{receive, send};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// Oldest and newest protocol this version speaks.
const PROTOCOL: (u16, u16) = (1, 1);

/// What a stranger may take for one message.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a connection is for. It is part of the proof: one cannot be passed off as the other.
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
    /// Optional abilities, one bit each; none is defined yet.
    features: u64,
    purpose: Purpose,
    nonce: [u8; 32],
}

/// Side that connects, or side that accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Connects; proves itself first.
    Caller,
    /// Accepts; proves itself second, and only to somebody proven.
    Listener,
}

/// Carries out the handshake. The error says what is wrong with the other side.
pub fn shake(stream: &mut TcpStream, side: Side, purpose: Purpose, token: &[u8]) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    let mine = Hello { magic: *b"THLW", protocol: PROTOCOL, features: 0, purpose, nonce };
    send(stream, &mine)?;
    let theirs: Hello = receive(stream)?;
    if theirs.magic != mine.magic {
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
    let (caller, listener) = match side {
        Side::Caller => (mine.nonce, theirs.nonce),
        Side::Listener => (theirs.nonce, mine.nonce),
    };
    let proof = |who: Side| proof(token, who, purpose, &caller, &listener);
    if side == Side::Caller {
        send(stream, &sum(proof(Side::Caller)?))?;
    }
    let other = if side == Side::Caller { Side::Listener } else { Side::Caller };
    let received: [u8; 32] = receive(stream).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset if side == Side::Caller => {
            refused("refused the token; set the same THALWEG_TOKEN on every host")
        }
        _ => error,
    })?;
    proof(other)?
        .verify_slice(&received)
        .map_err(|_| refused("does not know the token; set the same THALWEG_TOKEN on every host"))?;
    if side == Side::Listener {
        send(stream, &sum(proof(Side::Listener)?))?;
    }
    Ok(())
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn proof(
    token: &[u8],
    who: Side,
    purpose: Purpose,
    caller: &[u8; 32],
    listener: &[u8; 32],
) -> io::Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token).map_err(io::Error::other)?;
    mac.update(if who == Side::Caller { b"thalweg caller" } else { b"thalweg listener" });
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
    use std::io::Write;
    use std::net::TcpListener;

    fn both(
        listener_token: &'static [u8],
        caller: impl FnOnce(TcpStream) -> io::Result<()>,
    ) -> (io::Result<()>, io::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            shake(&mut stream, Side::Listener, Purpose::Control, listener_token)
        });
        let called = caller(TcpStream::connect(address).unwrap());
        (served.join().unwrap(), called)
    }

    #[test]
    fn the_same_token_lets_in_and_another_does_not() {
        let call = |token: &'static [u8], purpose| {
            move |mut s: TcpStream| shake(&mut s, Side::Caller, purpose, token)
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
}
