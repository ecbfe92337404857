//! Where a job listens, in a file: for whoever starts ranks that cannot know it beforehand (`--address-file`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thalweg_cluster::durable;
use thalweg_cluster::engine::environment::{Meeting, Place};
use thalweg_cluster::regular;
use thalweg_core::{Error, Result};

/// A file that holds `HOST:PORT` for as long as the job runs.
pub struct AddressFile {
    path: PathBuf,
    line: String,
}

impl AddressFile {
    /// Writes it: whoever reads it finds a whole address, or none.
    pub fn write(path: &Path, address: &str) -> Result<AddressFile> {
        let line = format!("{address}\n");
        durable::write_atomically(path, line.as_bytes())?;
        Ok(AddressFile { path: path.to_path_buf(), line })
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // A later attempt may have written its own.
        if regular::read_to_string(&self.path).is_ok_and(|text| text == self.line) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The address by which others reach a listener: one that listens on all addresses has the name it was given.
pub fn reachable(bound: &str, meeting: &Meeting) -> String {
    match (bound.parse::<SocketAddr>(), meeting) {
        (Ok(address), Meeting::At { host, .. }) if address.ip().is_unspecified() => {
            format!("{host}:{}", address.port())
        }
        _ => bound.into(),
    }
}

/// The place of a rank whose rank 0 takes any port (`MASTER_PORT=0`): it is found in the file.
pub fn look_in(place: Place, file: Option<&Path>) -> Result<Place> {
    let any_port = matches!(place.meeting, Meeting::At { port: 0, .. });
    match file {
        _ if !any_port || place.world == 1 => Ok(place),
        Some(_) if place.rank == 0 => Ok(place),
        Some(path) => Ok(Place { meeting: Meeting::InFile(path.to_path_buf()), ..place }),
        None => Err(Error::job("MASTER_PORT=0: the other ranks do not know which port rank 0 takes").hint(
            "give every rank the same --address-file FILE, on a file system that all share: rank 0 writes its address there",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_a_whole_address_and_goes_with_the_job() {
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
    fn who_reads_and_who_writes_it() {
        let place = |rank, port| Place {
            rank,
            world: 2,
            meeting: Meeting::at("n1", port),
            local: false,
            launcher: "test",
            joins: false,
            run: String::new(),
        };
        let file = Path::new("/shared/address");
        assert_eq!(look_in(place(0, 0), Some(file)).unwrap().meeting, Meeting::at("n1", 0));
        assert_eq!(look_in(place(1, 0), Some(file)).unwrap().meeting, Meeting::InFile(file.into()));
        assert_eq!(look_in(place(1, 7), Some(file)).unwrap().meeting, Meeting::at("n1", 7));
        assert!(look_in(place(1, 0), None).unwrap_err().hint.unwrap().contains("--address-file"));
        assert!(look_in(Place { world: 1, ..place(0, 0) }, None).is_ok());
        assert_eq!(reachable("0.0.0.0:5", &Meeting::at("n1", 0)), "n1:5");
        assert_eq!(reachable("127.0.0.1:5", &Meeting::at("localhost", 0)), "127.0.0.1:5");
        assert_eq!(reachable("127.0.0.1:5", &Meeting::ByLauncher), "127.0.0.1:5");
    }
}
