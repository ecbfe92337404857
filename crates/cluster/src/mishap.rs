//! Faults that somebody asked for: they happen to this rank at the beginning of a step.

use crate::linux;
use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::transport::{Forgery, LinkFault, Transport};
use thalweg_core::event::Event;
use thalweg_core::spec::inject::{Fault, Mischief};

/// How long a rank that is about to die waits for its last words to be on their way.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// How long one turn of a livelocked rank's endless loop takes.
const LIVELOCKED: Duration = Duration::from_millis(100);

impl Rank {
    /// These are to happen to ranks of this job; the ones of this rank are kept.
    pub fn expect_faults(&self, faults: &[Fault]) {
        let mine = faults.iter().filter(|fault| fault.rank == self.number());
        mine.for_each(|fault| self.parts.beacon.inject(fault.clone()));
    }

    /// What happens now, at the beginning of this step. Most are done here, a livelock
    /// begins with the next exchange; what concerns the rank's own work (a slow computer, a full disk) is the program's to act
    /// out, and returned.
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
            Mischief::Livelock => self.livelocks = true,
            Mischief::Cut => self.parts.transport.inject(next, LinkFault::Cut),
            Mischief::CutOneWay => self.parts.transport.inject(next, LinkFault::CutOneWay),
            Mischief::Corrupt => self.parts.transport.inject(next, LinkFault::Garbage),
            Mischief::Lie => self.lie(step, next),
            // It concerns a rank on its way into the group.
            Mischief::Unreachable => {}
            Mischief::Slow | Mischief::DiskFull => return Some(fault.kind),
        }
        None
    }

    /// Tells what cannot be true, another lie at each step: the next rank gets a forged frame, or the coordinator hears of a
    /// generation that there never was.
    fn lie(&mut self, step: u64, next: usize) {
        match (Forgery::ALL.get(step as usize % (Forgery::ALL.len() + 1)), &mut self.parts.delegate) {
            (None, Some(delegate)) => delegate.misreport(),
            (forgery, _) => {
                let forgery = forgery.copied().unwrap_or(Forgery::Farewell);
                self.parts.transport.inject(next, LinkFault::Forged(forgery, self.parts.generation));
            }
        }
    }

    /// Does not return if this rank is to stop progressing inside an exchange: the others wait for it until its process
    /// is killed. Its heartbeat thread goes on, and nothing that others say to it is heeded.
    pub(crate) fn livelock_if_injected(&self) {
        if self.livelocks {
            loop {
                self.sleep(LIVELOCKED);
            }
        }
    }
}
