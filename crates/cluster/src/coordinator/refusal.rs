//! Those who cannot come in, and those who come when it is over: each is told why, and so is whoever looks at rank 0.

use super::Chair;
use crate::rendezvous::message::{Answer, Arrival, Call, Join, Member, send};
use crate::rendezvous::welcome;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;
use thalweg_core::{Culprit, Error, Kind};

/// How long ranks that have not come before the end are waited for, to be told of it.
const LATECOMERS: Duration = Duration::from_secs(5);

/// Strangers that are named; more are not worth the room.
const STRANGERS: usize = 8;

impl Chair {
    /// Somebody could not prove itself. Who it is is not known: it is told, and nothing else is done.
    pub(super) fn hear_of_stranger(&mut self, from: IpAddr, why: &str) {
        if self.strangers.len() < STRANGERS && !self.strangers.contains_key(&from) {
            (self.voice.say)(format!("turned away a caller from {from}: it {why}"));
            self.strangers.insert(from, why.to_string());
        }
    }

    /// Before the first group, a rank that has come to the wrong job will not come to the right one: it is over for all.
    pub(super) fn end_for(&mut self, join: &Join, reason: &str) {
        let expected = self.judgement.membership.has(join.member.rank);
        let first = join.arrival == Arrival::First && self.judgement.membership.generation() == 0;
        if !(first && expected) || self.guests.contains_key(&join.member.rank) || self.verdict.is_some() {
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
        self.told.insert(*rank);
        let error = Error::new(Kind::Rendezvous, reason).blame(culprit);
        self.abort(error.hint("start all ranks with the same job, flags, data and world"));
    }

    /// After the end: whoever comes is told why it is over.
    pub(super) fn turn_back(&mut self, call: &Call, mut stream: TcpStream) {
        if let Some(error) = &self.last_word {
            let _ = send(&mut stream, &Answer::Refused(error.clone()));
        }
        if let Call::Join(join) = call {
            self.told.insert(join.member.rank);
        }
    }

    /// How long to stay after the end: until all who may still come have been told.
    pub(super) fn farewell(&self) -> Option<Duration> {
        // A rank 0 that never began does not come itself.
        let absent = self.charge.failed.is_some().then_some(self.charge.own);
        let owed = |rank: &usize| {
            Some(*rank) != absent && !self.told.contains(rank) && !self.guests.contains_key(rank)
        };
        let early = self.judgement.membership.generation() == 0;
        (early && self.listener.is_some() && self.charge.expected.iter().any(owed)).then_some(LATECOMERS)
    }

    /// A rank that was started again under its number, while the others have gone on without it, comes as a newcomer; one
    /// whose loss has not been noticed yet has to come again.
    pub(super) fn started_again(&mut self, join: &mut Join) -> Option<Error> {
        let rank = join.member.rank;
        let began = self.judgement.membership.generation() > 0 && self.charge.rules.elastic;
        if join.arrival != Arrival::First || !began || self.verdict.is_some() {
            return None;
        }
        if self.guests.get(&rank).is_some_and(|guest| welcome::is_gone(&guest.stream)) {
            let now = self.now();
            let rulings = self.judgement.close(rank, now, now);
            self.carry_out(rulings);
        }
        if let Some(here) = self.guests.get(&rank) {
            let Member { host, process, .. } = &here.member;
            let words = format!("rank {rank} is here already, from {host} (pid {process})");
            return Some(
                Error::new(Kind::Rendezvous, words).hint("end that process, or wait until it is given up"),
            );
        }
        if self.judgement.membership.has(rank) {
            return Some(Error::new(
                Kind::Rendezvous,
                format!("the others wait for rank {rank} to come back"),
            ));
        }
        join.arrival = Arrival::New;
        None
    }
}
