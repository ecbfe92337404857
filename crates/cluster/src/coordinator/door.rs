//! Who comes to the coordinator, and whether it may stay.

use super::{Chair, Guest, read};
use crate::rendezvous::message::{Answer, Arrival, Call, Join, Member, send};
use crate::rendezvous::welcome;
use std::net::TcpStream;
use std::time::Duration;
use thalweg_core::{Error, Kind};

/// How far above those of the first group numbers may go: what a stranger says is not what memory is made for.
const MOST_NEW: usize = 1 << 16;

impl Chair {
    /// Somebody proven has come.
    pub(super) fn welcome(&mut self, call: Call, mut stream: TcpStream) {
        let join = match call {
            Call::Ask => {
                let (text, number) = (self.charge.text.clone(), self.promise());
                let _ = send(&mut stream, &Answer::Job { text, number });
                return;
            }
            Call::Join(join) => *join,
        };
        let number = join.member.rank;
        // A rank that lost its connection may come again.
        if self.guests.get(&number).is_some_and(|guest| welcome::is_gone(&guest.stream))
            && !self.judgement.membership.is_working()
        {
            self.guests.remove(&number);
        }
        match self.object(&join) {
            Some(reason) => {
                let refusal = Error::new(Kind::Rendezvous, reason.as_str());
                let _ = send(&mut stream, &Answer::Refused(refusal));
                (self.voice.say)(format!("turned away a caller from {}: {reason}", join.member.host));
                self.turned_away.insert(number, reason);
            }
            None => self.admit(join, stream),
        }
    }

    /// A number for somebody who prepares to come: nobody else gets it as long as it may take.
    fn promise(&mut self) -> usize {
        let (now, patience) = (self.now(), self.charge.rules.prepare_deadline);
        self.promised.retain(|_, since| now.saturating_sub(*since) < patience);
        let mut number = self.judgement.membership.free_number(self.charge.world);
        while self.promised.contains_key(&number) || self.guests.contains_key(&number) {
            number = self.judgement.membership.free_number(number + 1);
        }
        self.promised.insert(number, now);
        number
    }

    /// Why a rank cannot join.
    fn object(&self, join: &Join) -> Option<String> {
        let rank = join.member.rank;
        if let Some(reason) = welcome::object(join, self.charge.job, &self.charge.model, self.charge.world) {
            return Some(reason);
        }
        if let Some(here) = self.guests.get(&rank) {
            let Member { host, process, .. } = &here.member;
            return Some(format!("rank {rank} is here already, from {host} (pid {process})"));
        }
        match join.arrival {
            Arrival::New if !self.charge.rules.elastic => {
                Some("the job takes nobody in: fault.elastic = false".into())
            }
            Arrival::New if !self.judgement.membership.has_room() => Some(format!(
                "there are {} workers already: fault.max_workers",
                self.charge.rules.limits.most
            )),
            Arrival::New if rank >= self.charge.world + MOST_NEW => {
                Some(format!("there is no number {rank} to give"))
            }
            Arrival::New if self.judgement.membership.has(rank) => {
                Some(format!("the number {rank} is taken"))
            }
            Arrival::First | Arrival::Again { .. } if !self.judgement.membership.has(rank) => {
                Some(format!("there is no rank {rank} among {} ranks", self.charge.expected.len()))
            }
            _ => None,
        }
    }

    fn admit(&mut self, join: Join, stream: TcpStream) {
        let Join { member, arrival, doing, .. } = join;
        let (number, now) = (member.rank, self.now());
        self.promised.remove(&number);
        self.serial += 1;
        let serial = self.serial;
        let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
        if let Ok(reader) = stream.try_clone() {
            let sender = self.sender.clone();
            std::thread::spawn(move || read(reader, serial, number, &sender));
        }
        self.judgement.inquest.name(number, format!("{} (pid {})", member.host, member.process));
        self.guests.insert(number, Guest { member, stream, serial, settled: false });
        let orders = match arrival {
            Arrival::First => self.judgement.membership.report(number, 0, Default::default(), now),
            Arrival::Again { after, standing } => {
                self.judgement.see_waiting(&doing);
                self.judgement.membership.report(number, after, standing, now)
            }
            Arrival::New => self.judgement.membership.come(number, now),
        };
        let rulings = self.judgement.rule(orders, now);
        self.carry_out(rulings);
    }
}
