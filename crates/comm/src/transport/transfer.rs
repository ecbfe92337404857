//! Runs a list of sends and receives concurrently.

use super::{Incoming, Interest, IoProgress, MatchMode, Outgoing, Tag, Transport, TransportError, WaitState};
use std::time::Duration;

/// See [`Transport::transfer`].
pub(super) fn transfer<T: Transport + ?Sized>(
    transport: &mut T,
    tag: Tag,
    sends: &[Outgoing<'_>],
    receives: &mut [Incoming<'_>],
    deadline: Duration,
) -> Result<(), TransportError> {
    let mut wait_state = WaitState::new(transport.now(), deadline);
    let mut wanted = vec![Interest::default(); transport.world()];
    let mut unsent: Vec<usize> = (0..sends.len()).collect();
    let mut unreceived: Vec<usize> = (0..receives.len()).collect();
    loop {
        let mut moved = false;
        wanted.fill(Interest::default());
        let mut failure = None;
        let mut is_pending = |outcome: Result<IoProgress, TransportError>| match outcome {
            Ok(progress) => {
                moved |= progress != IoProgress::Blocked;
                progress != IoProgress::Complete
            }
            Err(error) => {
                failure.get_or_insert(error);
                true
            }
        };
        // Of several frames from or to one rank only the first is tried; the others queue behind it.
        unreceived.retain(|&index| {
            let Incoming { from, chunk, ref mut bytes } = receives[index];
            let first =
                wanted.get_mut(from).is_none_or(|interest| !std::mem::replace(&mut interest.read, true));
            let frame = Incoming { from, chunk, bytes };
            let pending = !first || is_pending(transport.receive(tag, frame, MatchMode::Exact));
            if let Some(interest) = wanted.get_mut(from) {
                interest.read = pending;
            }
            pending
        });
        unsent.retain(|&index| {
            let to = sends[index].to;
            let first =
                wanted.get_mut(to).is_none_or(|interest| !std::mem::replace(&mut interest.write, true));
            let pending = !first || is_pending(transport.send(tag, sends[index]));
            if let Some(interest) = wanted.get_mut(to) {
                interest.write = pending;
            }
            pending
        });
        if let Some(error) = failure {
            return Err(error);
        }
        if unsent.is_empty() && unreceived.is_empty() {
            return Ok(());
        }
        transport.wait(&mut wait_state, &wanted, moved)?;
    }
}
