//! A rendezvous endpoint as text: `HOST:PORT`, `HOST:FIRST-LAST` for one of several ports, or `@FILE` if rank 0 writes
//! its address there.

use crate::engine::environment::RendezvousEndpoint;
use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use thalweg_core::error::os_message;

/// Prefix of a file name.
const FILE: char = '@';

/// Largest number of bytes read as an address.
const MAX_ADDRESS: u64 = 512;

/// The text of an endpoint; None if only the launcher knows the address.
pub fn to_text(endpoint: &RendezvousEndpoint) -> Option<String> {
    match endpoint {
        RendezvousEndpoint::At { host, port, last } if port == last => Some(format!("{host}:{port}")),
        RendezvousEndpoint::At { host, port, last } => Some(format!("{host}:{port}-{last}")),
        RendezvousEndpoint::InFile(path) => Some(format!("{FILE}{}", path.display())),
        RendezvousEndpoint::ByLauncher => None,
    }
}

/// The addresses to try, in order, or why there are none at present.
pub fn resolve(endpoint: &str) -> Result<Vec<SocketAddr>, String> {
    if let Some(path) = endpoint.strip_prefix(FILE) {
        let address = read(Path::new(path))?;
        return lookup(&address).map_err(|why| format!("{address} (from {path}): {why}"));
    }
    lookup(endpoint).map_err(|why| format!("{endpoint}: {why}"))
}

/// The file may not exist yet, or may be left from an earlier attempt.
fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    crate::regular_file::open(path)
        .and_then(|file| file.take(MAX_ADDRESS).read_to_string(&mut text))
        .map_err(|error| format!("the address in {}: {}", path.display(), os_message(&error)))?;
    match text.trim() {
        "" => Err(format!("the address in {}: the file is empty", path.display())),
        address => Ok(address.to_string()),
    }
}

fn lookup(endpoint: &str) -> Result<Vec<SocketAddr>, String> {
    let unknown = |why: String| format!("the name does not resolve{why}");
    let range = endpoint.rsplit_once(':').and_then(|(host, ports)| {
        let (first, last) = ports.split_once('-')?;
        Some((host, first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?))
    });
    let found: std::io::Result<Vec<SocketAddr>> = match range {
        Some((host, ports)) => (host, 0u16).to_socket_addrs().map(|addresses| {
            let all =
                |address: SocketAddr| ports.clone().map(move |port| SocketAddr::new(address.ip(), port));
            addresses.flat_map(all).collect()
        }),
        None => endpoint.to_socket_addrs().map(Iterator::collect),
    };
    let found = found.map_err(|error| unknown(format!(": {}", os_message(&error))))?;
    if found.is_empty() { Err(unknown(String::new())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_tried_in_order_and_files_are_read_each_time() {
        let several = RendezvousEndpoint::At { host: "127.0.0.1".into(), port: 29501, last: 29503 };
        let ports = resolve(&to_text(&several).unwrap()).unwrap();
        assert_eq!(ports.iter().map(SocketAddr::port).collect::<Vec<_>>(), [29501, 29502, 29503]);
        assert_eq!(to_text(&RendezvousEndpoint::at("n1", 7)).unwrap(), "n1:7");
        assert_eq!(to_text(&RendezvousEndpoint::ByLauncher), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("address");
        let endpoint = to_text(&RendezvousEndpoint::InFile(path.clone())).unwrap();
        assert!(resolve(&endpoint).unwrap_err().contains("no such file"), "{:?}", resolve(&endpoint));
        std::fs::write(&path, "").unwrap();
        assert!(resolve(&endpoint).unwrap_err().ends_with("the file is empty"));
        std::fs::write(&path, "127.0.0.1:4711\n").unwrap();
        assert_eq!(resolve(&endpoint).unwrap(), ["127.0.0.1:4711".parse().unwrap()]);
        assert!(resolve("no-such-host.invalid:1-3").unwrap_err().contains("does not resolve"));
        assert!(resolve("127.0.0.1:9-1").is_err());
    }
}
