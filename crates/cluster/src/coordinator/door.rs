//! Who comes to the coordinator, and whether it may stay.

use super::Chair;
use super::connection::Guest;
use crate::exhaustion;
use crate::rendezvous::message::{Answer, Arrival, Call, Join, Member, send};
use crate::rendezvous::welcome;
use std::net::TcpStream;
use thalweg_core::{Error, Kind};

/// How many may prepare to come at a time.
const MOST_PROMISED: usize = 1024;

/// How far above those of the first group numbers may go: what a stranger says is not what memory is made for.
const MOST_NEW: usize = 1 << 16;

impl Chair {
    /// Somebody proven has come.
    pub(super) fn welcome(&mut self, call: Call, mut stream: TcpStream) {
        if self.verdict.is_some() {
            return self.turn_back(&call, stream);
        }
        let mut join = match call {
            Call::Ask => {
                let answer = match self.promise() {
                    Some(number) => Answer::Job { text: self.charge.text.clone(), number },
                    None => Answer::Refused(Error::new(
                        Kind::Rendezvous,
                        format!("{MOST_PROMISED} workers prepare to join already: try again later"),
                    )),
                };
                let _ = send(&mut stream, &answer);
                return;
            }
            Call::Status => {
                let _ = send(&mut stream, &Answer::Status(Box::new(self.status())));
                return;
            }
            Call::Join(join) => *join,
        };
        if !join.run.is_empty() && join.run != self.charge.run {
            let _ = send(&mut stream, &Answer::OtherRun);
            return;
        }
        if let Some(error) = self.started_again(&mut join) {
            let _ = send(&mut stream, &Answer::NotYet(error));
            return;
        }
        let number = join.member.rank;
        // A rank that lost its connection may come again.
        if self.guests.get(&number).is_some_and(|guest| welcome::is_gone(&guest.stream))
            && !self.judgement.membership.is_working()
        {
            self.guests.remove(&number);
        }
        match self.object(&join) {
            Some(refusal) => {
                let reason = refusal.message.clone();
                self.promised.remove(&number);
                let _ = send(&mut stream, &Answer::Refused(refusal));
                (self.voice.say)(format!("turned away a caller from {}: {reason}", join.member.host));
                if self.judgement.membership.has(number) {
                    self.turned_away.insert(number, reason.clone());
                }
                if self.mismatch(&join).is_some() {
                    self.end_for(&join, &reason);
                }
            }
            None => self.admit(join, stream),
        }
    }

    /// A number for somebody who prepares to come: nobody else gets it as long as it may take.
    fn promise(&mut self) -> Option<usize> {
        let (now, patience) = (self.now(), self.charge.rules.prepare_deadline);
        self.promised.retain(|_, since| now.saturating_sub(*since) < patience);
        if self.promised.len() >= MOST_PROMISED {
            return None;
        }
        let mut number = self.judgement.membership.free_number(self.charge.world);
        while self.promised.contains_key(&number) || self.guests.contains_key(&number) {
            number = self.judgement.membership.free_number(number + 1);
        }
        self.promised.insert(number, now);
        Some(number)
    }

    /// Why a rank has come to the wrong job.
    fn mismatch(&self, join: &Join) -> Option<String> {
        let charge = &self.charge;
        welcome::object(join, (charge.job, &charge.text), (&charge.model, &charge.data), charge.world)
    }

    /// Why a rank cannot join.
    fn object(&self, join: &Join) -> Option<Error> {
        let refused = |reason: String| Some(Error::new(Kind::Rendezvous, reason));
        let rank = join.member.rank;
        let charge = &self.charge;
        if let Some(reason) = self.mismatch(join) {
            return refused(reason);
        }
        if let Some(here) = self.guests.get(&rank) {
            let Member { host, process, .. } = &here.member;
            return refused(format!("rank {rank} is here already, from {host} (pid {process})"));
        }
        let membership = &self.judgement.membership;
        match join.arrival {
            Arrival::New if !charge.rules.elastic => {
                refused("the job takes nobody in: fault.elastic = false".into())
            }
            Arrival::New if !membership.has_room(self.candidates.len()) => {
                refused(format!("there are {} workers already: fault.max_workers", charge.rules.limits.most))
            }
            Arrival::New if rank >= charge.world + MOST_NEW => {
                refused(format!("there is no number {rank} to give"))
            }
            Arrival::New if membership.has(rank) => refused(format!("the number {rank} is taken")),
            Arrival::First | Arrival::Again { .. } if !membership.has(rank) => match self.given_up(rank) {
                Some(given_up) => Some(Error { kind: Kind::Rendezvous, ..given_up }),
                None => refused(format!("there is no rank {rank} among {} ranks", charge.expected.len())),
            },
            Arrival::Again { after, standing } => {
                refused(format!("rank {rank} cannot be right: {}", membership.objection(after, standing)?))
            }
            _ => None,
        }
    }

    fn admit(&mut self, join: Join, stream: TcpStream) {
        let Join { member, arrival, doing, .. } = join;
        let (number, now) = (member.rank, self.now());
        self.promised.remove(&number);
        self.serial += 1;
        let name = format!("{} (pid {})", member.host, member.process);
        let guest = match Guest::new(member, stream, self.serial, &self.sender) {
            Ok(guest) => guest,
            Err(error) => {
                let what = format!("cannot listen to rank {number}");
                let explained = exhaustion::explain(&what, &error);
                return self.run_short(explained.unwrap_or_else(|| exhaustion::explain_thread(&what)));
            }
        };
        self.judgement.inquest.name(number, name);
        self.guests.insert(number, guest);
        let orders = match arrival {
            Arrival::First => self.judgement.membership.report(number, 0, Default::default(), now),
            Arrival::Again { after, standing } => {
                self.judgement.see_waiting(&doing);
                self.judgement.membership.report(number, after, standing, now)
            }
            Arrival::New => return self.examine(number),
        };
        let rulings = self.judgement.rule(orders, now);
        self.carry_out(rulings);
    }
}
