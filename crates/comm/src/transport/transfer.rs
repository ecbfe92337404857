//! Lists of sends and receives, carried out at once.

use super::{Company, Fault, Incoming, Interest, Moved, Outgoing, Tag, Transport, Vigil};
use std::time::Duration;

/// See [`Transport::transfer`].
pub(super) fn transfer<T: Transport + ?Sized>(
    transport: &mut T,
    tag: Tag,
    sends: &[Outgoing<'_>],
    receives: &mut [Incoming<'_>],
    deadline: Duration,
) -> Result<(), Fault> {
    let mut vigil = Vigil::new(transport.now(), deadline);
    let mut wanted = vec![Interest::default(); transport.world()];
    let mut unsent: Vec<usize> = (0..sends.len()).collect();
    let mut awaited: Vec<usize> = (0..receives.len()).collect();
    loop {
        let mut moved = false;
        wanted.fill(Interest::default());
        let mut fault = None;
        let mut note = |outcome: Result<Moved, Fault>| match outcome {
            Ok(progress) => {
                moved |= progress != Moved::Nothing;
                progress != Moved::Whole
            }
            Err(error) => {
                fault.get_or_insert(error);
                true
            }
        };
        // Of several frames from or to one rank only the first is tried; the others wait for it.
        awaited.retain(|&index| {
            let Incoming { from, chunk, ref mut bytes } = receives[index];
            let first =
                wanted.get_mut(from).is_none_or(|interest| !std::mem::replace(&mut interest.read, true));
            let frame = Incoming { from, chunk, bytes };
            let open = !first || note(transport.receive(tag, frame, Company::Alone));
            if let Some(interest) = wanted.get_mut(from) {
                interest.read = open;
            }
            open
        });
        unsent.retain(|&index| {
            let to = sends[index].to;
            let first =
                wanted.get_mut(to).is_none_or(|interest| !std::mem::replace(&mut interest.write, true));
            let open = !first || note(transport.send(tag, sends[index]));
            if let Some(interest) = wanted.get_mut(to) {
                interest.write = open;
            }
            open
        });
        if let Some(fault) = fault {
            return Err(fault);
        }
        if unsent.is_empty() && awaited.is_empty() {
            return Ok(());
        }
        transport.attend(&mut vigil, &wanted, moved)?;
    }
}
