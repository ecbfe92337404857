//! The coordinator: a role of one rank, not a machine apart.
//!
//! It lets ranks in, tells them who the group is, hears their pulses, and when one is lost ends the generation and forms the
//! next one of those who are left ([`Judgement`] decides, this carries it out). What ends the job ends it for all, with
//! the same words. If the process that holds the role dies or leaves, another rank takes it: the ranks come to it and say
//! where they stand, so that it needs to know nothing that is lost.

mod connection;
mod door;
mod expulsion;
mod handover;
mod probe;
mod refusal;
mod roll;
mod sleep;
mod status;

use crate::beacon::Beacon;
use crate::interruption::STALL_WHILE_STOPPING;
use crate::judgement::{Judgement, Rules, Ruling};
use crate::line::PULSE;
use crate::linux::TokenOffer;
use crate::membership::Formed;
use crate::rendezvous::message::{Answer, Call, Control, Roster, send};
use crate::rendezvous::reception::Reception;
use crate::rendezvous::{REMINDER, handshake::Purpose, welcome};
use crate::stall::StallReporter;
use connection::{Guest, Heard};
use probe::Candidate;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Pulse};
use thalweg_core::{Culprit, Error};

/// What the role is given.
pub struct Charge {
    /// The rank that has the role.
    pub own: usize,
    /// The ranks to expect.
    pub expected: Vec<usize>,
    /// Those of the last generation whose processes have ended.
    pub lost: Vec<usize>,
    /// Those of it who left in good order with the coordinator before this one.
    pub left: Vec<usize>,
    /// The process that started this one and can give the role to another, if there is one.
    pub launcher: Option<u32>,
    /// The last generation there was; 0 at the beginning.
    pub after: u32,
    /// Ranks the job began with.
    pub world: usize,
    /// Digest of the job.
    pub job: [u8; 32],
    /// Which attempt at which job this is, where a launcher has a name for it.
    pub run: String,
    /// Digest of what is trained; empty if it is not known.
    pub model: Vec<u8>,
    /// Digest of the rows it is trained with; empty if it is not known.
    pub data: String,
    /// The job itself, for those who want to join.
    pub text: String,
    /// The shared secret.
    pub token: Vec<u8>,
    /// Tells it to the ranks of this host that have none, for as long as the coordinator listens.
    pub offer: Option<TokenOffer>,
    /// What the job asks of the group.
    pub rules: Rules,
    /// Why it is over before it begins: whoever comes is told.
    pub failed: Option<Error>,
}

/// How the coordinator speaks to its surroundings.
pub struct Voice {
    /// What its own rank does, and where it is asked to pause.
    pub beacon: Arc<Beacon>,
    /// Hears whom the others wait for.
    pub say: Box<dyn Fn(String) + Send>,
    /// Hears that ranks wait for others, and that they go on.
    pub report: Box<dyn Fn(Event) + Send>,
    /// Ranks whose process has ended, as the launcher says.
    pub gone: Receiver<usize>,
    /// Asks the launcher for another coordinator, now that these have left.
    pub resign: Box<dyn Fn(Vec<usize>) + Send>,
}

/// Seconds between two reminders of a rank that prepares; the first comes earlier.
const NEXT_REMINDER: f64 = 30.0;

/// How long the ranks may take to leave after the verdict.
const FAREWELL: Duration = Duration::from_secs(2);

/// Holds the role until all ranks have left, or the job is over.
pub fn preside(listener: TcpListener, charge: Charge, voice: Voice) {
    let (sender, receiver) = channel();
    let now = Duration::ZERO;
    let all = [&charge.expected[..], &charge.left].concat();
    let (rules, lost) = (charge.rules.clone(), &charge.lost);
    let mut judgement = Judgement::new(rules, &all, charge.after, lost, charge.world, now);
    for number in &charge.left {
        let _ = judgement.membership.leave(*number, false, now);
    }
    let chair = Chair {
        judgement,
        has_left: false,
        guests: BTreeMap::new(),
        candidates: BTreeMap::new(),
        overslept: None,
        promised: BTreeMap::new(),
        turned_away: BTreeMap::new(),
        strangers: BTreeMap::new(),
        told: BTreeSet::new(),
        last_word: charge.failed.clone(),
        sender,
        start: Instant::now(),
        serial: 0,
        verdict: charge.failed.as_ref().map(|_| Instant::now()),
        reminder: REMINDER.as_secs_f64(),
        stalls: StallReporter::default(),
        progress: status::Progress::default(),
        roll_call: REMINDER,
        listener: Some(listener),
        charge,
        voice,
    };
    chair.run(&receiver);
}

