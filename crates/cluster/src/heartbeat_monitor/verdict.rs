//! The verdict of the monitor: whom the others wait for, from the waits in their last heartbeats.

use super::HeartbeatMonitor;
use crate::deadlock;
use crate::diagnosis::Evidence;
use crate::rank_set::RankSet;
use crate::stall::SILENT_AFTER;
use crate::wait_graph::{Activity, Verdict, judge, waiting_for};
use std::cmp::Reverse;
use std::time::Duration;
use thalweg_core::Error;
use thalweg_core::event::{Heartbeat, Phase, WaitsFor};

/// A rank that others wait for.
#[derive(Clone, Copy, Debug)]
pub struct Straggler<'a> {
    pub rank: usize,
    pub heartbeat: &'a Heartbeat,
    /// Time without progress.
    pub idle: Duration,
    /// Whether no other rank is in the same state, so that this rank is the one that is waited for.
    pub alone: bool,
}

/// Ranks that have waited without progress for as long as they may.
#[derive(Clone, Debug, PartialEq)]
pub struct StalledGroup {
    /// The operation in which they wait.
    pub heartbeat: Heartbeat,
    /// The error that names ranks which wait for each other, if all of them said whom they wait for.
    pub deadlock: Option<Error>,
}

impl HeartbeatMonitor {
    /// The ranks that have waited for as long as they may, for ranks that have been without progress as long.
    pub fn stalled(&self, now: Duration) -> Option<StalledGroup> {
        let (ranks, verdict) = self.verdicts(now).find(|(_, verdict)| *verdict != Verdict::NoneBlocked)?;
        let (waiting, members) = match verdict {
            Verdict::NoneBlocked => return None,
            Verdict::Ranks(to_blame) => (waiting_for(&ranks, &to_blame), Vec::new()),
            Verdict::Deadlock(members) => (members.clone(), members),
        };
        // Ranks may wait for them in different steps: the last one is named.
        let heartbeats = waiting.iter().filter_map(|rank| Some((*rank, self.last_heartbeat(*rank)?)));
        let (_, heartbeat) = heartbeats.max_by_key(|(rank, heartbeat)| (heartbeat.step, Reverse(*rank)))?;
        let said = |rank: &usize| {
            let named = self.last_heartbeat(*rank).filter(|heartbeat| heartbeat.waits_for.is_some());
            named.filter(|_| self.since_poll(*rank, now) < SILENT_AFTER).map(|heartbeat| (*rank, heartbeat))
        };
        let said: Option<Vec<(usize, &Heartbeat)>> = members.iter().map(said).collect();
        let deadlock = said.filter(|members| !members.is_empty()).map(|members| deadlock::error(&members));
        Some(StalledGroup { heartbeat: heartbeat.clone(), deadlock })
    }

