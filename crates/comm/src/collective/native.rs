//! The transport's own all-reduce, currently that of MPI.
//!
//! It is not a schedule: the checker does not cover it, the order of additions is up to the library, and a late rank cannot
//! be identified. A lost rank ends it like any other operation; after a timeout all other ranks are suspects. Its messages
//! carry no tag, so ranks that reduce different tensors are not detected.

use crate::transport::{Cause, Interest, IoProgress, Tag, Transport, TransportError, WaitState};
use std::time::Duration;

/// Sums `buffer` over all ranks, in place, within `deadline`; all ranks must call it with buffers of the same length.
///
/// After an error the buffer's contents are unspecified.
pub fn all_reduce(
    transport: &mut dyn Transport,
    tag: Tag,
    buffer: &mut [f32],
    deadline: Duration,
) -> Result<(), TransportError> {
    let mut wait_state = WaitState::new(transport.now(), deadline);
    let (rank, world) = (transport.rank(), transport.world());
    // No frame is expected: a rank that is done may leave before this one is.
    let wanted = vec![Interest::default(); world];
    loop {
        let moved = match transport.native_all_reduce(tag, buffer)? {
            IoProgress::Complete => return Ok(()),
            IoProgress::Partial => true,
            IoProgress::Blocked => false,
        };
        transport.wait(&mut wait_state, &wanted, moved).map_err(|error| match error.cause {
            // The late rank is unknown: no rank is blamed, all are suspects.
            Cause::Silent { waited } => TransportError {
                peer: None,
                cause: Cause::Silent { waited },
                suspects: (0..world).filter(|&peer| peer != rank).collect(),
            },
            _ => error,
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mesh;

    #[test]
    fn a_transport_without_an_all_reduce_returns_an_error() {
        let mut ranks = mesh(2);
        assert!(!ranks[0].has_native_all_reduce());
        let tag = Tag { generation: 1, operation: 1, ..Tag::default() };
        let error = all_reduce(&mut ranks[0], tag, &mut [1.0], Duration::ZERO).expect_err("no all-reduce");
        assert!(matches!(&error.cause, Cause::Protocol(what) if what.contains("no all-reduce")), "{error}");
    }
}
