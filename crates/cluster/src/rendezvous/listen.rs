//! Where a coordinator listens: at an address of its own host, on the first port that is free of those it may take.

use super::{REMINDER, local_token};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use thalweg_core::error::plain_words;
use thalweg_core::{Error, Kind, Result};

/// How often a name that does not resolve is looked up again.
const PAUSE: Duration = Duration::from_millis(200);

/// After that time it is said for the first time.
const SOON: Duration = Duration::from_secs(1);

/// Where rank 0 is to listen, as its launcher says it.
pub struct Site<'a> {
    /// Name or address.
    pub host: &'a str,
    /// The ports it may take.
    pub ports: RangeInclusive<u16>,
    /// Whether all ranks are on this machine.
    pub local: bool,
    /// The shared secret.
    pub token: &'a [u8],
    /// How long to look the name up: that of a pod is often known only after the pod has begun.
    pub deadline: Duration,
}

/// Listens there.
pub fn open(site: &Site<'_>, say: &dyn Fn(String)) -> Result<TcpListener> {
    let ip = look_up(site, say)?;
    let explicit_loopback =
        site.host == "localhost" || site.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    // Without a token only this host is served, which is what its own name may lead to.
    let only_here = explicit_loopback || (site.token.is_empty() && ip.is_loopback());
    let elsewhere = !site.local && !only_here;
    if elsewhere && site.token.is_empty() {
        return Err(local_token::missing(&format!("{} ({ip})", site.host)));
    }
    // If others come from elsewhere, on all addresses: a host's own name often leads to one that only it can use.
    let ip = match (elsewhere, ip) {
        (false, ip) => ip,
        (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    };
    first_free(ip, site.ports.clone())
}

/// The first of these ports that is free.
pub fn first_free(ip: IpAddr, ports: RangeInclusive<u16>) -> Result<TcpListener> {
    let (first, last) = (*ports.start(), *ports.end());
    for port in ports {
        let address = SocketAddr::new(ip, port);
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(Error::new(
                    Kind::Rendezvous,
                    format!("cannot listen on {address}: {}", plain_words(&error)),
                )
                .hint("MASTER_ADDR must be an address of the host that runs rank 0"));
            }
        }
    }
    let (which, who) = if first == last {
        (format!("port {first} of {ip} is in use"), "another job listens there")
    } else {
        (format!("ports {first} to {last} of {ip} are in use"), "other jobs listen there")
    };
    Err(Error::new(Kind::Rendezvous, format!("{which}: {who}"))
        .hint("wait for that job, or give this one another port with MASTER_PORT or --set engine.port=N"))
}

/// The address of rank 0's own name.
fn look_up(site: &Site<'_>, say: &dyn Fn(String)) -> Result<IpAddr> {
    let (host, start, mut reminder) = (site.host, Instant::now(), SOON);
    loop {
        let why = match (host, 0).to_socket_addrs().map(|mut found| found.next()) {
            Ok(Some(address)) => return Ok(address.ip()),
            Ok(None) => String::new(),
            Err(error) => format!(": {}", plain_words(&error)),
        };
        let waited = start.elapsed();
        if waited >= site.deadline {
            let words = format!("the name {host} does not resolve (tried for {} s){why}", waited.as_secs());
            return Err(Error::new(Kind::Rendezvous, words)
                .hint("MASTER_ADDR must be a name or an address of the host that runs rank 0"));
        }
        if waited >= reminder {
            reminder = waited + REMINDER;
            say(format!(
                "the name {host} of rank 0's own host does not resolve yet (for {} s){why}",
                waited.as_secs()
            ));
        }
        std::thread::sleep(PAUSE.min(site.deadline.saturating_sub(waited)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn site<'a>(host: &'a str, ports: RangeInclusive<u16>, token: &'a [u8]) -> Site<'a> {
        Site { host, ports, local: false, token, deadline: Duration::ZERO }
    }

    #[test]
    fn the_first_free_port_is_taken_and_occupied_ones_are_named() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        let error = open(&site("127.0.0.1", port..=port, b""), &|_| {}).unwrap_err();
        assert_eq!(error.message, format!("port {port} of 127.0.0.1 is in use: another job listens there"));
        // Ports of the system's choice may be next to each other, but not sixteen of them.
        let last = port.saturating_add(15);
        let listener = open(&site("localhost", port..=last, b""), &|_| {}).unwrap();
        assert!((port..=last).contains(&listener.local_addr().unwrap().port()));
    }

    #[test]
    fn other_hosts_are_served_with_a_token_whatever_the_name_leads_to() {
        let error = open(&site("192.0.2.1", 0..=0, b""), &|_| {}).unwrap_err();
        assert!(error.message.contains("there is no token"), "{error}");
        // A host's own name may be 127.0.1.1 to itself, and another address to the others.
        let own = crate::linux::host_name();
        if (own.as_str(), 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()) {
            let everywhere = open(&site(&own, 0..=0, b"secret"), &|_| {}).unwrap();
            assert!(everywhere.local_addr().unwrap().ip().is_unspecified());
        }
        let here = open(&site("127.0.0.1", 0..=0, b"secret"), &|_| {}).unwrap();
        assert!(here.local_addr().unwrap().ip().is_loopback());
    }

    #[test]
    fn a_name_is_looked_up_until_the_deadline() {
        let said = RefCell::new(Vec::new());
        let patient = Site {
            deadline: SOON + Duration::from_millis(500),
            ..site("no-such-host.invalid", 1..=1, b"secret")
        };
        let error = open(&patient, &|words| said.borrow_mut().push(words)).unwrap_err();
        assert!(error.message.contains("does not resolve (tried for "), "{error}");
        assert_eq!(error.kind, Kind::Rendezvous);
        // A slow resolver leaves no time to say that it is tried again.
        let said = said.borrow();
        assert!(
            said.iter().all(|words| words.contains("no-such-host.invalid of rank 0's own host")),
            "{said:?}"
        );
    }
}