    /// The rank that the others wait for now, whether or not it makes progress: of several, one outside of an exchange.
    pub fn straggler(&self, now: Duration) -> Option<Straggler<'_>> {
        let verdict = self.activities(now, |_, _| true).map_or(Verdict::NoneBlocked, |ranks| judge(&ranks));
        let is_outside = |rank: &usize| {
            self.last_heartbeat(*rank).is_some_and(|heartbeat| heartbeat.phase != Phase::Exchanging)
        };
        let candidates: Vec<usize> = match verdict {
            Verdict::Ranks(ranks) if ranks.iter().any(is_outside) => {
                ranks.into_iter().filter(is_outside).collect()
            }
            Verdict::Ranks(ranks) | Verdict::Deadlock(ranks) => ranks,
            Verdict::NoneBlocked => self.expected().map(|(rank, _)| rank).collect(),
        };
        let rank = *candidates.first()?;
        let (heartbeat, idle) = (self.last_heartbeat(rank)?, self.idle(rank, now)?);
        Some(Straggler { rank, heartbeat, idle, alone: candidates.len() == 1 })
    }

    /// A rank without progress of its own for too long, while others have waited for it as long.
    pub(super) fn find_stuck(&self, now: Duration) -> Option<Evidence> {
        let is_busy = |heartbeat: &Heartbeat| match heartbeat.phase {
            Phase::Computing | Phase::Preparing => true,
            Phase::Leaving => self.shutting_down,
            // No other rank is left to wait for.
            Phase::Exchanging => self.shutting_down && self.expected().count() == 1,
            Phase::Starting => false,
        };
        let busiest = |ranks: Vec<usize>| {
            let busy = ranks.into_iter().filter_map(|rank| Some((rank, self.last_heartbeat(rank)?)));
            let busy = busy.filter(|(_, heartbeat)| is_busy(heartbeat));
            let (rank, heartbeat) = busy.max_by_key(|(rank, _)| (self.idle(*rank, now), Reverse(*rank)))?;
            Some(Evidence::Stuck { rank, heartbeat: heartbeat.clone() })
        };
        if self.shutting_down {
            let is_idle = |rank: &usize| self.idle(*rank, now) >= Some(self.idle_limit(*rank));
            return busiest(self.expected().map(|(rank, _)| rank).filter(is_idle).collect());
        }
        self.verdicts(now).find_map(|(_, verdict)| match verdict {
            Verdict::Ranks(ranks) => busiest(ranks),
            Verdict::Deadlock(_) | Verdict::NoneBlocked => None,
        })
    }

    /// The activities and the verdict on ranks without progress for the deadline, and for that of preparations.
    fn verdicts(&self, now: Duration) -> impl Iterator<Item = (Vec<Activity>, Verdict)> {
        let is_preparing = |heartbeat: &Heartbeat| heartbeat.phase == Phase::Preparing;
        let is_late = |(rank, (_, heartbeat)): (usize, &(Duration, Heartbeat))| {
            is_preparing(heartbeat) && self.idle(rank, now) >= Some(self.prepare_deadline)
        };
        // A preparation may have less time than a step: then a wait for it has as little.
        let longest = self.deadline.max(self.prepare_deadline);
        let waiting = if self.expected().any(is_late) { self.prepare_deadline } else { longest };
        [false, true].into_iter().filter_map(move |with_preparations| {
            let ranks = self.activities(now, |rank, heartbeat| {
                let limit = match heartbeat.phase {
                    Phase::Preparing => with_preparations.then_some(self.prepare_deadline),
                    Phase::Exchanging if with_preparations => Some(waiting),
                    _ if with_preparations => Some(longest),
                    _ => Some(self.deadline),
                };
                limit.is_some_and(|limit| self.idle(rank, now) >= Some(limit))
            })?;
            let verdict = judge(&ranks);
            Some((ranks, verdict))
        })
    }

    /// What the ranks do, by id, if those that `is_idle` holds for make no progress; `None` if none of them waits.
    fn activities(
        &self,
        now: Duration,
        is_idle: impl Fn(usize, &Heartbeat) -> bool,
    ) -> Option<Vec<Activity>> {
        let idle = || self.expected().filter(|(rank, (_, heartbeat))| is_idle(*rank, heartbeat));
        let mut exchanging =
            idle().filter(|(_, (_, heartbeat))| heartbeat.phase == Phase::Exchanging).peekable();
        exchanging.peek()?;
        let polls = |rank: usize| self.since_poll(rank, now) < SILENT_AFTER;
        // If none polls, that distinguishes no rank from the others.
        let any_polls = exchanging.any(|(rank, _)| polls(rank));
        let expected: RankSet = self.expected().map(|(rank, _)| rank).collect();
        // Ranks of other launchers are out of sight, those that have left are waited for by none.
        let mut activities = vec![Activity::Progressing; self.ranks.len()];
        for (rank, (_, heartbeat)) in idle() {
            let waits = heartbeat.phase == Phase::Exchanging && (polls(rank) || !any_polls);
            activities[rank] = if waits { self.wait(rank, heartbeat, &expected) } else { Activity::Standing };
        }
        Some(activities)
    }

    /// The wait of a rank in an exchange. Its heartbeat comes from a peer: ids that cannot be are ignored, and without a
    /// possible one it may wait for any other rank of the world.
    fn wait(&self, rank: usize, heartbeat: &Heartbeat, expected: &RankSet) -> Activity {
        let is_possible = |id: &usize| {
            let is_out_of_sight = self.ranks.get(*id).is_some_and(|state| !state.is_known);
            *id != rank && (expected.contains(*id) || is_out_of_sight)
        };
        let ranks = heartbeat.waits_for.iter().flat_map(|waits_for| waits_for.ranks());
        let named: RankSet = ranks.copied().filter(is_possible).collect();
        match &heartbeat.waits_for {
            Some(WaitsFor::Any(_)) if !named.is_empty() => Activity::WaitsForAny(named),
            Some(WaitsFor::All(_)) if !named.is_empty() => Activity::WaitsForAll(named),
            _ => Activity::WaitsForAll(expected.without(rank)),
        }
    }
}