struct Chair {
    charge: Charge,
    voice: Voice,
    listener: Option<TcpListener>,
    judgement: Judgement,
    guests: BTreeMap<usize, Guest>,
    /// Newcomers whose connections to the members are tried before they are let in.
    candidates: BTreeMap<usize, Candidate>,
    /// When this process came back from a stop that was longer than the others wait, and how long it was.
    overslept: Option<(Instant, Duration)>,
    /// Whether the rank that has the role has left the group.
    has_left: bool,
    /// Numbers of those who prepare to come, and since when.
    promised: BTreeMap<usize, Duration>,
    /// Who came and could not stay, and why.
    turned_away: BTreeMap<usize, String>,
    /// Callers that did not prove themselves, and what they did.
    strangers: BTreeMap<IpAddr, String>,
    /// Ranks that came after the end, and were told of it.
    told: BTreeSet<usize>,
    /// Why it is over.
    last_word: Option<Error>,
    sender: Sender<Heard>,
    start: Instant,
    serial: u64,
    verdict: Option<Instant>,
    /// Seconds of waiting for a rank that prepares after which it is told next.
    reminder: f64,
    stalls: StallReporter,
    progress: status::Progress,
    /// Time of forming after which it is told who is missing.
    roll_call: Duration,
}

impl Chair {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn run(mut self, receiver: &Receiver<Heard>) {
        let mut reception: Reception<Call> = Reception::new(Purpose::Control, &self.charge.token);
        if let Some(listener) = &self.listener {
            let _ = listener.set_nonblocking(true);
        }
        let (mut last_pulse, mut last_tick) = (Instant::now(), Instant::now());
        loop {
            if let Some(offer) = &self.charge.offer {
                offer.answer();
            }
            if let Some(listener) = &self.listener {
                let admitted = reception.admit(listener);
                while let Some((call, stream)) = reception.next(Duration::ZERO) {
                    self.welcome(call, stream);
                }
                while let Some((from, why)) = reception.next_refused() {
                    self.hear_of_stranger(from, &why);
                }
                if let Err(error) = admitted {
                    self.run_short(error);
                }
            }
            let tick = Duration::from_millis(if self.judgement.membership.is_working() { 20 } else { 2 });
            let received = receiver.recv_timeout(tick);
            self.wake(last_tick.elapsed());
            last_tick = Instant::now();
            match received {
                Ok(Heard::Said(serial, number, said)) if self.is_current(serial, number) => {
                    self.hear(number, said);
                }
                Ok(Heard::Closed(serial, number, when)) if self.is_current(serial, number) => {
                    self.close(number, when);
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(number) = self.voice.gone.try_recv() {
                self.miss(number);
            }
            if last_pulse.elapsed() >= PULSE {
                last_pulse = Instant::now();
                // The progress that ranks hear of is the group's: whoever waits need not give up while others move.
                let progress = self.judgement.watch.moves();
                self.broadcast(&Control::Pulse(Pulse { progress, ..self.voice.beacon.pulse() }));
            }
            if let Some(when) = self.verdict {
                let owed = self.farewell();
                if when.elapsed() > owed.unwrap_or(FAREWELL) || (self.guests.is_empty() && owed.is_none()) {
                    return;
                }
                continue;
            }
            self.look_after();
            let membership = &self.judgement.membership;
            // While a group is being formed, those who are not here may still come.
            let all_left = self.serial > 0
                && self.guests.is_empty()
                && membership.generation() > 0
                && membership.is_working();
            if all_left || membership.is_empty() {
                return;
            }
        }
    }

    /// A rank says something. One that has not been let in can only answer what it is asked.
    fn hear(&mut self, number: usize, said: Control) {
        let Some(guest) = self.guests.get(&number) else { return };
        guest.has_been_heard();
        match said {
            Control::Probed { rank, error } => self.judge_probe(number, rank, error),
            _ if !guest.settled => self.close(number, Instant::now()),
            said if self.is_given_up_by(number, &said) => self.give_up_role(),
            said => {
                self.has_left |= number == self.charge.own && said == Control::Leave;
                let rulings = self.judgement.hear(number, said, self.now());
                self.carry_out(rulings);
            }
        }
    }

    /// A rank's connection has closed.
    fn close(&mut self, number: usize, when: Instant) {
        let membership = &self.judgement.membership;
        if self.overslept.is_some() && membership.generation() > 0 && membership.has(number) {
            return self.give_up_role();
        }
        let seen = when.saturating_duration_since(self.start);
        // It ended by itself: there is no process left to be told that the others go on.
        self.guests.remove(&number);
        let rulings = self.judgement.close(number, seen, self.now());
        self.carry_out(rulings);
    }

    /// What is due without anybody saying anything.
    fn look_after(&mut self) {
        let now = self.now();
        if self.charge.rules.elastic && self.voice.beacon.stop_requested() {
            self.judgement.watch.hurry(STALL_WHILE_STOPPING);
        }
        self.remind();
        self.note_progress();
        let stall = self.judgement.watch.stall(now).filter(|_| self.judgement.membership.is_working());
        if let Some(event) = self.stalls.follow(now, stall) {
            (self.voice.report)(event);
        }
        self.call_roll(now);
        self.follow_probes(now);
        if self.verdict.is_none() {
            let rulings = self.judgement.look_after(now);
            self.carry_out(rulings);
        }
    }

    /// This process can take in nobody. Those who have met do without newcomers; before that it is the end.
    fn run_short(&mut self, error: Error) {
        if self.verdict.is_some() || self.judgement.membership.generation() > 0 {
            return;
        }
        let own = self.charge.own;
        let culprit = Culprit { rank: own, cause: error.message.clone(), ..Culprit::default() };
        let error = Error { message: format!("rank {own} {}", error.message), ..error }.blame(culprit);
        let pulse = self.voice.beacon.pulse();
        (self.voice.report)(Event::Failed { error: error.clone(), pulse });
        self.voice.beacon.condemn(error.clone());
        self.abort(error);
    }

    /// The launcher says that a rank's process has ended. Of one that is here the end of its connection tells, too.
    fn miss(&mut self, number: usize) {
        let expected = self.judgement.membership.has(number) && !self.guests.contains_key(&number);
        if self.charge.rules.elastic && expected {
            self.lose(number, welcome::ended(number));
        }
    }

    fn lose(&mut self, number: usize, culprit: Culprit) {
        let rulings = self.judgement.lose(number, culprit, self.now());
        self.carry_out(rulings);
    }

    fn is_current(&self, serial: u64, number: usize) -> bool {
        self.guests.get(&number).is_some_and(|guest| guest.serial == serial)
    }

    fn carry_out(&mut self, rulings: Vec<Ruling>) {
        for ruling in rulings {
            match ruling {
                Ruling::Dismiss(number) => self.dismiss(number),
                Ruling::Interrupt(generation, why) => {
                    self.broadcast(&Control::Interrupt(generation, why));
                }
                Ruling::Pause => self.pause(),
                Ruling::Expel(number, culprit) => self.expel(number, *culprit),
                Ruling::Form(formed, lost) => self.form(formed, lost),
                Ruling::Abort(error) => self.abort(*error),
            }
        }
    }

    /// Asks for a stop at the next boundary, so that somebody can come in: this rank asks the others with its gradient, or
    /// one of them does, if this one trains no more.
    fn pause(&mut self) {
        if !self.has_left {
            return self.voice.beacon.request_pause(true);
        }
        let membership = &self.judgement.membership;
        let first = self.guests.iter_mut().find(|(number, guest)| guest.settled && membership.has(**number));
        if let Some((_, guest)) = first {
            // One that cannot hear it has gone, and is noticed by its reader.
            let _ = send(&mut guest.stream, &Control::Pause);
        }
    }

    /// Tells all members who the group is.
    fn form(&mut self, formed: Formed, lost: Vec<Culprit>) {
        self.voice.beacon.request_pause(false);
        if self.passes_on(&formed, &lost) {
            return self.pass_on(formed);
        }
        let Formed { generation, members, joined, left, .. } = formed;
        let here = |number: &usize| self.guests.get(number).map(|guest| guest.member.clone());
        let roster = Roster {
            generation,
            leader: self.charge.own,
            members: members.keys().filter_map(here).collect(),
            standings: members.values().copied().collect(),
            lost,
            joined,
            left,
        };
        for number in members.keys() {
            let Some(guest) = self.guests.get_mut(number) else { continue };
            // One that has left meanwhile is noticed by its reader.
            let _ = if std::mem::replace(&mut guest.settled, true) {
                send(&mut guest.stream, &Control::Roster(Box::new(roster.clone())))
            } else {
                send(&mut guest.stream, &Answer::Roster(roster.clone()))
            };
        }
        if !self.charge.rules.elastic {
            // Nobody else may come: the port is free for the next job.
            self.stop_listening();
        }
        self.roll_call = REMINDER;
    }

    /// Gives up the port, and first the token that is offered for it: the next job there has another.
    fn stop_listening(&mut self) {
        self.charge.offer = None;
        self.listener = None;
    }

    /// Tells everybody that the job is over, and why.
    fn abort(&mut self, error: Error) {
        self.verdict = Some(Instant::now());
        self.last_word = Some(error.clone());
        let culprit = error.culprit.as_ref().map(|culprit| culprit.rank);
        self.told.extend(self.guests.keys());
        for guest in self.guests.values_mut() {
            let _ = if guest.settled {
                send(&mut guest.stream, &Control::Abort(Box::new(error.clone())))
            } else {
                send(&mut guest.stream, &Answer::Refused(error.clone()))
            };
        }
        // Nobody waits for the one that cannot leave.
        if let Some(culprit) = culprit {
            self.guests.remove(&culprit);
        }
    }

    fn broadcast(&mut self, message: &Control) {
        let mut deaf = Vec::new();
        for (number, guest) in self.guests.iter_mut().filter(|(_, guest)| guest.settled) {
            // Whoever has gone is noticed by its reader; one that is there and does not read holds up all others.
            if send(&mut guest.stream, message).is_err_and(|error| connection::is_full(&error)) {
                deaf.push(*number);
            }
        }
        deaf.retain(|number| *number != self.charge.own);
        for number in deaf {
            let cause = "does not read what the coordinator sends".to_string();
            self.lose(number, Culprit { rank: number, cause, ..Culprit::default() });
        }
    }
}
