//! Requests to the coordinator, and whether a rank is admitted.

use super::Coordinator;
use super::connection::ConnectedMember;
use crate::membership_policy::MembershipActions;
use crate::rendezvous::join_validation;
use crate::rendezvous::message::{ControlRequest, ControlResponse, JoinKind, JoinRequest, Member, send};
use crate::resource_limits;
use std::net::TcpStream;
use thalweg_core::{Error, Kind};

/// How many workers may prepare to join at a time.
const MAX_RESERVED: usize = 1024;

/// How far ids may exceed those of the first group: tables are indexed by ids that peers send.
const MAX_NEW: usize = 1 << 16;

impl Coordinator {
    /// An authenticated process has sent its request.
    pub(super) fn on_request(&mut self, request: ControlRequest, mut stream: TcpStream) {
        if self.aborted_at.is_some() {
            return self.refuse_late(&request, stream);
        }
        let mut join = match request {
            ControlRequest::Job => {
                let response = match self.reserve_id() {
                    Some(id) => ControlResponse::Job { text: self.config.text.clone(), number: id },
                    None => ControlResponse::Refused(Error::new(
                        Kind::Rendezvous,
                        format!("{MAX_RESERVED} workers prepare to join already: try again later"),
                    )),
                };
                let _ = send(&mut stream, &response);
                return;
            }
            ControlRequest::Status => {
                let _ = send(&mut stream, &ControlResponse::Status(Box::new(self.status())));
                return;
            }
            ControlRequest::Join(join) => *join,
        };
        if !join.run.is_empty() && join.run != self.config.run {
            let _ = send(&mut stream, &ControlResponse::OtherRun);
            return;
        }
        if let Some(error) = self.on_restart(&mut join) {
            let _ = send(&mut stream, &ControlResponse::NotYet(error));
            return;
        }
        let id = join.member.rank;
        // A rank that lost its connection may connect again.
        if self.connected.get(&id).is_some_and(|peer| join_validation::is_closed(&peer.stream))
            && !self.policy.membership.is_working()
        {
            self.connected.remove(&id);
        }
        match self.objection(&join) {
            Some(refusal) => {
                let reason = refusal.message.clone();
                self.reserved.remove(&id);
                let _ = send(&mut stream, &ControlResponse::Refused(refusal));
                (self.callbacks.warn)(format!("refused a connection from {}: {reason}", join.member.host));
                if self.policy.membership.has(id) {
                    self.refusals.insert(id, reason.clone());
                }
                if self.mismatch(&join).is_some() {
                    self.abort_for_mismatch(&join, &reason);
                }
            }
            None => self.admit(join, stream),
        }
    }

    /// Reserves an id for a worker that prepares to join, for as long as that may take.
    fn reserve_id(&mut self) -> Option<usize> {
        let (now, timeout) = (self.now(), self.config.membership.prepare_deadline);
        self.reserved.retain(|_, since| now.saturating_sub(*since) < timeout);
        if self.reserved.len() >= MAX_RESERVED {
            return None;
        }
        let mut id = self.policy.membership.free_id(self.config.world);
        while self.reserved.contains_key(&id) || self.connected.contains_key(&id) {
            id = self.policy.membership.free_id(id + 1);
        }
        self.reserved.insert(id, now);
        Some(id)
    }

    /// How a rank's job differs from this one.
    fn mismatch(&self, join: &JoinRequest) -> Option<String> {
        let config = &self.config;
        join_validation::mismatch(
            join,
            (config.job, &config.text),
            (&config.model, &config.data),
            config.world,
        )
    }

    /// Why a rank cannot join.
    fn objection(&self, join: &JoinRequest) -> Option<Error> {
        let refused = |reason: String| Some(Error::new(Kind::Rendezvous, reason));
        let rank = join.member.rank;
        let config = &self.config;
        if let Some(reason) = self.mismatch(join) {
            return refused(reason);
        }
        if let Some(here) = self.connected.get(&rank) {
            let Member { host, process, .. } = &here.member;
            return refused(format!("rank {rank} is connected already, from {host} (pid {process})"));
        }
        let membership = &self.policy.membership;
        match join.kind {
            JoinKind::New if !config.membership.elastic => {
                refused("the job admits no new workers: fault.elastic = false".into())
            }
            JoinKind::New if !membership.has_room(self.candidates.len()) => refused(format!(
                "there are {} workers already: fault.max_workers",
                config.membership.limits.max
            )),
            JoinKind::New if rank >= config.world + MAX_NEW => {
                refused(format!("the id {rank} is out of range"))
            }
            JoinKind::New if membership.has(rank) => refused(format!("the id {rank} is taken")),
            JoinKind::Initial | JoinKind::Rejoin { .. } if !membership.has(rank) => {
                match self.removal_error(rank) {
                    Some(error) => Some(Error { kind: Kind::Rendezvous, ..error }),
                    None => refused(format!("there is no rank {rank} among {} ranks", config.expected.len())),
                }
            }
            JoinKind::Rejoin { after, position } => refused(format!(
                "the report of rank {rank} is impossible: {}",
                membership.objection(after, position)?
            )),
            _ => None,
        }
    }

    fn admit(&mut self, join: JoinRequest, stream: TcpStream) {
        let JoinRequest { member, kind, doing, .. } = join;
        let (id, now) = (member.rank, self.now());
        self.reserved.remove(&id);
        self.serial += 1;
        let location = format!("{} (pid {})", member.host, member.process);
        let peer = match ConnectedMember::new(member, stream, self.serial, &self.sender) {
            Ok(peer) => peer,
            Err(error) => {
                let what = format!("cannot listen to rank {id}");
                let explained = resource_limits::explain(&what, &error);
                return self
                    .on_exhausted(explained.unwrap_or_else(|| resource_limits::explain_thread(&what)));
            }
        };
        self.policy.diagnosis.set_location(id, location);
        self.connected.insert(id, peer);
        let commands = match kind {
            JoinKind::Initial => self.policy.membership.report(id, 0, Default::default(), now),
            JoinKind::Rejoin { after, position } => {
                self.policy.note_wait(&doing);
                self.policy.membership.report(id, after, position, now)
            }
            JoinKind::New => return self.start_probes(id),
        };
        let commands = self.policy.complete(commands, now);
        self.execute(commands);
    }
}
