//! Refused ranks, and ranks that join after the job is over: each gets the reason, and rank 0 reports it.

use super::Coordinator;
use crate::membership_policy::MembershipActions;
use crate::rendezvous::join_validation;
use crate::rendezvous::message::{ControlRequest, ControlResponse, JoinKind, JoinRequest, Member, send};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;
use thalweg_core::{Culprit, Error, Kind};

/// How long the coordinator stays after an abort for ranks that have not connected yet, within their time to join.
const LATE_JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The most unauthenticated callers that are reported.
const MAX_UNAUTHENTICATED: usize = 8;

impl Coordinator {
    /// A caller failed the handshake; it is only reported, because its rank is not known.
    pub(super) fn on_unauthenticated(&mut self, from: IpAddr, reason: &str) {
        if self.unauthenticated.len() < MAX_UNAUTHENTICATED && !self.unauthenticated.contains_key(&from) {
            (self.callbacks.warn)(format!("refused a connection from {from}: it {reason}"));
            self.unauthenticated.insert(from, reason.to_string());
        }
    }

    /// Before the first group, an expected rank with another job ends this job: it will not join with the right one.
    pub(super) fn abort_for_mismatch(&mut self, join: &JoinRequest, reason: &str) {
        let expected = self.policy.membership.has(join.member.rank);
        let first = join.kind == JoinKind::Initial && self.policy.membership.generation() == 0;
        if !(first && expected) || self.connected.contains_key(&join.member.rank) || self.aborted_at.is_some()
        {
            return;
        }
        let Member { rank, host, .. } = &join.member;
        let culprit = Culprit {
            rank: *rank,
            host: Some(host.clone()),
            operation: Some("rendezvous".into()),
            cause: "has another job".into(),
            ..Culprit::default()
        };
        self.informed.insert(*rank);
        let error = Error::new(Kind::Rendezvous, reason).blame(culprit);
        self.abort(error.hint("start all ranks with the same job, flags, data and world"));
    }

    /// After an abort, refuses every request with the reason.
    pub(super) fn refuse_late(&mut self, request: &ControlRequest, mut stream: TcpStream) {
        if let Some(error) = &self.abort_error {
            let _ = send(&mut stream, &ControlResponse::Refused(error.clone()));
        }
        if let ControlRequest::Join(join) = request {
            self.informed.insert(join.member.rank);
        }
    }

    /// How long to stay after an abort for expected ranks that are not informed yet; `None` if there are none.
    pub(super) fn late_join_timeout(&self) -> Option<Duration> {
        // A rank 0 that failed before its start does not join.
        let absent = self.config.failed.is_some().then_some(self.config.own);
        let is_uninformed = |rank: &usize| {
            Some(*rank) != absent && !self.informed.contains(rank) && !self.connected.contains_key(rank)
        };
        let early = self.policy.membership.generation() == 0;
        let aborted = self.aborted_at.map_or(Duration::ZERO, |when| when.duration_since(self.start));
        let left = self.config.membership.limits.timeout.saturating_sub(aborted);
        (early && self.listener.is_some() && self.config.expected.iter().any(is_uninformed))
            .then_some(LATE_JOIN_TIMEOUT.min(left))
    }

    /// A rank that was restarted with its id, after the others went on without it, joins as a newcomer; if its loss has not
    /// been noticed yet, it has to try again.
    pub(super) fn on_restart(&mut self, join: &mut JoinRequest) -> Option<Error> {
        let rank = join.member.rank;
        let began = self.policy.membership.generation() > 0 && self.config.membership.elastic;
        if join.kind != JoinKind::Initial || !began || self.aborted_at.is_some() {
            return None;
        }
        if self.connected.get(&rank).is_some_and(|peer| join_validation::is_closed(&peer.stream)) {
            let now = self.now();
            let commands = self.policy.on_close(rank, now, now);
            self.execute(commands);
        }
        if let Some(here) = self.connected.get(&rank) {
            let Member { host, process, .. } = &here.member;
            let message = format!("rank {rank} is connected already, from {host} (pid {process})");
            return Some(
                Error::new(Kind::Rendezvous, message).hint("end that process, or wait until it is removed"),
            );
        }
        if self.policy.membership.has(rank) {
            return Some(Error::new(
                Kind::Rendezvous,
                format!("the others wait for rank {rank} to connect again"),
            ));
        }
        join.kind = JoinKind::New;
        None
    }
}
