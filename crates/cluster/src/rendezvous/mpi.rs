//! Ranks that have met go on over the MPI whose launcher started them.
//!
//! MPI is entered only now: it waits for all ranks without a deadline, and by now they are all there and pulses tell who is
//! not any more. The connections they have to each other stay, as sentinels.

use super::mesh::Group;
use super::neighbourhood::Connected;
use std::net::TcpStream;
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Result};

/// Refuses what this build cannot do.
pub fn check(carrier: Carrier) -> Result<()> {
    if carrier == Carrier::Mpi && !cfg!(feature = "mpi") {
        return Err(Error::job("the transport `mpi` is not part of this build of thalweg").hint(
            "build it on the cluster, with mpicc and libclang at hand: cargo build --release --features mpi",
        ));
    }
    Ok(())
}

/// What to do about a rank that MPI knows nothing of.
pub const START_WITH_MPIRUN: &str =
    "let MPI's own launcher start the ranks, that of the MPI thalweg was built with: mpirun -n 4 thalweg ...";

/// Enters MPI, together with all other ranks.
#[cfg(feature = "mpi")]
pub(super) fn settle(
    group: &Group<'_>,
    peers: Vec<Option<TcpStream>>,
    neighbours: usize,
) -> Result<Connected> {
    use thalweg_comm::transport::mpi::{Library, Mpi};
    use thalweg_core::Kind;
    let broken = |error: std::io::Error| Error::io("cannot use MPI", &error);
    let (rank, world) = (group.place, group.roster.members.len());
    let library = Library::enter().map_err(broken)?;
    let (known, all) = library.place();
    if (known, all) != (rank, world) {
        let message = format!("this is rank {rank} of {world}, but MPI takes it for rank {known} of {all}");
        return Err(Error::new(Kind::Rendezvous, message).hint(START_WITH_MPIRUN));
    }
    let all = library.group(world).map_err(broken)?;
    let all = all.ok_or_else(|| Error::internal("MPI has no group of all ranks"))?;
    let transport = Mpi::new(all, peers, neighbours, Some(library)).map_err(broken)?;
    Ok(Connected { transport: Box::new(transport), neighbours: Vec::new(), carrier: "mpi" })
}

/// There is no MPI in this build.
#[cfg(not(feature = "mpi"))]
pub(super) fn settle(
    group: &Group<'_>,
    _peers: Vec<Option<TcpStream>>,
    _neighbours: usize,
) -> Result<Connected> {
    check(group.invitation.carrier)?;
    Err(Error::internal("only the transport `mpi` needs MPI"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_mpi_says_how_to_get_one_with_it() {
        assert!(check(Carrier::Auto).is_ok() && check(Carrier::Tcp).is_ok());
        let refused = check(Carrier::Mpi).err();
        assert_eq!(refused.is_none(), cfg!(feature = "mpi"));
        assert!(refused.is_none_or(|error| error.hint.is_some_and(|hint| hint.contains("--features mpi"))));
    }
}
