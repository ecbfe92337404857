//! When workers at their own speed meet: a pure decision of the coordinator, from their reports.
//!
//! Such workers have no exchange of all in which an epoch could end, a checkpoint be written or a request be served. The
//! coordinator adds up the rows that they report over their control connections and calls a meeting, by its number: when
//! the rows reach the next boundary, or when a request waits. Each worker looks at the number at its commit boundaries and
//! meets the others if it has held fewer meetings.
//!
//! Reports are absolute, and all that is known here comes from them: another coordinator learns it with the next ones.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a worker tells the coordinator of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkReport {
    /// Meetings held.
    pub held: u64,
    /// The last meeting that it knows to be called.
    pub called: u64,
    /// Rows of all workers at the last meeting.
    pub before: u64,
    /// Its own rows since.
    pub rows: u64,
    /// Rows of all workers at which the next meeting is due.
    pub until: u64,
    /// Whether a request to this worker waits for a meeting.
    pub requested: bool,
}

/// The last reports of a group.
#[derive(Debug, Default)]
pub struct MeetingPolicy {
    reports: BTreeMap<usize, WorkReport>,
    /// The last meeting called.
    called: u64,
}

impl MeetingPolicy {
    /// Takes a report; returns the number of a meeting that is to be called now, or that this worker has not heard of.
    pub fn on_report(&mut self, id: usize, report: WorkReport) -> Option<u64> {
        self.called = self.called.max(report.held).max(report.called.min(report.held.saturating_add(1)));
        self.reports.insert(id, report);
        if self.is_due() {
            self.called += 1;
            return Some(self.called);
        }
        (report.held.max(report.called) < self.called).then_some(self.called)
    }

    /// Without this worker.
    pub fn remove(&mut self, id: usize) {
        self.reports.remove(&id);
    }

    /// A new group: its members report anew.
    pub fn clear(&mut self) {
        self.reports.clear();
    }

    /// Rows of all workers since the job began.
    pub fn rows(&self) -> u64 {
        let before = self.current().map(|report| report.before).max().unwrap_or(0);
        self.current().fold(before, |sum, report| sum.saturating_add(report.rows))
    }

    /// Whether any worker reports.
    pub fn is_used(&self) -> bool {
        !self.reports.is_empty()
    }

    pub fn called(&self) -> u64 {
        self.called
    }

    /// Reports since the last meeting. Those of workers that are still in it are of the time before.
    fn current(&self) -> impl Iterator<Item = &WorkReport> {
        let held = self.reports.values().map(|report| report.held).max();
        self.reports.values().filter(move |report| Some(report.held) == held)
    }

    fn is_due(&self) -> bool {
        let pending = self.current().any(|report| report.held < self.called);
        let until = self.current().map(|report| report.until).min();
        !pending
            && (self.current().any(|report| report.requested)
                || until.is_some_and(|until| self.rows() >= until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(held: u64, rows: u64) -> WorkReport {
        WorkReport { held, called: held, before: 100 * held, rows, until: 100 * (held + 1), requested: false }
    }

    #[test]
    fn a_meeting_is_called_once_when_the_rows_reach_the_boundary() {
        let mut policy = MeetingPolicy::default();
        assert_eq!(policy.on_report(0, report(0, 0)), None);
        assert_eq!(policy.on_report(1, report(0, 40)), None);
        assert_eq!(policy.on_report(0, report(0, 59)), None);
        assert_eq!((policy.on_report(0, report(0, 60)), policy.rows()), (Some(1), 100));
        // Worker 1 goes on until it sees the number.
        assert_eq!(policy.on_report(1, WorkReport { called: 1, ..report(0, 70) }), None);
        assert_eq!(policy.on_report(0, report(1, 0)), None);
        assert_eq!(policy.rows(), 100, "worker 1 is still in the meeting");
        assert_eq!(policy.on_report(1, report(1, 30)), None);
        assert_eq!((policy.on_report(0, report(1, 70)), policy.called()), (Some(2), 2));
    }

    #[test]
    fn a_request_calls_a_meeting_and_a_lost_worker_does_not_count() {
        let mut policy = MeetingPolicy::default();
        policy.on_report(0, report(3, 10));
        let requested = WorkReport { requested: true, ..report(3, 20) };
        assert_eq!(policy.on_report(1, requested), Some(4));
        assert_eq!(policy.on_report(1, WorkReport { called: 4, ..requested }), None);
        policy.remove(1);
        assert_eq!((policy.on_report(0, report(4, 99)), policy.rows()), (None, 499));
        assert_eq!(policy.on_report(2, report(4, 1)), Some(5));
    }

    #[test]
    fn a_worker_that_has_not_heard_of_a_meeting_is_told() {
        let mut policy = MeetingPolicy::default();
        assert_eq!(policy.on_report(0, WorkReport { called: 8, ..report(7, 5) }), None);
        assert_eq!(policy.on_report(1, report(7, 5)), Some(8), "the last coordinator had called it");
        // No report can call meetings that the others have not held.
        policy.clear();
        assert_eq!(policy.on_report(0, WorkReport { called: u64::MAX, ..report(7, 5) }), None);
        assert_eq!(policy.called(), 8);
        assert!(policy.is_used());
    }
}
