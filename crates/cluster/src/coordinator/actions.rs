//! How the coordinator executes the commands of the membership policy.

use super::Coordinator;
use crate::linux;
use crate::membership::MembershipView;
use crate::membership_policy::MembershipActions;
use crate::rendezvous::REMINDER;
use crate::rendezvous::message::{Control, ControlResponse, Roster, send};
use std::time::{Duration, Instant};
use thalweg_core::event::Event;
use thalweg_core::{Culprit, Error, Kind};

/// How long the launcher may take to kill this process, before it kills itself.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(1);

impl MembershipActions for Coordinator {
    fn disconnect(&mut self, id: usize) {
        self.candidates.remove(&id);
        let Some(mut peer) = self.connected.remove(&id) else { return };
        if let (true, Some(error)) = (peer.has_roster, self.removal_error(id)) {
            // The launcher of this host kills its own ranks, and does not take their exit for the end of the job.
            if let Some(cause) = error.culprit.as_ref().map(|culprit| culprit.cause.clone()) {
                (self.callbacks.emit)(Event::GaveUp { culprit: id, cause });
            }
            let _ = send(&mut peer.stream, &Control::Abort(Box::new(error)));
        }
    }

    fn interrupt(&mut self, generation: u32, reason: Error) {
        self.broadcast(&Control::Interrupt(generation, Box::new(reason)));
    }

    /// The rank in this process passes the request on with its gradient; if it has left, another member does.
    fn pause(&mut self) {
        if !self.has_left {
            return self.callbacks.rank_status.request_pause(true);
        }
        let membership = &self.policy.membership;
        let first = self.connected.iter_mut().find(|(id, peer)| peer.has_roster && membership.has(**id));
        if let Some((_, peer)) = first {
            // An error means that it is gone, which its reader notices.
            let _ = send(&mut peer.stream, &Control::Pause);
        }
    }

    fn call_meeting(&mut self, called: u64) {
        let rows = self.policy.meetings.rows();
        self.broadcast(&Control::Meeting { called, rows });
    }

    /// The launcher of this host kills the rank if it is one of its own; on other hosts the rank's process ends itself.
    fn remove_stuck(&mut self, id: usize, culprit: Culprit) {
        (self.callbacks.emit)(Event::GaveUp { culprit: id, cause: culprit.cause.clone() });
        let message = format!("{} {}", self.policy.diagnosis.name(id), culprit.cause);
        let error = Error::new(Kind::RankFailed, message).blame(culprit.clone());
        match (id == self.config.own, self.config.launcher) {
            (false, _) => {
                if let Some(peer) = self.connected.get_mut(&id) {
                    // If it cannot receive this, its local peers or its launcher kill it.
                    let _ = send(&mut peer.stream, &Control::Abort(Box::new(error)));
                }
                self.remove(id, culprit);
            }
            // The launcher gives the role to another rank.
            (true, Some(_)) => {
                std::thread::sleep(LAUNCHER_TIMEOUT);
                linux::kill_self();
            }
            // Without a launcher no other rank can take the role.
            (true, None) => self.abort(error),
        }
    }

    fn form(&mut self, view: MembershipView, lost: Vec<Culprit>) {
        self.callbacks.rank_status.request_pause(false);
        if self.should_hand_over(&view, &lost) {
            return self.hand_over(view);
        }
        let MembershipView { generation, members, joined, left, .. } = view;
        let info = |id: &usize| self.connected.get(id).map(|peer| peer.member.clone());
        let roster = Roster {
            generation,
            leader: self.config.own,
            members: members.keys().filter_map(info).collect(),
            positions: members.values().copied().collect(),
            lost,
            joined,
            left,
        };
        for id in members.keys() {
            let Some(peer) = self.connected.get_mut(id) else { continue };
            // The reader notices a member that has left meanwhile.
            let _ = if std::mem::replace(&mut peer.has_roster, true) {
                send(&mut peer.stream, &Control::Roster(Box::new(roster.clone())))
            } else {
                send(&mut peer.stream, &ControlResponse::Roster(roster.clone()))
            };
        }
        if !self.config.membership.elastic {
            // No other rank can join: the port is free for the next job.
            self.stop_listening();
        }
        self.next_report = REMINDER;
    }

    fn abort(&mut self, error: Error) {
        self.aborted_at = Some(Instant::now());
        self.abort_error = Some(error.clone());
        let culprit = error.culprit.as_ref().map(|culprit| culprit.rank);
        self.informed.extend(self.connected.keys());
        for peer in self.connected.values_mut() {
            let _ = if peer.has_roster {
                send(&mut peer.stream, &Control::Abort(Box::new(error.clone())))
            } else {
                send(&mut peer.stream, &ControlResponse::Refused(error.clone()))
            };
        }
        // The culprit may never close its connection.
        if let Some(culprit) = culprit {
            self.connected.remove(&culprit);
        }
    }
}
