//! How ranks find each other.
//!
//! Rank 0 listens; every rank, itself included, connects and proves that it knows the token. When all are there, each
//! gets the roster and connects to every other rank for the data. The first connection stays open: pulses and
//! verdicts travel on it (see [`crate::control`]).
//!
//! Nothing a stranger sends changes any state before the proof, every read has a deadline, and every size a bound.

use std::net::SocketAddr;
use std::time::Duration;
use thalweg_core::{Error, Kind};

pub mod coordinator;
pub mod handshake;
pub mod join;
pub mod mesh;
pub mod message;

/// How often somebody who waits says for whom.
pub const REMINDER: Duration = Duration::from_secs(10);

/// What a rank brings to the rendezvous.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Its number.
    pub rank: usize,
    /// How many there are to be.
    pub world: usize,
    /// Digest of the job.
    pub job: [u8; 32],
    /// The shared secret; empty: only loopback.
    pub token: Vec<u8>,
    /// Its machine.
    pub host: String,
    /// Whether ranks may come from other machines.
    pub anywhere: bool,
    /// How long to try.
    pub deadline: Duration,
}

/// `10.0.0.1:29500 (interface eth0)`.
pub fn describe(address: SocketAddr) -> String {
    match crate::linux::interface_of(address.ip()) {
        Some(interface) => format!("{address} (interface {interface})"),
        None => address.to_string(),
    }
}

/// `rank 3`, `ranks 1, 2`.
pub fn ranks(list: &[usize]) -> String {
    let numbers: Vec<String> = list.iter().map(ToString::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

/// Without a token only loopback is served.
pub fn check_token(address: SocketAddr, token: &[u8]) -> Result<(), Error> {
    if token.is_empty() && !address.ip().is_loopback() {
        return Err(Error::new(
            Kind::Rendezvous,
            format!("{address} is not a loopback address and there is no token"),
        )
        .hint("set THALWEG_TOKEN to the same secret on every host"));
    }
    Ok(())
}
