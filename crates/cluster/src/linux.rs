//! What only Linux has, or spells its own way: host names, network interfaces, signals to process groups.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::net::IpAddr;

/// The name of this machine; `THALWEG_HOST` overrides it.
pub fn host_name() -> String {
    std::env::var("THALWEG_HOST").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| {
        nix::unistd::gethostname()
            .map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned())
    })
}

/// The network interface that has an address, such as `lo` or `eth0`.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    interfaces
        .into_iter()
        .find(|interface| interface.address.as_ref().and_then(ip) == Some(address))
        .map(|i| i.interface_name)
}

/// The first address of this machine that is not loopback, IPv4 before IPv6.
pub fn outward_address() -> Option<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().ok()?;
    let mut found: Vec<IpAddr> = addresses
        .filter_map(|interface| interface.address.as_ref().and_then(ip))
        .filter(|ip| !ip.is_loopback())
        .collect();
    found.sort_by_key(|address| address.is_ipv6());
    found.into_iter().next()
}

fn ip(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip()));
    }
    address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))
}

/// Ends a process and all that it started, at once. It must lead its own process group.
pub fn kill_group(process: u32) {
    // A group that is gone already is what we want: nothing to do about an error.
    let _ = killpg(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// The name of a signal: `SIGKILL`.
pub fn signal_name(number: i32) -> &'static str {
    Signal::try_from(number).map_or("an unknown signal", |signal| signal.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_on_lo() {
        assert_eq!(interface_of(IpAddr::from([127, 0, 0, 1])).as_deref(), Some("lo"));
        assert_eq!(interface_of(IpAddr::from([192, 0, 2, 1])), None);
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(-1), "an unknown signal");
    }
}
