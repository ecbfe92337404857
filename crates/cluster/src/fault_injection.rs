//! Faults injected into this rank at the beginning of a step.

use crate::linux;
use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::transport::{ForgedFrame, LinkFault, Transport};
use thalweg_core::event::Event;
use thalweg_core::spec::inject::{FaultKind, InjectedFault};

/// Time for the event of an injected kill or stop to reach the launcher.
const EVENT_FLUSH: Duration = Duration::from_millis(20);

/// Sleep of the endless loop of a livelocked rank.
const LIVELOCK_SLEEP: Duration = Duration::from_millis(100);

impl Rank {
    /// Schedules those of the job's faults that concern this rank.
    pub fn schedule_faults(&self, faults: &[InjectedFault]) {
        let mine = faults.iter().filter(|fault| fault.rank == self.member_id());
        mine.for_each(|fault| self.parts.rank_status.inject(fault.clone()));
    }

    /// Injects the fault scheduled for the beginning of this step. A livelock takes effect in the next exchange. Faults
    /// of the rank's own work (a slow machine, a full disk) are returned: the program acts them out.
    pub fn inject_fault(&mut self, step: u64) -> Option<FaultKind> {
        let fault = self.parts.rank_status.take_fault(step)?;
        self.emit(Event::FaultInjected { step, kind: fault.kind.name().into() });
        let next = (self.index() + 1) % self.world();
        match fault.kind {
            FaultKind::Kill => {
                std::thread::sleep(EVENT_FLUSH);
                linux::kill_self();
            }
            FaultKind::Stop => {
                std::thread::sleep(EVENT_FLUSH);
                linux::stop_self();
            }
            FaultKind::Livelock => self.livelocks = true,
            FaultKind::Cut => self.parts.transport.inject(next, LinkFault::Cut),
            FaultKind::CutOneWay => self.parts.transport.inject(next, LinkFault::CutOneWay),
            FaultKind::Corrupt => self.parts.transport.inject(next, LinkFault::Garbage),
            FaultKind::Lie => self.send_invalid_message(step, next),
            // Takes effect while a rank joins.
            FaultKind::Unreachable => {}
            FaultKind::Slow | FaultKind::DiskFull => return Some(fault.kind),
        }
        None
    }

    /// Sends an invalid message, another kind at each step: a forged frame to the next rank, or a report of a
    /// generation that never existed to the coordinator.
    fn send_invalid_message(&mut self, step: u64, next: usize) {
        match (
            ForgedFrame::ALL.get(step as usize % (ForgedFrame::ALL.len() + 1)),
            &mut self.parts.membership_client,
        ) {
            (None, Some(membership_client)) => membership_client.send_false_report(),
            (forgery, _) => {
                let forgery = forgery.copied().unwrap_or(ForgedFrame::Close);
                self.parts.transport.inject(next, LinkFault::Forged(forgery, self.parts.generation));
            }
        }
    }

    /// Does not return if a livelock was injected: peers wait for this rank until its process is killed. Its heartbeat
    /// thread continues; aborts are ignored.
    pub(crate) fn livelock_if_injected(&self) {
        if self.livelocks {
            loop {
                self.sleep(LIVELOCK_SLEEP);
            }
        }
    }
}
