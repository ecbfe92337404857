//! A simulated rank's way into the next generation of its group, and its clock: where it dies if it is killed.

use super::office::{Office, Roster, Said};
use crate::beacon::Beacon;
use crate::hosts::Hosts;
use crate::judgement::Rules;
use crate::membership::Standing;
use crate::regroup::{Change, Generation, Regroup, impossible_report};
use crate::rendezvous::message::Control;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use thalweg_comm::host::Neighbours;
use thalweg_comm::transport::sim::Seat;
use thalweg_core::clock::Clock;
use thalweg_core::event::Pulse;
use thalweg_core::{Culprit, Error, Kind, Result};

/// How long it waits before it looks whether the job is over.
const GLANCE: Duration = Duration::from_millis(20);

/// What a killed rank's thread ends with: no program can survive it.
pub(super) struct Killed;

/// Speaks for a rank.
#[derive(Clone)]
pub(super) struct Envoy {
    pub number: usize,
    pub seat: Seat,
    pub office: Arc<Office>,
    pub rules: Rules,
    /// The generation it is in, or on its way into.
    pub generation: Arc<AtomicU32>,
}

impl Envoy {
    fn beacon(&self) -> &Beacon {
        &self.office.beacons[self.number]
    }

    fn now(&self) -> Duration {
        self.seat.clock().now()
    }

    /// A killed process does not go on.
    pub fn live(&self) {
        if self.seat.fate(self.number).is_dead {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    fn wait(&self) {
        self.seat.wait(GLANCE);
        self.live();
    }

    pub fn say(&self, said: Said) {
        self.office.write(&self.seat, self.number, said);
    }

    /// The first generation this rank is in.
    pub fn arrive(&mut self, is_new: bool) -> Result<Generation> {
        self.live();
        self.say(if is_new { Said::Come } else { Said::First });
        let roster = self.await_roster(0)?;
        self.enter(roster, Standing::default(), &Pulse::default())
    }

    /// Tells what it saw of another's end, and waits for what follows from it.
    pub fn testify(&self, error: &Error, pulse: &Pulse, source: Option<usize>) {
        self.live();
        self.say(Said::Word(Control::Witness(Box::new(error.clone()), pulse.clone(), source)));
        let end = self.now() + self.rules.step_deadline + self.rules.prepare_deadline;
        loop {
            self.seat.mark();
            if self.beacon().ending(self.generation.load(Ordering::Relaxed)).is_some() {
                return;
            }
            if self.now() >= end {
                // Nobody has anything to say to that.
                return self.beacon().condemn(error.clone());
            }
            self.wait();
        }
    }

    fn await_roster(&self, after: u32) -> Result<Roster> {
        let Rules { limits, step_deadline, prepare_deadline, .. } = &self.rules;
        let patience = limits.patience.max(*prepare_deadline) + 2 * *step_deadline;
        let end = self.now() + patience;
        loop {
            self.seat.mark();
            self.beacon().verdict().map_or(Ok(()), Err)?;
            if let Some(roster) = self.office.roster(self.number, after, self.now()) {
                return Ok(roster);
            }
            if self.now() >= end {
                let words = format!("no group was formed within {} s", patience.as_secs_f64());
                return Err(Error::new(Kind::RankFailed, words));
            }
            self.wait();
        }
    }

    /// Goes into that group or, if it does not come about, into the next that does.
    fn enter(&mut self, mut roster: Roster, standing: Standing, doing: &Pulse) -> Result<Generation> {
        // Of groups that did not come about.
        let mut untold = Change::default();
        loop {
            let generation = roster.formed.generation;
            self.generation.store(generation, Ordering::Relaxed);
            if let Err(error) = self.reach(&roster, doing)
                && error.kind != Kind::Regroup
            {
                self.beacon().testify(&error);
            }
            match self.beacon().ending(generation) {
                None => {
                    let mut connected = self.connect(roster);
                    connected.change.follow(untold);
                    return Ok(connected);
                }
                Some(error) if error.kind != Kind::Regroup => return Err(error),
                Some(_) => {}
            }
            self.say(Said::Word(Control::Report(generation, standing, doing.clone())));
            let Roster { formed, lost, .. } = roster;
            let mut passed = Change { lost, joined: formed.joined, left: formed.left, ..Change::default() };
            passed.follow(untold);
            untold = passed;
            roster = self.await_roster(generation)?;
        }
    }

    /// Whether all members can be reached.
    fn reach(&self, roster: &Roster, doing: &Pulse) -> Result<()> {
        let Some(&peer) = roster.formed.members.keys().find(|peer| self.seat.is_cut_off(**peer)) else {
            return Ok(());
        };
        let end = self.now() + self.rules.step_deadline;
        while self.now() < end {
            self.seat.mark();
            self.beacon().ending(roster.formed.generation).map_or(Ok(()), Err)?;
            self.wait();
        }
        let cause =
            format!("cannot be reached: no answer within {} s", self.rules.step_deadline.as_secs_f64());
        Err(Error::new(Kind::RankFailed, format!("rank {peer} {cause}")).blame(Culprit {
            rank: peer,
            step: Some(doing.step),
            operation: Some("forming of the group".into()),
            cause,
            ..Culprit::default()
        }))
    }

    fn connect(&self, roster: Roster) -> Generation {
        let Roster { formed, lost, .. } = roster;
        let numbers: Vec<usize> = formed.members.keys().copied().collect();
        Generation {
            number: formed.generation,
            transport: Box::new(self.seat.connect(formed.generation, &numbers)),
            neighbours: Neighbours::new(),
            carrier: "sim",
            hosts: Hosts::one("sim", numbers.len()),
            numbers,
            change: Change {
                standings: formed.members.into_values().collect(),
                lost,
                joined: formed.joined,
                left: formed.left,
                heard: Vec::new(),
            },
        }
    }
}

impl Regroup for Envoy {
    fn next(&mut self, after: u32, standing: Standing, doing: &Pulse, _: &Neighbours) -> Result<Generation> {
        self.live();
        self.say(Said::Word(Control::Report(after, standing, doing.clone())));
        let roster = self.await_roster(after)?;
        self.enter(roster, standing, doing)
    }

    fn leave(&mut self) {
        self.say(Said::Word(Control::Leave));
    }

    fn misreport(&mut self) {
        self.say(Said::Word(impossible_report()));
    }
}

impl Clock for Envoy {
    fn now(&self) -> Duration {
        Envoy::now(self)
    }

    fn sleep(&self, duration: Duration) {
        self.seat.clock().sleep(duration);
        self.live();
    }

    fn charge(&self, operations: u64) {
        self.seat.clock().charge(operations);
        self.live();
    }

    fn is_virtual(&self) -> bool {
        true
    }
}
