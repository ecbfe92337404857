//! Probes whether a newcomer and all members can be connected, before it is admitted.
//!
//! Of two ranks the higher one connects to the lower, so the higher one probes: it opens a connection to the other's data
//! port and reports the result. A newcomer that cannot be connected is refused, without having held up the others.

use super::Coordinator;
use crate::membership_policy::MembershipActions;
use crate::rendezvous::message::{Control, ControlResponse, send};
use crate::rendezvous::{describe, mesh};
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_core::{Error, Kind};

/// The least time for all probes and their results.
const MIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A newcomer that is being probed.
pub(super) struct Candidate {
    since: Duration,
    /// Pairs (caller, called) without a result yet.
    awaited: BTreeSet<(usize, usize)>,
}

impl Coordinator {
    /// Requests all probes of a newcomer; without other ranks it is admitted at once.
    pub(super) fn start_probes(&mut self, newcomer: usize) {
        let others = self.connected.keys().copied().filter(|other| *other != newcomer);
        let awaited: BTreeSet<(usize, usize)> =
            others.map(|other| (other.max(newcomer), other.min(newcomer))).collect();
        for (caller, called) in &awaited {
            self.request_probe(*caller, *called);
        }
        let since = self.now();
        self.candidates.insert(newcomer, Candidate { since, awaited });
        self.check_probes(since);
    }

    fn request_probe(&mut self, caller: usize, called: usize) {
        let leads = called == self.config.own;
        let Some(member) = self.connected.get(&called).map(|peer| peer.member.clone()) else { return };
        let Some(caller) = self.connected.get_mut(&caller) else { return };
        // An error means that it is gone, which its reader notices.
        let _ = match caller.has_roster {
            true => send(&mut caller.stream, &Control::Probe(Box::new(member))),
            false => send(&mut caller.stream, &ControlResponse::Probe { member: Box::new(member), leads }),
        };
    }

    pub(super) fn on_probe_result(&mut self, caller: usize, called: usize, error: Option<String>) {
        let pair = (caller, called);
        let asked = self.candidates.iter_mut().find(|(_, candidate)| candidate.awaited.contains(&pair));
        let Some((&newcomer, candidate)) = asked else { return };
        candidate.awaited.remove(&pair);
        match error {
            None => self.check_probes(self.now()),
            Some(error) => {
                let name = |id: usize| self.name(id);
                let address = self
                    .connected
                    .get(&called)
                    .map_or(String::new(), |peer| format!(" at {}", describe(peer.member.data)));
                let message = format!("{} cannot reach {}{address}: {error}", name(caller), name(called));
                self.refuse(newcomer, &Error::new(Kind::Rendezvous, message).hint(mesh::ADVICE));
            }
        }
    }

    fn name(&self, id: usize) -> String {
        let host = self.connected.get(&id).map(|peer| &peer.member.host);
        host.map_or_else(|| format!("rank {id}"), |host| format!("rank {id} on {host}"))
    }

    /// Admits newcomers whose probes have all succeeded, and refuses those whose probes take too long.
    pub(super) fn check_probes(&mut self, now: Duration) {
        let timeout = self.config.membership.step_deadline.max(MIN_TIMEOUT);
        let connected = &self.connected;
        let is_connected = |id: &usize| connected.contains_key(id);
        self.candidates.retain(|id, _| is_connected(id));
        for candidate in self.candidates.values_mut() {
            candidate.awaited.retain(|(caller, called)| is_connected(caller) && is_connected(called));
        }
        let complete = |candidate: &Candidate| candidate.awaited.is_empty();
        let ready = self.candidates.iter().find(|(_, candidate)| complete(candidate)).map(|(id, _)| *id);
        if let Some(id) = ready {
            self.candidates.remove(&id);
            let commands = self.policy.membership.add(id, now);
            let commands = self.policy.complete(commands, now);
            self.execute(commands);
            return self.check_probes(now);
        }
        let late = |candidate: &Candidate| now.saturating_sub(candidate.since) >= timeout;
        let late = self.candidates.iter().find(|(_, candidate)| late(candidate));
        if let Some((&id, candidate)) = late {
            let (caller, called) = candidate.awaited.first().copied().unwrap_or((id, id));
            let seconds = timeout.as_secs_f64();
            let message =
                format!("rank {caller} did not report within {seconds} s whether it can reach rank {called}");
            self.refuse(id, &Error::new(Kind::Rendezvous, message).hint("try again"));
        }
    }
}
