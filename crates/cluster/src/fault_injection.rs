//! Faults injected into this rank at the beginning of a step, and what its program must know of them.

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

/// Computations for which a rank is slow.
const SLOW_COMPUTATIONS: u32 = 20;

/// The process of a rank, as injected faults see it.
pub trait FaultyProcess: Send + Sync {
    /// Ends without a word; does not return.
    fn kill(&self);

    /// Stands still, its connections open.
    fn stop(&self);

    /// Makes no more progress, but looks alive, until it is killed.
    fn livelock(&self) -> !;
}

/// The process of this program.
pub struct OwnProcess;

impl FaultyProcess for OwnProcess {
    fn kill(&self) {
        std::thread::sleep(EVENT_FLUSH);
        linux::kill_self();
    }

    fn stop(&self) {
        std::thread::sleep(EVENT_FLUSH);
        linux::stop_self();
    }

    fn livelock(&self) -> ! {
        loop {
            std::thread::sleep(LIVELOCK_SLEEP);
        }
    }
}

/// The faults of a rank that are in effect.
#[derive(Default)]
pub(crate) struct ActiveFaults {
    /// Whether the job's faults are scheduled.
    scheduled: bool,
    /// The next exchange never ends.
    livelock: bool,
    /// Remaining computations of a slow spell.
    slow: u32,
    /// The next checkpoint finds the disk full.
    full_disk: bool,
}

impl Rank {
    /// Schedules those of the job's faults that concern this rank, from this step on. Only the first call has an effect, so
    /// a program may repeat it in every generation.
    pub fn schedule_faults(&mut self, faults: &[InjectedFault], from: u64) {
        if std::mem::replace(&mut self.faults.scheduled, true) {
            return;
        }
        let mine = faults.iter().filter(|fault| fault.rank == self.member_id() && fault.step >= from);
        mine.for_each(|fault| self.parts.rank_status.inject(fault.clone()));
    }

    /// Injects a fault scheduled for the beginning of this step. A livelock takes effect in the next exchange, a slow
    /// spell in [`Rank::injected_delay`], a full disk in [`Rank::take_injected_full_disk`].
    pub fn inject_faults(&mut self, step: u64) {
        let Some(fault) = self.parts.rank_status.take_fault(step) else { return };
        self.emit(Event::FaultInjected { step, kind: fault.kind.name().into() });
        let next = (self.index() + 1) % self.size();
        match fault.kind {
            FaultKind::Kill => self.parts.process.kill(),
            FaultKind::Stop => self.parts.process.stop(),
            FaultKind::Livelock => self.faults.livelock = true,
            FaultKind::Cut => self.parts.transport.inject(next, LinkFault::Cut),
            FaultKind::CutOneWay => self.parts.transport.inject(next, LinkFault::CutOneWay),
            FaultKind::Corrupt => self.parts.transport.inject(next, LinkFault::Garbage),
            FaultKind::Lie => self.send_invalid_message(step, next),
            // Takes effect while a rank joins.
            FaultKind::Unreachable => {}
            FaultKind::Slow => self.faults.slow = SLOW_COMPUTATIONS,
            FaultKind::DiskFull => self.faults.full_disk = true,
        }
    }

    /// The extra time of a computation that took this long: twice as long again in an injected slow spell, else zero.
    /// Each call counts as one computation of the spell.
    pub fn injected_delay(&mut self, took: Duration) -> Duration {
        match self.faults.slow {
            0 => Duration::ZERO,
            _ => {
                self.faults.slow -= 1;
                2 * took
            }
        }
    }

    /// Whether a full disk was injected since the last call.
    pub fn take_injected_full_disk(&mut self) -> bool {
        std::mem::take(&mut self.faults.full_disk)
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
        if self.faults.livelock {
            self.parts.process.livelock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::in_memory;

    fn fault(rank: usize, step: u64, kind: FaultKind) -> InjectedFault {
        InjectedFault { rank, step, kind }
    }

    #[test]
    fn faults_are_scheduled_once_and_for_their_rank() {
        let mut rank = in_memory(2, Duration::from_secs(1)).remove(1);
        let faults = [fault(0, 3, FaultKind::Slow), fault(1, 3, FaultKind::DiskFull)];
        (0..2).for_each(|_| rank.schedule_faults(&faults, 3));
        rank.inject_faults(2);
        assert!(!rank.take_injected_full_disk());
        rank.inject_faults(3);
        assert!(rank.take_injected_full_disk() && !rank.take_injected_full_disk());
        rank.inject_faults(4);
        assert!(!rank.take_injected_full_disk());
        assert_eq!(rank.injected_delay(Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn a_slow_spell_lasts_for_twenty_computations() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        rank.schedule_faults(&[fault(0, 0, FaultKind::Slow)], 0);
        rank.inject_faults(0);
        let took = Duration::from_millis(5);
        let delays: Vec<Duration> = (0..21).map(|_| rank.injected_delay(took)).collect();
        assert_eq!((&delays[..20], delays[20]), (&[2 * took; 20][..], Duration::ZERO));
    }
}
