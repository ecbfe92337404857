//! Faults that somebody asked for: they happen to this rank at the beginning of a step.

use crate::linux;
use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::transport::Transport;
use thalweg_core::event::Event;
use thalweg_core::spec::inject::{Fault, Mischief};

/// How long a rank that is about to die waits for its last words to be on their way.
const LAST_WORDS: Duration = Duration::from_millis(20);

impl Rank {
    /// These are to happen to ranks of this job; the ones of this rank are kept.
    pub fn expect_faults(&self, faults: &[Fault]) {
        let mine = faults.iter().filter(|fault| fault.rank == self.number());
        mine.for_each(|fault| self.parts.beacon.inject(fault.clone()));
    }

    /// What happens now, at the beginning of this step. Killing, stopping, cutting and corrupting are done; what concerns
    /// the rank's own work (a slow computer, a full disk) is the program's to act out, and returned.
    pub fn suffer(&mut self, step: u64) -> Option<Mischief> {
        let fault = self.parts.beacon.take_fault(step)?;
        self.emit(Event::Struck { step, kind: fault.kind.name().into() });
        let next = (self.index() + 1) % self.world();
        match fault.kind {
            Mischief::Kill => {
                std::thread::sleep(LAST_WORDS);
                linux::kill_self();
            }
            Mischief::Stop => {
                std::thread::sleep(LAST_WORDS);
                linux::stop_self();
            }
            Mischief::Cut => self.parts.transport.sever(next),
            Mischief::Corrupt => self.parts.transport.scramble(next),
            Mischief::Slow | Mischief::DiskFull => return Some(fault.kind),
        }
        None
    }
}
