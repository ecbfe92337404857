//! Errors of a joining rank about its coordinator.

use std::io;
use thalweg_core::error::os_message;
use thalweg_core::{Culprit, Error, Kind};

/// Why a rank could not join.
#[derive(Clone, Debug, PartialEq)]
pub enum JoinError {
    /// The coordinator was lost, or its role has moved: another may take the rank.
    CoordinatorLost(Error),
    /// It refused, or cannot be reached.
    Final(Error),
}

impl From<Error> for JoinError {
    fn from(error: Error) -> JoinError {
        JoinError::Final(error)
    }
}

impl From<JoinError> for Error {
    fn from(error: JoinError) -> Error {
        match error {
            JoinError::CoordinatorLost(error) | JoinError::Final(error) => error,
        }
    }
}

/// Whether the peer closed the connection.
pub(super) fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// The connection to rank 0 was lost during the rendezvous. Only witness evidence: rank 0's launcher knows the cause.
pub(super) fn coordinator_lost(error: &io::Error, rank: usize, coordinator: &str) -> JoinError {
    let (how, why) = match error.kind() {
        _ if is_disconnect(error) => ("vanished", "its connection closed without a goodbye".to_string()),
        io::ErrorKind::InvalidData => ("broke the protocol", os_message(error)),
        _ => ("was lost", os_message(error)),
    };
    let message = format!(
        "{} at {coordinator} {how} while rank {rank} waited for the others: {why}",
        coordinator_name(rank)
    );
    JoinError::CoordinatorLost(blame(Error::new(Kind::RankFailed, message), rank, format!("{how}: {why}")))
}

/// Rank 0 was connected and then sent nothing until the deadline.
pub(super) fn coordinator_silent(coordinator: &str, rank: usize) -> Error {
    let error =
        Error::new(Kind::Rendezvous, format!("{} at {coordinator} does not answer", coordinator_name(rank)))
            .hint("it accepted the connection, but sends nothing: is it stopped?");
    blame(error, rank, "does not answer".into())
}

/// The coordinator's name in errors of `rank`: rank 0 joins another coordinator only after the role has moved.
fn coordinator_name(rank: usize) -> &'static str {
    if rank == 0 { "the coordinator" } else { "rank 0" }
}

/// Blames rank 0, unless this is rank 0 itself.
fn blame(error: Error, rank: usize, cause: String) -> Error {
    match rank {
        0 => error,
        _ => error.blame(Culprit {
            rank: 0,
            operation: Some("rendezvous".into()),
            cause,
            ..Culprit::default()
        }),
    }
}
