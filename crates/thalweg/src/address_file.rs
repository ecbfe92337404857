//! `--address-file`: the address of rank 0 in a file, for ranks that cannot know its port in advance.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thalweg_cluster::durable;
use thalweg_cluster::engine::environment::{RankEnvironment, RendezvousEndpoint};
use thalweg_cluster::regular_file;
use thalweg_core::{Error, Result};

/// A file that holds `HOST:PORT`; removed when this is dropped.
pub struct AddressFile {
    path: PathBuf,
    line: String,
}

impl AddressFile {
    /// Writes the file atomically: a reader sees a complete address or no file.
    pub fn write(path: &Path, address: &str) -> Result<AddressFile> {
        let line = format!("{address}\n");
        durable::write_atomically(path, line.as_bytes())?;
        Ok(AddressFile { path: path.to_path_buf(), line })
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // A later attempt of the job may have replaced it.
        if regular_file::read_to_string(&self.path).is_ok_and(|text| text == self.line) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The address that other ranks connect to: for a listener on all interfaces, the host name of the rendezvous.
pub fn reachable(bound: &str, endpoint: &RendezvousEndpoint) -> String {
    match (bound.parse::<SocketAddr>(), endpoint) {
        (Ok(address), RendezvousEndpoint::At { host, .. }) if address.ip().is_unspecified() => {
            format!("{host}:{}", address.port())
        }
        _ => bound.into(),
    }
}

/// With `MASTER_PORT=0`, where rank 0 takes any free port, the other ranks read its address from the file.
pub fn resolve_port(rank_env: RankEnvironment, file: Option<&Path>) -> Result<RankEnvironment> {
    let any_port = matches!(rank_env.endpoint, RendezvousEndpoint::At { port: 0, .. });
    match file {
        _ if !any_port || rank_env.world == 1 => Ok(rank_env),
        Some(_) if rank_env.rank == 0 => Ok(rank_env),
        Some(path) => Ok(RankEnvironment { endpoint: RendezvousEndpoint::InFile(path.to_path_buf()), ..rank_env }),
        None => Err(Error::job("MASTER_PORT=0: the other ranks do not know which port rank 0 takes").hint(
            "give every rank the same --address-file FILE, on a file system that all share: rank 0 writes its address there",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_a_complete_address_and_is_removed_with_the_job() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("address");
        std::fs::write(&path, "of an earlier attempt").unwrap();
        let file = AddressFile::write(&path, "n1:4711").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "n1:4711\n");
        drop(file);
        assert!(!path.exists());
        assert!(AddressFile::write(&folder.path().join("no/such/folder"), "n1:1").is_err());
    }

    #[test]
    fn rank_0_writes_and_the_others_read() {
        let rank_env = |rank, port| RankEnvironment {
            rank,
            world: 2,
            endpoint: RendezvousEndpoint::at("n1", port),
            local: false,
            launcher: "test",
            joins: false,
            run: String::new(),
        };
        let file = Path::new("/shared/address");
        assert_eq!(
            resolve_port(rank_env(0, 0), Some(file)).unwrap().endpoint,
            RendezvousEndpoint::at("n1", 0)
        );
        assert_eq!(
            resolve_port(rank_env(1, 0), Some(file)).unwrap().endpoint,
            RendezvousEndpoint::InFile(file.into())
        );
        assert_eq!(
            resolve_port(rank_env(1, 7), Some(file)).unwrap().endpoint,
            RendezvousEndpoint::at("n1", 7)
        );
        assert!(resolve_port(rank_env(1, 0), None).unwrap_err().hint.unwrap().contains("--address-file"));
        assert!(resolve_port(RankEnvironment { world: 1, ..rank_env(0, 0) }, None).is_ok());
        assert_eq!(reachable("0.0.0.0:5", &RendezvousEndpoint::at("n1", 0)), "n1:5");
        assert_eq!(reachable("127.0.0.1:5", &RendezvousEndpoint::at("localhost", 0)), "127.0.0.1:5");
        assert_eq!(reachable("127.0.0.1:5", &RendezvousEndpoint::ByLauncher), "127.0.0.1:5");
    }
}
