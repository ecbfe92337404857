//! Checks of sockets and names: loopback, the port of the rendezvous, and the address of every host.

use super::check::Check;
use super::hosts::is_local;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use thalweg_cluster::engine::environment::{PORT, RankEnvironment, RendezvousEndpoint};
use thalweg_cluster::linux::host_name;
use thalweg_cluster::rendezvous::handshake;
use thalweg_cluster::rendezvous::timed::Timed;
use thalweg_core::{Error, JobSpec, Result};

/// Timeout of a connection, a read, and a name lookup.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of the handshake with a running job.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// Round trips over loopback.
const ROUNDS: usize = 200;

/// Opens a listener; errors have a hint.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let plain = Error::io(format_args!("cannot listen on {address}"), &error);
        match error.kind() {
            ErrorKind::AddrInUse => plain.hint("choose another port"),
            ErrorKind::AddrNotAvailable => plain.hint("use a name or address of this host"),
            _ => plain,
        }
    })
}

/// Measures the round trip over loopback.
pub(super) fn loopback() -> Check {
    const NAME: &str = "loopback";
    match round_trip() {
        Ok(median) => {
            Check::ok(NAME, format!("{:.0} microseconds per round trip", median.as_secs_f64() * 1e6))
        }
        Err(error) => Check::fail(
            NAME,
            format!("no connection from this machine to itself: {error}"),
            "bring the interface up (ip link set lo up) and let a firewall or sandbox pass 127.0.0.1",
        ),
    }
}

/// Median round trip of one byte.
fn round_trip() -> std::io::Result<Duration> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut byte = [0];
        for _ in 0..ROUNDS {
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    listener.set_nonblocking(true)?;
    let mut stream = accept_within(&listener, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut times = Vec::with_capacity(ROUNDS);
    let mut byte = [0];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        times.push(start.elapsed());
    }
    echo.join().map_err(|_| std::io::Error::other("the other end was lost"))??;
    times.sort();
    Ok(times[ROUNDS / 2])
}

/// Accepts a connection on a nonblocking listener, with a timeout; the stream is blocking.
pub(super) fn accept_within(listener: &TcpListener, timeout: Duration) -> std::io::Result<TcpStream> {
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < timeout => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether the port of the rendezvous is free on this machine.
pub(super) fn port(spec: &JobSpec, rank_env: Option<&RankEnvironment>) -> Check {
    let (port, needed) = match rank_env {
        // A range of ports: one free port is enough.
        Some(RankEnvironment { endpoint: RendezvousEndpoint::At { port, last, .. }, .. }) if port != last => {
            (*port, false)
        }
        Some(RankEnvironment { rank: 0, endpoint: RendezvousEndpoint::At { port, .. }, .. }) => (*port, true),
        Some(RankEnvironment { endpoint: RendezvousEndpoint::At { port, .. }, .. }) => (*port, false),
        _ if spec.engine.port > 0 => (u16::try_from(spec.engine.port).unwrap_or(PORT), true),
        _ => (PORT, false),
    };
    let name = format!("port {port}");
    let host = match rank_env {
        Some(RankEnvironment { endpoint: RendezvousEndpoint::At { host, .. }, .. }) => host,
        _ => "127.0.0.1",
    };
    let advice = "end the job that holds it, or choose another (engine.port, or MASTER_PORT on every host)";
    match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(_) => Check::ok(&name, "free"),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_held_by_a_job(host, port) => {
            let found = "a job of thalweg listens there";
            Check::warn(
                &name,
                found,
                format!("`thalweg status {host}:{port}` shows its state; another job needs another port"),
            )
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse && needed => Check::fail(&name, "in use", advice),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Check::warn(&name, "in use; only rank 0 of a job on several hosts needs it", advice)
        }
        Err(error) => Check::fail(&name, error.to_string(), "choose a port this user may listen on"),
    }
}

/// Whether a running job of thalweg holds the port, which is no fault of the machine.
fn is_held_by_a_job(host: &str, port: u16) -> bool {
    let named = (host, port).to_socket_addrs().into_iter().flatten();
    let mut addresses = std::iter::once(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).chain(named);
    addresses.any(|address| {
        TcpStream::connect_timeout(&address, HANDSHAKE)
            .is_ok_and(|stream| handshake::is_a_job(&mut Timed::new(&stream, HANDSHAKE)))
    })
}

/// Whether the name of every host, this one included, resolves to an address.
pub(super) fn names(hosts: &[String], several: bool) -> Vec<Check> {
    let own = host_name();
    let mut checks = vec![match lookup(&own) {
        Ok(addresses) if several && addresses.iter().all(|address| address.ip().is_loopback()) => {
            Check::warn(
                &format!("name {own}"),
                format!("this host is {} to itself", list(&addresses)),
                "other hosts cannot reach rank 0 by this name if it runs here; set MASTER_ADDR to an external address",
            )
        }
        Ok(addresses) => Check::ok(&format!("name {own}"), format!("this host, {}", list(&addresses))),
        Err(reason) => Check::warn(
            &format!("name {own}"),
            format!("this host's own name: {reason}"),
            "add it to /etc/hosts or DNS; jobs on this machine alone do not need it",
        ),
    }];
    checks.extend(hosts.iter().filter(|host| **host != own && !is_local(host)).map(|host| {
        match lookup(host) {
            Ok(addresses) => Check::ok(&format!("name {host}"), list(&addresses)),
            Err(reason) => Check::fail(
                &format!("name {host}"),
                reason,
                "check the spelling, or add the name to /etc/hosts or DNS on every host",
            ),
        }
    }));
    checks
}

fn list(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
    addresses.join(", ")
}

/// Resolves a name, with a timeout.
fn lookup(host: &str) -> std::result::Result<Vec<SocketAddr>, String> {
    let (sender, answer) = mpsc::channel();
    let name = host.to_string();
    std::thread::spawn(move || {
        let found = (name.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The receiver is gone after a timeout.
        let _ = sender.send(found);
    });
    let mut addresses = match answer.recv_timeout(TIMEOUT) {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer from the resolver within {} s", TIMEOUT.as_secs())),
    };
    addresses.dedup();
    if addresses.is_empty() { Err("has no address".into()) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn loopback_is_measured() {
        let check = loopback();
        assert_eq!(check.verdict, Verdict::Ok, "{}", check.found);
        assert!(check.found.contains("microseconds"));
    }

    #[test]
    fn a_port_in_use_fails_only_if_it_is_needed_here() {
        let held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port_number = held.local_addr().unwrap().port();
        let mut spec = JobSpec::default();
        spec.engine.port = port_number.into();
        assert_eq!(port(&spec, None).verdict, Verdict::Fail);
        let rank_env = |rank| RankEnvironment {
            rank,
            world: 2,
            endpoint: RendezvousEndpoint::at("n1", port_number),
            local: false,
            launcher: "torchrun",
            joins: false,
            run: String::new(),
        };
        assert_eq!(port(&spec, Some(&rank_env(0))).verdict, Verdict::Fail);
        assert_eq!(port(&spec, Some(&rank_env(1))).verdict, Verdict::Warn);
        assert!(bind(held.local_addr().unwrap()).unwrap_err().to_string().contains("choose another port"));
    }

    #[test]
    fn a_name_without_an_address_fails() {
        let checks = names(&["127.0.0.1".into(), "no-such-host.invalid".into()], false);
        assert_eq!(checks.len(), 2, "loopback needs no name");
        assert_eq!(checks[1].verdict, Verdict::Fail);
    }
}
