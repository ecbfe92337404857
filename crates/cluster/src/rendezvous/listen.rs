//! The coordinator's listener: on an address of its own host, on the first free port of its range.

use super::{REMINDER, local_token};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use thalweg_core::error::os_message;
use thalweg_core::{Error, Kind, Result};

/// Interval between lookups of a name that does not resolve.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(200);

/// Time until the first notice about it.
const FIRST_NOTICE: Duration = Duration::from_secs(1);

/// Where rank 0 is to listen.
pub struct ListenConfig<'a> {
    /// Name or address.
    pub host: &'a str,
    /// The first free one is used.
    pub ports: RangeInclusive<u16>,
    /// Whether all ranks are on this host.
    pub local: bool,
    pub token: &'a [u8],
    /// Deadline for resolving the name: a pod's name often resolves only after the pod has started.
    pub deadline: Duration,
}

pub fn open(config: &ListenConfig<'_>, notify: &dyn Fn(String)) -> Result<TcpListener> {
    let ip = look_up(config, notify)?;
    let explicit_loopback =
        config.host == "localhost" || config.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    // Without a token only this host is served; its own name may resolve to loopback.
    let only_here = explicit_loopback || (config.token.is_empty() && ip.is_loopback());
    let elsewhere = !config.local && !only_here;
    if elsewhere && config.token.is_empty() {
        return Err(local_token::missing(&format!("{} ({ip})", config.host)));
    }
    // For ranks on other hosts, all addresses: a host's own name often resolves to one that only it can use.
    let ip = match (elsewhere, ip) {
        (false, ip) => ip,
        (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        (true, IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    };
    first_free(ip, config.ports.clone())
}

/// Listens on the first free port of the range.
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
                    format!("cannot listen on {address}: {}", os_message(&error)),
                )
                .hint("MASTER_ADDR must be an address of the host that runs rank 0"));
            }
        }
    }
    let (which, why) = if first == last {
        (format!("port {first} of {ip} is in use"), "another job listens there")
    } else {
        (format!("ports {first} to {last} of {ip} are in use"), "other jobs listen there")
    };
    Err(Error::new(Kind::Rendezvous, format!("{which}: {why}"))
        .hint("wait for that job, or give this one another port: with MASTER_PORT where the launcher sets it, otherwise with --set engine.port=N"))
}

/// Resolves the name of rank 0's own host, retrying until the deadline.
fn look_up(config: &ListenConfig<'_>, notify: &dyn Fn(String)) -> Result<IpAddr> {
    let (host, start, mut reminder) = (config.host, Instant::now(), FIRST_NOTICE);
    loop {
        let why = match (host, 0).to_socket_addrs().map(|mut found| found.next()) {
            Ok(Some(address)) => return Ok(address.ip()),
            Ok(None) => String::new(),
            Err(error) => format!(": {}", os_message(&error)),
        };
        let waited = start.elapsed();
        if waited >= config.deadline {
            let message = format!("the name {host} does not resolve (tried for {} s){why}", waited.as_secs());
            return Err(Error::new(Kind::Rendezvous, message)
                .hint("MASTER_ADDR must be a name or an address of the host that runs rank 0"));
        }
        if waited >= reminder {
            reminder = waited + REMINDER;
            notify(format!(
                "the name {host} of rank 0's own host does not resolve yet (for {} s){why}",
                waited.as_secs()
            ));
        }
        std::thread::sleep(LOOKUP_INTERVAL.min(config.deadline.saturating_sub(waited)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn config<'a>(host: &'a str, ports: RangeInclusive<u16>, token: &'a [u8]) -> ListenConfig<'a> {
        ListenConfig { host, ports, local: false, token, deadline: Duration::ZERO }
    }

    #[test]
    fn the_first_free_port_is_taken_and_occupied_ones_are_named() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        let error = open(&config("127.0.0.1", port..=port, b""), &|_| {}).unwrap_err();
        assert_eq!(error.message, format!("port {port} of 127.0.0.1 is in use: another job listens there"));
        // Ephemeral ports may be adjacent, but not sixteen of them.
        let last = port.saturating_add(15);
        let listener = open(&config("localhost", port..=last, b""), &|_| {}).unwrap();
        assert!((port..=last).contains(&listener.local_addr().unwrap().port()));
    }

    #[test]
    fn other_hosts_are_served_with_a_token_whatever_the_name_resolves_to() {
        let error = open(&config("192.0.2.1", 0..=0, b""), &|_| {}).unwrap_err();
        assert!(error.message.contains("there is no token"), "{error}");
        // A host's own name may resolve to 127.0.1.1 on itself, and to another address elsewhere.
        let own = crate::linux::host_name();
        if (own.as_str(), 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()) {
            let everywhere = open(&config(&own, 0..=0, b"secret"), &|_| {}).unwrap();
            assert!(everywhere.local_addr().unwrap().ip().is_unspecified());
        }
        let here = open(&config("127.0.0.1", 0..=0, b"secret"), &|_| {}).unwrap();
        assert!(here.local_addr().unwrap().ip().is_loopback());
    }

    #[test]
    fn a_name_is_looked_up_until_the_deadline() {
        let notices = RefCell::new(Vec::new());
        let patient = ListenConfig {
            deadline: FIRST_NOTICE + Duration::from_millis(500),
            ..config("no-such-host.invalid", 1..=1, b"secret")
        };
        let error = open(&patient, &|notice| notices.borrow_mut().push(notice)).unwrap_err();
        assert!(error.message.contains("does not resolve (tried for "), "{error}");
        assert_eq!(error.kind, Kind::Rendezvous);
        // A slow resolver leaves no time for a notice.
        let notices = notices.borrow();
        assert!(
            notices.iter().all(|notice| notice.contains("no-such-host.invalid of rank 0's own host")),
            "{notices:?}"
        );
    }
}
