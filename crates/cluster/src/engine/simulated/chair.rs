//! Whoever leads a simulated group: the rules of real ones, in virtual time.
//!
//! It has a seat of its own behind all ranks. What it hears takes a moment to arrive, the dead are noticed as a closed
//! connection is, and whoever stands still gives no pulse. It never dies itself: the election of another coordinator is left
//! to real processes.

use super::office::{Office, Roster, Said};
use crate::inquest::PATIENCE;
use crate::judgement::{Judgement, Rules, Ruling};
use crate::line::PULSE;
use crate::membership::Formed;
use crate::regroup::impossible_report;
use crate::rendezvous::message::Control;
use crate::rendezvous::welcome;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::transport::sim::{Seat, SimClock};
use thalweg_core::event::Pulse;
use thalweg_core::{Culprit, Error, Kind};

/// How often it looks after what is due.
const TICK: Duration = Duration::from_millis(50);

/// No job of a test takes longer in its own time.
const ENDLESS: Duration = Duration::from_secs(24 * 3600);

pub(super) struct Chair {
    seat: Seat,
    clock: SimClock,
    office: Arc<Office>,
    judgement: Judgement,
    /// Who is connected.
    guests: BTreeSet<usize>,
    /// What each was last seen in, and since when in virtual time.
    seen: BTreeMap<usize, (Pulse, Duration)>,
    next_pulse: Duration,
    /// How often each has lied so far.
    lies: BTreeMap<usize, u32>,
    is_over: bool,
}

impl Chair {
    pub fn new(seat: Seat, office: Arc<Office>, rules: Rules, world: usize) -> Chair {
        let expected: Vec<usize> = (0..world).collect();
        Chair {
            clock: seat.clock(),
            judgement: Judgement::new(rules, &expected, 0, &[], world, Duration::ZERO),
            guests: BTreeSet::new(),
            seen: BTreeMap::new(),
            next_pulse: Duration::ZERO,
            lies: BTreeMap::new(),
            is_over: false,
            seat,
            office,
        }
    }

    /// Leads until all ranks are gone.
    pub fn preside(mut self) {
        let ranks = self.office.beacons.len();
        loop {
            self.seat.mark();
            let now = self.clock.now();
            while let Some((number, said)) = self.office.open(now) {
                self.hear(number, said, now);
            }
            self.look_about(now);
            if !self.is_over {
                let rulings = self.judgement.look_after(now);
                self.carry_out(rulings, now);
            }
            if (0..ranks).all(|rank| self.seat.fate(rank).is_gone) {
                return;
            }
            if now > ENDLESS {
                // A hang: nothing but the end of all processes ends it.
                (0..ranks).for_each(|rank| self.seat.kill(rank));
            }
            self.seat.wait(TICK.min(PATIENCE));
        }
    }

    fn hear(&mut self, number: usize, said: Said, now: Duration) {
        let rulings = match said {
            Said::First | Said::Come if self.is_over => return self.turn_away(number, "the job is over"),
            Said::First => {
                self.guests.insert(number);
                let orders = self.judgement.membership.report(number, 0, Default::default(), now);
                self.judgement.rule(orders, now)
            }
            Said::Come if !self.judgement.membership.has_room(0) => {
                return self.turn_away(number, "the group is full");
            }
            // Real ranks try it out before one is let in.
            Said::Come if self.is_out_of_reach(number) => {
                return self.turn_away(number, "it cannot be connected with all others");
            }
            Said::Come => {
                self.guests.insert(number);
                let orders = self.judgement.membership.come(number, now);
                self.judgement.rule(orders, now)
            }
            _ if !self.guests.contains(&number) => return,
            Said::Closed => self.judgement.close(number, now, now),
            Said::Word(word) => {
                if matches!(word, Control::Leave | Control::Goodbye | Control::Failed(..)) {
                    self.guests.remove(&number);
                }
                self.judgement.hear(number, word, now)
            }
        };
        self.carry_out(rulings, now);
    }

    fn is_out_of_reach(&self, newcomer: usize) -> bool {
        self.guests.iter().any(|number| self.seat.are_cut_off(*number, newcomer))
    }

    fn turn_away(&self, number: usize, why: &str) {
        let words = format!("rank {number} cannot join: {why}");
        self.office.beacons[number].condemn(Error::new(Kind::Rendezvous, words));
        self.seat.ring(number, self.clock.now());
    }

