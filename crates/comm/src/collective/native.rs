//! The all-reduce of the transport itself, where it has one: that of the cluster's MPI.
//!
//! There is no schedule of ours to it, so nothing is proven about it here: which bits the sum has is the library's business,
//! and who holds it up cannot be seen from inside. A rank that is lost ends it as it ends any other operation; one that is
//! only late is among the suspects, and those are all others. It carries no tag: that all mean the same tensor is not checked.

use crate::transport::{Cause, Fault, Interest, Moved, Tag, Transport, Vigil};
use std::time::Duration;

/// Adds up `buffer` over all ranks, in place, within `deadline`; all ranks must call it with buffers of the same length.
///
/// After a fault the buffer's contents are unspecified.
pub fn all_reduce(
    transport: &mut dyn Transport,
    tag: Tag,
    buffer: &mut [f32],
    deadline: Duration,
) -> Result<(), Fault> {
    let mut vigil = Vigil::new(transport.now(), deadline);
    let (rank, world) = (transport.rank(), transport.world());
    // One that is through may leave before this rank is: none is asked for a frame.
    let wanted = vec![Interest::default(); world];
    loop {
        let moved = match transport.add_up(tag, buffer)? {
            Moved::Whole => return Ok(()),
            Moved::Part => true,
            Moved::Nothing => false,
        };
        transport.attend(&mut vigil, &wanted, moved).map_err(|fault| match fault.cause {
            // Who is late cannot be seen from inside it: nobody is blamed, everybody may be behind it.
            Cause::Silent { waited } => Fault {
                peer: None,
                cause: Cause::Silent { waited },
                suspects: (0..world).filter(|&peer| peer != rank).collect(),
            },
            _ => fault,
        })?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mesh;

    #[test]
    fn a_transport_without_one_says_so() {
        let mut ranks = mesh(2);
        assert!(!ranks[0].adds_up());
        let tag = Tag { generation: 1, operation: 1, ..Tag::default() };
        let fault = all_reduce(&mut ranks[0], tag, &mut [1.0], Duration::ZERO).expect_err("it has none");
        assert!(matches!(&fault.cause, Cause::Protocol(what) if what.contains("no all-reduce")), "{fault}");
    }
}
