//! Ranks that are alive but make no progress: the group is interrupted first, then it is seen who does not answer.

use super::{Judgement, Ruling};
use crate::inquest::Evidence;
use std::time::Duration;
use thalweg_core::Culprit;
use thalweg_core::event::{Phase, Pulse};

impl Judgement {
    /// No rank makes progress and all wait for each other: their generation is over, and nobody is blamed yet.
    pub(super) fn interrupt_stalled(&mut self, now: Duration) -> Vec<Ruling> {
        if !self.rules.elastic || !self.membership.is_working() {
            return Vec::new();
        }
        let Some(stall) = self.watch.stalled(now) else { return Vec::new() };
        if self.blameless == Some(stall.step) {
            return self.expel_from_stalled(now);
        }
        self.stall = Some(stall.clone());
        let orders = self.membership.break_up(now);
        self.rule(orders, now)
    }

    /// The group was interrupted at this step before, all reported, and nobody makes progress again. Ranks that train say by
    /// their own deadlines for whom they wait; where they have not, the one that is not even in an exchange is the culprit.
    /// Where all say that they are, those who worked together before can do so again: the last newcomer goes.
    fn expel_from_stalled(&self, now: Duration) -> Vec<Ruling> {
        let earlier = now.saturating_sub(self.watch.deadline());
        let Some(laggard) = self.watch.stalled(earlier).and_then(|_| self.watch.laggard(now)) else {
            return Vec::new();
        };
        let elsewhere = laggard.alone && laggard.pulse.phase != Phase::Exchanging;
        let began = self.membership.members().any(|number| !self.newcomers.contains(&number));
        let newcomer = self.membership.members().rfind(|number| self.newcomers.contains(number));
        let culprit = Some(laggard.rank).filter(|_| elsewhere).or(newcomer.filter(|_| began));
        let idle = |number| self.watch.idle(number, now).unwrap_or_default();
        let expel =
            |number| Ruling::Expel(number, Box::new(self.without_progress(number, idle(number), now)));
        culprit.map(expel).into_iter().collect()
    }

    /// While a group is formed: who is connected, makes no progress and has not reported in time is the culprit. Members that
    /// wait for it in an exchange make none either, so all are told to leave their operations first, if they were not yet.
    pub(super) fn expel_unreported(&mut self, now: Duration) -> Vec<Ruling> {
        if !self.rules.elastic || self.membership.is_working() || self.membership.generation() == 0 {
            return Vec::new();
        }
        let missing = self.membership.missing();
        let is_idle = |number: &usize| self.watch.idle(*number, now) >= Some(self.watch.limit(*number));
        let Some(told) = self.interrupted else {
            if missing.is_empty() || !missing.iter().all(is_idle) {
                return Vec::new();
            }
            let orders = self.membership.break_up(now);
            return self.rule(orders, now);
        };
        // Where no rank has reported, none can be told from the others: they have twice as long.
        let patience = if self.membership.has_reports() { 1 } else { 2 };
        let is_late = |number: &usize| now.saturating_sub(told) >= patience * self.watch.limit(*number);
        let expel = |number: usize| {
            let idle = self.watch.idle(number, now).unwrap_or_default();
            Ruling::Expel(number, Box::new(self.without_progress(number, idle, now)))
        };
        missing.into_iter().filter(|number| is_idle(number) && is_late(number)).map(expel).collect()
    }

    /// What is said of a rank that makes no progress.
    fn without_progress(&self, rank: usize, idle: Duration, now: Duration) -> Culprit {
        let last = self.watch.last(rank).cloned().unwrap_or_default();
        let Pulse { step, name, .. } = self.stall.clone().unwrap_or_else(|| last.clone());
        let explained = self.inquest.explain(&Evidence::Stuck { rank, pulse: last });
        let known = explained.culprit.map_or_else(Culprit::default, |culprit| *culprit);
        Culprit {
            rank,
            step: Some(step),
            cause: format!("has been without progress in {name} for {:.1} s", idle.as_secs_f64()),
            operation: Some(name),
            detect_s: Some(idle.as_secs_f64()),
            noticed: Some(self.rules.epoch + now.as_secs_f64()),
            ..known
        }
    }
}
