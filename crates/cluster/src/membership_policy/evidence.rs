//! What follows from evidence against a member: the group goes on without it, is formed again, or the job ends.

use super::MembershipPolicy;
use crate::conflict::{self, Trust};
use crate::diagnosis::Evidence;
use crate::membership::MembershipCommand;
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_core::{Culprit, Error};

/// How often a member's connections may break at one step before it is removed.
pub(super) const MAX_FAILURES: u32 = 3;

/// The same for connections that cannot be made, each of which costs a deadline to detect, and for links that carry
/// damaged bytes or stand still while both ends make progress, within [`CONFLICT_WINDOW`] steps.
const MAX_CONFLICTS: u32 = 1;

/// Steps after which an earlier conflict no longer counts.
const CONFLICT_WINDOW: u64 = 100;

impl MembershipPolicy {
    /// Evidence that a member is lost: the others go on without it at once, or the diagnosis weighs it with the rest.
    pub(super) fn on_evidence(
        &mut self,
        evidence: Evidence,
        seen: Duration,
        now: Duration,
    ) -> Vec<MembershipCommand> {
        let rank = match &evidence {
            Evidence::Vanished { rank, .. }
            | Evidence::Silent { rank, .. }
            | Evidence::Stuck { rank, .. }
                if self.config.elastic =>
            {
                *rank
            }
            _ => {
                self.diagnosis.add(now, evidence);
                return Vec::new();
            }
        };
        let mut culprit =
            self.diagnosis.explain(&evidence).culprit.map_or_else(Culprit::default, |culprit| *culprit);
        culprit.detect_s = Some(match &evidence {
            Evidence::Silent { seconds, .. } => *seconds,
            Evidence::Stuck { heartbeat, .. } => heartbeat.since,
            _ => now.saturating_sub(seen).as_secs_f64(),
        });
        culprit.noticed = self.wall_clock(now);
        match evidence {
            Evidence::Stuck { .. } => vec![MembershipCommand::Remove(rank, Box::new(culprit))],
            _ => self.remove(rank, culprit, now),
        }
    }

    /// The evidence is complete: the job ends, a member goes, or only connections failed and the group is formed again.
    pub(super) fn on_diagnosis(&mut self, error: Error, now: Duration) -> Vec<MembershipCommand> {
        let source =
            self.diagnosis.premature_timeout_source(self.membership.members(), self.monitor.deadline());
        let error = source.map_or_else(|| error.clone(), |rank| conflict::premature_timeout(rank, &error));
        let accused = error.culprit.as_ref().map(|culprit| culprit.rank);
        let self_report = self.diagnosis.has_self_report();
        let dropped =
            conflict::member_to_drop(&self.diagnosis.conflicts(), self.membership.len(), &self.joined);
        if let Some(id) = dropped.filter(|id| self.config.elastic && !self_report && self.membership.has(*id))
        {
            self.diagnosis.clear();
            let culprit = Culprit { noticed: self.wall_clock(now), ..conflict::culprit(id, &error) };
            return self.remove(id, culprit, now);
        }
        match accused {
            Some(id) if self.config.elastic && !self_report => {
                let witnesses = self.diagnosis.witnesses(id);
                let unconfirmed = self.diagnosis.unconfirmed_report(id);
                self.diagnosis.clear();
                if !self.membership.has(id) || !self.membership.is_working() {
                    // It is gone, or others have reached a boundary where the group is formed again: there is no
                    // culprit, but members that still wait must leave their operations.
                    let commands = self.membership.interrupt(now);
                    return self.complete(commands, now);
                }
                let step = error.culprit.as_ref().and_then(|culprit| culprit.step).unwrap_or(0);
                let mut culprit = error.culprit.clone().map_or_else(Culprit::default, |culprit| *culprit);
                culprit.noticed = self.wall_clock(now);
                if let Some(report) = unconfirmed {
                    let responsible = report.responsible(|member| self.trust(member));
                    if count(&mut self.failures, responsible, step, 0) > MAX_FAILURES {
                        return self.remove(responsible, conflict::culprit(responsible, &error), now);
                    }
                } else if self.exceeds_failures(id, step, &error) {
                    let removed = conflict::less_trusted(id, &witnesses, |member| self.trust(member));
                    self.sole_witnesses.extend(witnesses.iter().filter(|_| witnesses.len() == 1));
                    let culprit = if removed == id { culprit } else { conflict::culprit(removed, &error) };
                    return self.remove(removed, culprit, now);
                }
                self.lost.push(culprit);
                let commands = self.membership.interrupt(now);
                self.complete(commands, now)
            }
            _ => vec![self.abort(error)],
        }
    }

    fn trust(&self, member: usize) -> Trust {
        match self.newcomers.contains(&member) {
            true => Trust::Newcomer,
            false if self.sole_witnesses.contains(&member) => Trust::SoleWitness,
            false => Trust::Full,
        }
    }

    /// Counts a failure of a member; whether the next group goes on without it. Broken connections are made again; an
    /// invalid frame comes from a member that cannot be trusted.
    fn exceeds_failures(&mut self, id: usize, step: u64, error: &Error) -> bool {
        if conflict::is_protocol_violation(error) {
            return true;
        }
        let is_conflict = conflict::is_conflict(error) || conflict::is_late(error);
        let (limit, window) = if is_conflict { (MAX_CONFLICTS, CONFLICT_WINDOW) } else { (MAX_FAILURES, 0) };
        let counts = if is_conflict { &mut self.conflicts } else { &mut self.failures };
        count(counts, id, step, window) > limit
    }
}

/// Counts a failure of a member at this step; those within `window` steps of each other add up.
fn count(counts: &mut BTreeMap<usize, (u64, u32)>, id: usize, step: u64, window: u64) -> u32 {
    let (last, count) = counts.entry(id).or_insert((step, 0));
    *count = if step.saturating_sub(*last) <= window { *count + 1 } else { 1 };
    *last = step;
    *count
}
