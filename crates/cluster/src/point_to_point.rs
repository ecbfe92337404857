//! Point-to-point transfers that all members of a group take part in. Messages without that are in `messages.rs`.

use crate::group::{Group, Operation};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_comm::transport::{Incoming, Outgoing, Transport};
use thalweg_core::{Error, Result};

/// Largest number of values in a frame; longer transfers are split.
const MAX_FRAME_VALUES: usize = 16 << 20;

impl Group<'_> {
    /// Sends and receives values to and from any members at once. It is one operation of the group: every member must
    /// call it, with empty lists if need be.
    pub fn exchange(
        &mut self,
        kind: &str,
        name: &str,
        sends: &[(usize, &[f32])],
        receives: &mut [(usize, &mut [f32])],
    ) -> Result<Duration> {
        let size = self.size();
        let mut peers = sends.iter().map(|(to, _)| *to).chain(receives.iter().map(|(from, _)| *from));
        if let Some(unknown) = peers.find(|peer| *peer >= size) {
            let what = format!("{kind} of {name}: there is no rank {unknown} in a group of {size}");
            return Err(Error::internal(what));
        }
        let outgoing: Vec<(usize, &[f32])> = sends
            .iter()
            .flat_map(|(to, values)| values.chunks(MAX_FRAME_VALUES).map(|piece| (*to, piece)))
            .collect();
        let incoming: Vec<(usize, &mut [f32])> = receives
            .iter_mut()
            .flat_map(|(from, values)| values.chunks_mut(MAX_FRAME_VALUES).map(|piece| (*from, piece)))
            .collect();
        // The k-th piece sent to a rank is the k-th piece that rank receives from this one.
        let (to, from) = (
            sequence_numbers(outgoing.iter().map(|(to, _)| *to)),
            sequence_numbers(incoming.iter().map(|(from, _)| *from)),
        );
        let ((), took) = self.operate(kind, name, |operation| {
            let Operation { parts, group, tag, deadline } = operation;
            let ranks = group.ranks();
            let outgoing = outgoing.iter().zip(to).map(|((to, piece), chunk)| Outgoing {
                to: ranks[*to],
                chunk,
                bytes: bytemuck::cast_slice(piece),
            });
            let incoming = incoming.into_iter().zip(from).map(|((from, piece), chunk)| Incoming {
                from: ranks[from],
                chunk,
                bytes: bytemuck::cast_slice_mut(piece),
            });
            let (outgoing, mut incoming): (Vec<_>, Vec<_>) = (outgoing.collect(), incoming.collect());
            parts.transport.transfer(tag, &outgoing, &mut incoming, deadline)
        })?;
        Ok(took)
    }
}

/// For each piece the number of earlier pieces of the same peer.
fn sequence_numbers(peers: impl Iterator<Item = usize>) -> Vec<u32> {
    let mut counts = BTreeMap::new();
    let mut next = |peer: usize| {
        let count = counts.entry(peer).or_insert(0u32);
        *count += 1;
        *count - 1
    };
    peers.map(&mut next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_numbered_by_peer() {
        assert_eq!(sequence_numbers([3, 1, 3, 3, 1].into_iter()), [0, 0, 1, 2, 1]);
    }
}
