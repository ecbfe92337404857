//! How ranks find each other.
//!
//! The coordinator listens; every rank, its own included, connects and proves that it knows the token. When all are there,
//! each gets the roster and connects to every other rank for the data. The first connection stays open: pulses and
//! verdicts travel on it (see [`crate::line`] and [`crate::coordinator`]).
//!
//! Nothing a stranger sends changes any state before the proof; every handshake has one deadline, every message a
//! bound, and both listeners a bounded number of places, which the unproven lose to newcomers (see [`reception`]).

use crate::linux;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use thalweg_core::spec::strategy::Carrier;

pub mod endpoint;
pub mod handshake;
pub mod join;
pub mod listen;
pub mod local_token;
pub mod mesh;
pub mod message;
pub mod mpi;
pub mod neighbourhood;
mod reach;
pub mod reception;
mod roster;
pub mod timed;
pub mod unreachable;
pub mod welcome;

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
    /// The job itself, as a job file.
    pub text: String,
    /// Which attempt at which job this is, where a launcher has a name for it.
    pub run: String,
    /// Digest of what is trained; empty if it is not known.
    pub model: Vec<u8>,
    /// Digest of the rows it is trained with; empty if it is not known.
    pub data: String,
    /// The shared secret; empty: the one that rank 0 offers to processes of its user, if all ranks are on one host.
    pub token: Vec<u8>,
    /// Its machine.
    pub host: String,
    /// Whether ranks may come from other machines.
    pub anywhere: bool,
    /// How long to try.
    pub deadline: Duration,
    /// What is to carry the data.
    pub carrier: Carrier,
}

/// How many addresses are named where there are many.
const NAMED: usize = 4;

/// `10.0.0.1:29500 (interface eth0)`; for all addresses at once those that others can use: `0.0.0.0:29500 (10.0.0.1 on
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

/// The addresses under which a listener on all of them can be reached; one for IPv6 takes both families.
fn usable(ipv6: bool, addresses: &[(IpAddr, String)]) -> String {
    let all: Vec<String> = addresses
        .iter()
        .filter(|(address, _)| ipv6 || address.is_ipv4())
        .map(|(address, interface)| format!("{address} on {interface}"))
        .collect();
    match all.len() {
        0 => "no interface but loopback is up".into(),
        count if count <= NAMED => all.join(", "),
        count => format!("{} and {} more", all[..NAMED].join(", "), count - NAMED),
    }
}

/// The address and interface from which the system would go there, as ` from 10.0.0.2 (interface eth0)`; nothing if
/// there is no way.
pub fn route(to: SocketAddr) -> String {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing, but chooses the way.
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
    fn all_addresses_at_once_are_named_one_by_one() {
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
    fn the_way_is_named_for_both_families() {
        assert_eq!(route("127.0.0.1:29500".parse().unwrap()), " from 127.0.0.1 (interface lo)");
        assert_eq!(describe("127.0.0.1:29500".parse().unwrap()), "127.0.0.1:29500 (interface lo)");
        if linux::interface_of(Ipv6Addr::LOCALHOST.into()).is_none() {
            // Past the test runner, which hides what a passing test prints.
            return drop(writeln!(std::io::stderr(), "skipped: this machine has no IPv6"));
        }
        assert_eq!(route("[::1]:29500".parse().unwrap()), " from ::1 (interface lo)");
        assert_eq!(describe("[::1]:29500".parse().unwrap()), "[::1]:29500 (interface lo)");
    }
}
