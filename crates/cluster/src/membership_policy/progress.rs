//! Members that are alive but make no progress: the group is interrupted first, then members without a report are removed.

use super::MembershipPolicy;
use crate::diagnosis::Evidence;
use crate::membership::MembershipCommand;
use std::time::Duration;
use thalweg_core::Culprit;
use thalweg_core::event::{Heartbeat, Phase};

impl MembershipPolicy {
    /// Interrupts the generation if ranks wait without progress: the culprit is not known yet. A job that is not elastic ends
    /// with a deadlock, and leaves other stalls to the deadlines of the ranks that wait.
    pub(super) fn interrupt_stalled(&mut self, now: Duration) -> Vec<MembershipCommand> {
        if !self.membership.is_working() {
            return Vec::new();
        }
        let Some(stall) = self.monitor.stalled(now) else { return Vec::new() };
        if !self.config.elastic {
            let abort = stall.deadlock.map(|error| MembershipCommand::Abort(Box::new(error)));
            return abort.into_iter().collect();
        }
        // Members may be as many steps apart as a commit unit has.
        let unit = self.config.limits.unit.max(1);
        if self.stall_without_culprit.is_some_and(|step| step.abs_diff(stall.heartbeat.step) < unit) {
            return self.remove_from_stalled(now);
        }
        self.stall = Some(stall);
        let commands = self.membership.interrupt(now);
        self.complete(commands, now)
    }

    /// The group was interrupted at this step before, all members reported, and it is stalled again. In training, ranks
    /// report by their own deadlines for which rank they wait; where they have not, the culprit is the one rank outside of
    /// an exchange. If all are in an exchange, the earlier members worked before: the last newcomer is removed.
    fn remove_from_stalled(&self, now: Duration) -> Vec<MembershipCommand> {
        let earlier = now.saturating_sub(self.monitor.deadline());
        let Some(straggler) = self.monitor.stalled(earlier).and_then(|_| self.monitor.straggler(now)) else {
            return Vec::new();
        };
        let elsewhere = straggler.alone && straggler.heartbeat.phase != Phase::Exchanging;
        let has_earlier = self.membership.members().any(|id| !self.newcomers.contains(&id));
        let newcomer = self.membership.members().rfind(|id| self.newcomers.contains(id));
        let culprit = Some(straggler.rank).filter(|_| elsewhere).or(newcomer.filter(|_| has_earlier));
        culprit.map(|id| self.remove_idle(id, now)).into_iter().collect()
    }

    /// While a group is formed, removes members that are connected, make no progress and have not reported in time. Members
    /// that wait for such a member in an exchange make no progress either, so the generation is interrupted first.
    pub(super) fn remove_unreported(&mut self, now: Duration) -> Vec<MembershipCommand> {
        if !self.config.elastic || self.membership.is_working() || self.membership.generation() == 0 {
            return Vec::new();
        }
        let missing = self.membership.missing();
        let is_idle = |id: &usize| self.monitor.idle(*id, now) >= Some(self.monitor.idle_limit(*id));
        let Some(interrupted_at) = self.interrupted_at else {
            if missing.is_empty() || !missing.iter().all(is_idle) {
                return Vec::new();
            }
            let commands = self.membership.interrupt(now);
            return self.complete(commands, now);
        };
        // Without any report no member can be distinguished from the others: they get twice the time.
        let factor = if self.membership.has_reports() { 1 } else { 2 };
        let is_late =
            |id: &usize| now.saturating_sub(interrupted_at) >= factor * self.monitor.idle_limit(*id);
        let late = missing.into_iter().filter(|id| is_idle(id) && is_late(id));
        late.map(|id| self.remove_idle(id, now)).collect()
    }

    fn remove_idle(&self, rank: usize, now: Duration) -> MembershipCommand {
        let idle = self.monitor.idle(rank, now).unwrap_or_default();
        let last = self.monitor.last_heartbeat(rank).cloned().unwrap_or_default();
        let Heartbeat { step, name, .. } =
            self.stall.as_ref().map_or_else(|| last.clone(), |stall| stall.heartbeat.clone());
        let explained = self.diagnosis.explain(&Evidence::Stuck { rank, heartbeat: last });
        let known = explained.culprit.map_or_else(Culprit::default, |culprit| *culprit);
        let culprit = Culprit {
            rank,
            step: Some(step),
            cause: format!("has been without progress in {name} for {:.1} s", idle.as_secs_f64()),
            operation: Some(name),
            detect_s: Some(idle.as_secs_f64()),
            noticed: self.wall_clock(now),
            ..known
        };
        MembershipCommand::Remove(rank, Box::new(culprit))
    }
}
