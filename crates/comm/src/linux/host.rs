//! Name and addresses of this machine.

use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;

/// The name of this machine; `THALWEG_HOST` overrides it.
pub fn host_name() -> String {
    std::env::var("THALWEG_HOST").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| {
        nix::unistd::gethostname()
            .map_or_else(|_| "localhost".into(), |name| name.to_string_lossy().into_owned())
    })
}

/// The network interface with this address, such as `lo` or `eth0`.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let interfaces = nix::ifaddrs::getifaddrs().ok()?;
    interfaces
        .into_iter()
        .find(|interface| interface.address.as_ref().and_then(ip) == Some(address))
        .map(|i| i.interface_name)
}

/// Addresses by which other machines may reach this one, each with its interface, IPv4 before IPv6. Without loopback,
/// link-local addresses and interfaces that are down.
pub fn outward_addresses() -> Vec<(IpAddr, String)> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let mut found: Vec<(IpAddr, String)> = interfaces
        .filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP))
        .filter_map(|interface| Some((ip(interface.address.as_ref()?)?, interface.interface_name)))
        .filter(|(address, _)| is_outward(*address))
        .collect();
    found.sort_by_key(|(address, _)| address.is_ipv6());
    found
}

fn is_outward(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !link_local && !address.is_loopback()
}

fn ip(address: &nix::sys::socket::SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(IpAddr::V4(v4.ip()));
    }
    address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))
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
    fn loopback_and_link_local_addresses_are_not_outward() {
        for (address, outward) in [
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("fe80::1", false),
            ("::1", false),
            ("10.0.0.1", true),
            ("fd00::1", true),
        ] {
            assert_eq!(is_outward(address.parse().unwrap()), outward, "{address}");
        }
        assert!(outward_addresses().iter().all(|(address, _)| interface_of(*address).is_some()));
    }
}
