//! Transport over the MPI library whose launcher started the ranks.
//!
//! MPI is initialised only after the rendezvous: it waits for all ranks without a deadline, and by then all have joined
//! and heartbeats detect the loss of one. The data connections stay open to detect lost peers.

use super::mesh::MeshConfig;
use super::shm_setup::ConnectedTransport;
use std::net::TcpStream;
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, Result};

/// Fails if `mpi` is requested from a build without it.
pub fn check(carrier: TransportChoice) -> Result<()> {
    if carrier == TransportChoice::Mpi && !cfg!(feature = "mpi") {
        return Err(Error::job("the transport `mpi` is not part of this build of thalweg").hint(
            "build it on the cluster, with mpicc and libclang at hand: cargo build --release --features mpi",
        ));
    }
    Ok(())
}

/// Hint for a rank that MPI does not know.
pub const START_WITH_MPIRUN: &str =
    "let MPI's own launcher start the ranks, that of the MPI thalweg was built with: mpirun -n 4 thalweg ...";

/// Initialises MPI, together with all other ranks.
#[cfg(feature = "mpi")]
pub(super) fn set_up(
    mesh: &MeshConfig<'_>,
    peers: Vec<Option<TcpStream>>,
    local_peers: usize,
) -> Result<ConnectedTransport> {
    use thalweg_comm::transport::mpi::{Library, Mpi};
    use thalweg_core::Kind;
    let broken = |error: std::io::Error| Error::io("cannot use MPI", &error);
    let (rank, world) = (mesh.rank, mesh.roster.members.len());
    let library = Library::init().map_err(broken)?;
    let (known, all) = library.rank_and_size();
    if (known, all) != (rank, world) {
        let message = format!("this is rank {rank} of {world}, but MPI takes it for rank {known} of {all}");
        return Err(Error::new(Kind::Rendezvous, message).hint(START_WITH_MPIRUN));
    }
    let all = library.split_group(world).map_err(broken)?;
    let all = all.ok_or_else(|| Error::internal("MPI has no group of all ranks"))?;
    let transport = Mpi::new(all, peers, local_peers, Some(library)).map_err(broken)?;
    Ok(ConnectedTransport { transport: Box::new(transport), local_peers: Vec::new(), carrier: "mpi" })
}

#[cfg(not(feature = "mpi"))]
pub(super) fn set_up(
    mesh: &MeshConfig<'_>,
    _peers: Vec<Option<TcpStream>>,
    _local_peers: usize,
) -> Result<ConnectedTransport> {
    check(mesh.join_config.carrier)?;
    Err(Error::internal("only the transport `mpi` needs MPI"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_mpi_says_how_to_get_one_with_it() {
        assert!(check(TransportChoice::Auto).is_ok() && check(TransportChoice::Tcp).is_ok());
        let refused = check(TransportChoice::Mpi).err();
        assert_eq!(refused.is_none(), cfg!(feature = "mpi"));
        assert!(refused.is_none_or(|error| error.hint.is_some_and(|hint| hint.contains("--features mpi"))));
    }
}
