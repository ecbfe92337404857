//! Before a newcomer enters the group: can it be connected with all who are there?
//!
//! Of two ranks the higher one calls the lower, so that way is tried, by that one: it opens a connection to the other's data
//! port and says what came of it. A newcomer that cannot be connected is told so and goes; nobody else has waited for it.

use super::Chair;
use crate::rendezvous::message::{Answer, Control, send};
use crate::rendezvous::{describe, mesh};
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_core::{Error, Kind};

/// The least time for all to try, and to say what came of it.
const LEAST: Duration = Duration::from_secs(10);

/// A newcomer on its way in.
pub(super) struct Candidate {
    since: Duration,
    /// Who has not said yet whether it can reach whom.
    awaited: BTreeSet<(usize, usize)>,
}

impl Chair {
    /// Asks for what has to be known before a newcomer is let in; one that meets nobody is.
    pub(super) fn examine(&mut self, newcomer: usize) {
        let others = self.guests.keys().copied().filter(|other| *other != newcomer);
        let awaited: BTreeSet<(usize, usize)> =
            others.map(|other| (other.max(newcomer), other.min(newcomer))).collect();
        for (caller, called) in &awaited {
            self.ask_to_probe(*caller, *called);
        }
        let since = self.now();
        self.candidates.insert(newcomer, Candidate { since, awaited });
        self.follow_probes(since);
    }

    fn ask_to_probe(&mut self, caller: usize, called: usize) {
        let leads = called == self.charge.own;
        let Some(member) = self.guests.get(&called).map(|guest| guest.member.clone()) else { return };
        let Some(caller) = self.guests.get_mut(&caller) else { return };
        // One that cannot hear it has gone, and is noticed by its reader.
        let _ = match caller.settled {
            true => send(&mut caller.stream, &Control::Probe(Box::new(member))),
            false => send(&mut caller.stream, &Answer::Probe { member: Box::new(member), leads }),
        };
    }

    /// A rank says whether it can reach another.
    pub(super) fn judge_probe(&mut self, caller: usize, called: usize, error: Option<String>) {
        let pair = (caller, called);
        let asked = self.candidates.iter_mut().find(|(_, candidate)| candidate.awaited.contains(&pair));
        let Some((&newcomer, candidate)) = asked else { return };
        candidate.awaited.remove(&pair);
        match error {
            None => self.follow_probes(self.now()),
            Some(words) => {
                let name = |number: usize| self.name(number);
                let way = self
                    .guests
                    .get(&called)
                    .map_or(String::new(), |guest| format!(" at {}", describe(guest.member.data)));
                let message = format!("{} cannot reach {}{way}: {words}", name(caller), name(called));
                self.refuse(newcomer, &Error::new(Kind::Rendezvous, message).hint(mesh::ADVICE));
            }
        }
    }

    fn name(&self, number: usize) -> String {
        let host = self.guests.get(&number).map(|guest| &guest.member.host);
        host.map_or_else(|| format!("rank {number}"), |host| format!("rank {number} on {host}"))
    }

    /// Lets in those of whom all is known, and sends away those of whom it takes too long.
    pub(super) fn follow_probes(&mut self, now: Duration) {
        let patience = self.charge.rules.step_deadline.max(LEAST);
        let guests = &self.guests;
        let here = |number: &usize| guests.contains_key(number);
        self.candidates.retain(|number, _| here(number));
        for candidate in self.candidates.values_mut() {
            candidate.awaited.retain(|(caller, called)| here(caller) && here(called));
        }
        let known = |candidate: &Candidate| candidate.awaited.is_empty();
        let ready = self.candidates.iter().find(|(_, candidate)| known(candidate)).map(|(number, _)| *number);
        if let Some(number) = ready {
            self.candidates.remove(&number);
            let orders = self.judgement.membership.come(number, now);
            let rulings = self.judgement.rule(orders, now);
            self.carry_out(rulings);
            return self.follow_probes(now);
        }
        let late = |candidate: &Candidate| now.saturating_sub(candidate.since) >= patience;
        let late = self.candidates.iter().find(|(_, candidate)| late(candidate));
        if let Some((&number, candidate)) = late {
            let (caller, called) = candidate.awaited.first().copied().unwrap_or((number, number));
            let seconds = patience.as_secs_f64();
            let message =
                format!("rank {caller} did not say within {seconds} s whether it can reach rank {called}");
            self.refuse(number, &Error::new(Kind::Rendezvous, message).hint("try again"));
        }
    }
}
