//! Rendezvous: how the ranks of a job find and connect to each other.
//!
//! The coordinator listens; every rank, its own included, connects and proves that it knows the token. When all have
//! joined, each receives the roster and opens a data connection to every other rank. The first connection stays open
//! for heartbeats and aborts (see `control_connection.rs` and `coordinator/`).
//!
//! Unauthenticated input changes no state; every handshake has one deadline, every message a size limit, and both
//! listeners a limited number of pending handshakes, the oldest of which give way to new ones (see
//! [`handshake_acceptor`]).

use crate::linux;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use thalweg_core::spec::strategy::TransportChoice;

mod connect_to_rank0;
mod coordinator_errors;
pub mod endpoint;
pub mod handshake;
pub mod handshake_acceptor;
pub mod join;
pub mod join_validation;
pub mod listen;
pub mod local_token;
pub mod mesh;
pub mod message;
pub mod mpi;
pub mod query;
mod roster;
pub mod shm_setup;
pub mod timed;
pub mod unreachable;

pub use coordinator_errors::JoinError;

/// Interval of the notices of a waiting rank.
pub const REMINDER: Duration = Duration::from_secs(10);

/// What a rank joins the rendezvous with.
#[derive(Clone, Debug)]
pub struct JoinConfig {
    pub rank: usize,
    /// Expected number of ranks; 0 for a process that only asks for the job.
    pub world: usize,
    /// Digest of the job.
    pub job: [u8; 32],
    /// The job as a job file.
    pub text: String,
    /// The launcher's id of this attempt; empty if it has none.
    pub run: String,
    /// Digest of the model; empty if not known yet.
    pub model: Vec<u8>,
    /// Digest of the training rows; empty if not known yet.
    pub data: String,
    /// The shared secret; if empty, the one rank 0 offers to processes of its user on its host.
    pub token: Vec<u8>,
    pub host: String,
    /// Whether ranks may connect from other hosts.
    pub anywhere: bool,
    pub deadline: Duration,
    /// Transport of the data connections.
    pub carrier: TransportChoice,
}

/// Largest number of addresses listed.
const MAX_LISTED: usize = 4;

/// `10.0.0.1:29500 (interface eth0)`; for the unspecified address the reachable ones: `0.0.0.0:29500 (10.0.0.1 on
/// eth0)`.
pub fn describe(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        return format!("{address} ({})", usable(address.is_ipv6(), &linux::outward_addresses()));
    }
    format!("{address}{}", interface(address.ip()))
}

fn interface(address: IpAddr) -> String {
    linux::interface_of(address).map_or_else(String::new, |name| format!(" (interface {name})"))
}

/// The addresses under which a listener on the unspecified address can be reached; an IPv6 listener accepts both
/// families.
fn usable(ipv6: bool, addresses: &[(IpAddr, String)]) -> String {
    let all: Vec<String> = addresses
        .iter()
        .filter(|(address, _)| ipv6 || address.is_ipv4())
        .map(|(address, interface)| format!("{address} on {interface}"))
        .collect();
    match all.len() {
        0 => "no interface but loopback is up".into(),
        count if count <= MAX_LISTED => all.join(", "),
        count => format!("{} and {} more", all[..MAX_LISTED].join(", "), count - MAX_LISTED),
    }
}

/// The local address and interface of the route to `to`, as ` from 10.0.0.2 (interface eth0)`; empty without a route.
pub fn route(to: SocketAddr) -> String {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing, but chooses the route.
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(to)?;
        socket.local_addr()
    });
    local.map_or_else(|_| String::new(), |from| format!(" from {}{}", from.ip(), interface(from.ip())))
}

/// `rank 3`, `ranks 1, 2`.
pub fn ranks(list: &[usize]) -> String {
    let numbers: Vec<String> = list.iter().map(ToString::to_string).collect();
    format!("{} {}", if list.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_unspecified_address_lists_the_reachable_ones() {
        let on = |address: &str, name: &str| (address.parse().unwrap(), name.to_string());
        let mut addresses = vec![on("10.77.9.1", "eth0"), on("fd00::1", "eth0")];
        assert_eq!(usable(false, &addresses), "10.77.9.1 on eth0");
        assert_eq!(usable(true, &addresses), "10.77.9.1 on eth0, fd00::1 on eth0");
        assert_eq!(usable(false, &[]), "no interface but loopback is up");
        addresses.extend((1..=4).map(|number| on(&format!("10.0.{number}.1"), &format!("veth{number}"))));
        let named = "10.77.9.1 on eth0, 10.0.1.1 on veth1, 10.0.2.1 on veth2, 10.0.3.1 on veth3 and 1 more";
        assert_eq!(usable(false, &addresses), named);
        let described = describe("0.0.0.0:29500".parse().unwrap());
        assert!(described.starts_with("0.0.0.0:29500 (") && !described.contains("127."), "{described}");
    }

    #[test]
    fn the_route_is_described_for_both_families() {
        assert_eq!(route("127.0.0.1:29500".parse().unwrap()), " from 127.0.0.1 (interface lo)");
        assert_eq!(describe("127.0.0.1:29500".parse().unwrap()), "127.0.0.1:29500 (interface lo)");
        if linux::interface_of(Ipv6Addr::LOCALHOST.into()).is_none() {
            // Written directly, because the test runner hides output of passing tests.
            return drop(writeln!(std::io::stderr(), "skipped: this machine has no IPv6"));
        }
        assert_eq!(route("[::1]:29500".parse().unwrap()), " from ::1 (interface lo)");
        assert_eq!(describe("[::1]:29500".parse().unwrap()), "[::1]:29500 (interface lo)");
    }
}