    /// What becomes of the ranks without a word of theirs.
    fn look_about(&mut self, now: Duration) {
        let pulses = now >= self.next_pulse;
        let members = (0..self.office.beacons.len()).filter(|number| self.judgement.membership.has(*number));
        for number in members.chain(self.guests.iter().copied()).collect::<BTreeSet<usize>>() {
            let fate = self.seat.fate(number);
            if fate.is_dead && !self.is_over {
                // Before the first group is formed nobody but its launcher knows that a rank died.
                let early = self.judgement.membership.generation() == 0;
                let rulings = match early {
                    true => self.judgement.lose(number, welcome::ended(number), now),
                    false => self.judgement.close(number, now, now),
                };
                self.carry_out(rulings, now);
            } else if pulses && !fate.is_stopped && !fate.is_dead && self.guests.contains(&number) {
                let pulse = self.pulse(number, now);
                let rulings = self.judgement.hear(number, Control::Pulse(pulse), now);
                self.carry_out(rulings, now);
                self.office.beacons[number].tell_group(self.judgement.watch.moves());
            }
            if self.lies.get(&number).copied().unwrap_or(0) < fate.lies && self.guests.contains(&number) {
                *self.lies.entry(number).or_default() += 1;
                self.hear_lie(number, now);
            }
            if fate.is_asked_to_leave {
                self.office.beacons[number].request_leave();
            }
        }
        if pulses {
            self.next_pulse = now + PULSE;
            let progress = self.judgement.watch.moves();
            self.guests.iter().for_each(|number| self.office.beacons[*number].tell_group(progress));
        }
        if self.judgement.membership.is_empty() && !self.is_over {
            self.is_over = true;
            self.guests.iter().for_each(|number| self.turn_away(*number, "nobody is left"));
        }
    }

    /// A member says that it comes from a generation that there never was; one that waits to be let in, that it failed.
    fn hear_lie(&mut self, number: usize, now: Duration) {
        if self.judgement.membership.has(number) {
            return self.hear(number, Said::Word(impossible_report()), now);
        }
        let failed = Error::new(Kind::Data, format!("rank {number} has failed, it says"));
        self.hear(number, Said::Word(Control::Failed(Box::new(failed), Pulse::default())), now);
        self.turn_away(number, "it has failed");
    }

    /// What a rank does, and since when by the simulation's time.
    fn pulse(&mut self, number: usize, now: Duration) -> Pulse {
        let Pulse { progress, looks, .. } = self.office.beacons[number].pulse();
        let pulse = Pulse { since: 0.0, progress: 0, looks: 0, ..self.office.beacons[number].pulse() };
        let (before, since) = self.seen.entry(number).or_insert_with(|| (pulse.clone(), now));
        if *before != pulse {
            (*before, *since) = (pulse.clone(), now);
        }
        Pulse { since: (now - *since).as_secs_f64(), progress, looks, ..pulse }
    }

    fn carry_out(&mut self, rulings: Vec<Ruling>, now: Duration) {
        for ruling in rulings {
            match ruling {
                Ruling::Dismiss(number) => {
                    // The dead hear nothing, nor does one that hangs: its launcher ends it.
                    let fate = self.seat.fate(number);
                    if fate.is_livelocked {
                        self.seat.kill(number);
                    }
                    if self.guests.remove(&number) && !fate.is_dead && !fate.is_livelocked {
                        let words = format!("rank {number} was given up, and the others went on without it");
                        self.office.beacons[number].condemn(Error::new(Kind::RankFailed, words));
                        self.seat.ring(number, now);
                    }
                }
                Ruling::Interrupt(generation, why) => {
                    for number in &self.guests {
                        self.office.beacons[*number].interrupt(generation, (*why).clone());
                        self.seat.ring(*number, now);
                    }
                }
                Ruling::Pause => {
                    let first = self.guests.iter().find(|number| self.judgement.membership.has(**number));
                    first.iter().for_each(|number| self.office.beacons[**number].request_pause(true));
                }
                Ruling::Expel(number, culprit) => {
                    let rulings = self.judgement.lose(number, *culprit, now);
                    self.carry_out(rulings, now);
                }
                Ruling::Form(formed, lost) => self.form(&formed, &lost, now),
                Ruling::Abort(error) => {
                    self.is_over = true;
                    for number in &self.guests {
                        self.office.beacons[*number].condemn((*error).clone());
                        self.seat.ring(*number, now);
                    }
                }
            }
        }
    }

    fn form(&self, formed: &Formed, lost: &[Culprit], now: Duration) {
        let at = now + self.seat.network().latency;
        for number in formed.members.keys() {
            self.office.beacons[*number].request_pause(false);
            self.office.answer(*number, Roster { at, formed: formed.clone(), lost: lost.to_vec() });
            self.seat.ring(*number, at);
        }
    }
}
