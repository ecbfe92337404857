//! The coordinator: a role of one rank, not a machine apart.
//!
//! It lets ranks in, tells them who the group is, hears their pulses, and when one is lost ends the generation and forms the
//! next one of those who are left ([`Judgement`] decides, this carries it out). What ends the job ends it for all, with
//! the same words. If the process that holds the role dies or leaves, another rank takes it: the ranks come to it and say
//! where they stand, so that it needs to know nothing that is lost.

mod door;
mod handover;
mod roll;

use crate::beacon::Beacon;
use crate::judgement::{Judgement, Rules, Ruling};
use crate::line::PULSE;
use crate::membership::Formed;
use crate::rendezvous::message::{Answer, Call, Control, Member, Roster, receive, send};
use crate::rendezvous::reception::Reception;
use crate::rendezvous::{REMINDER, handshake::Purpose, welcome};
use crate::stall::StallReporter;
use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::event::Event;
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
    /// Digest of what is trained; empty if it is not known.
    pub model: Vec<u8>,
    /// The job itself, for those who want to join.
    pub text: String,
    /// The shared secret.
    pub token: Vec<u8>,
    /// What the job asks of the group.
    pub rules: Rules,
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

enum Heard {
    Said(u64, usize, Control),
    /// When that was seen.
    Closed(u64, usize, Instant),
}

/// A rank that is here.
struct Guest {
    member: Member,
    stream: TcpStream,
    /// Tells this connection from an earlier one of the same rank.
    serial: u64,
    /// It has its first roster: from then on it listens to [`Control`].
    settled: bool,
}

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
        promised: BTreeMap::new(),
        turned_away: BTreeMap::new(),
        sender,
        start: Instant::now(),
        serial: 0,
        verdict: None,
        reminder: REMINDER.as_secs_f64(),
        stalls: StallReporter::default(),
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
    /// Whether the rank that has the role has left the group.
    has_left: bool,
    /// Numbers of those who prepare to come, and since when.
    promised: BTreeMap<usize, Duration>,
    /// Who came and could not stay, and why.
    turned_away: BTreeMap<usize, String>,
    sender: Sender<Heard>,
    start: Instant,
    serial: u64,
    verdict: Option<Instant>,
    /// Seconds of waiting for a rank that prepares after which it is told next.
    reminder: f64,
    stalls: StallReporter,
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
            if let Some(listener) = &self.listener {
                reception.admit(listener);
                while let Some((call, stream)) = reception.next(Duration::ZERO) {
                    self.welcome(call, stream);
                }
            }
            let tick = Duration::from_millis(if self.judgement.membership.is_working() { 20 } else { 2 });
            match receiver.recv_timeout(tick) {
                Ok(Heard::Said(serial, number, said)) if self.is_current(serial, number) => {
                    self.has_left |= number == self.charge.own && said == Control::Leave;
                    let rulings = self.judgement.hear(number, said, self.now());
                    self.carry_out(rulings);
                }
                Ok(Heard::Closed(serial, number, when)) if self.is_current(serial, number) => {
                    let seen = when.saturating_duration_since(self.start);
                    let rulings = self.judgement.close(number, seen, self.now());
                    self.carry_out(rulings);
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(number) = self.voice.gone.try_recv() {
                self.miss(number);
            }
            if last_tick.elapsed() > Duration::from_secs(1) {
                // This process itself was stopped, or the machine slept.
                let now = self.now();
                self.judgement.watch.forgive(now);
            }
            last_tick = Instant::now();
            if last_pulse.elapsed() >= PULSE {
                last_pulse = Instant::now();
                self.broadcast(&Control::Pulse(self.voice.beacon.pulse()));
            }
            if let Some(when) = self.verdict {
                if when.elapsed() > FAREWELL || self.guests.is_empty() {
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

    /// What is due without anybody saying anything.
    fn look_after(&mut self) {
        let now = self.now();
        self.remind();
        let stall = self.judgement.watch.stall(now).filter(|_| self.judgement.membership.is_working());
        if let Some(event) = self.stalls.follow(now, stall) {
            (self.voice.report)(event);
        }
        self.call_roll(now);
        if self.verdict.is_none() {
            let rulings = self.judgement.look_after(now);
            self.carry_out(rulings);
        }
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
                Ruling::Dismiss(number) => drop(self.guests.remove(&number)),
                Ruling::Interrupt(generation, why) => {
                    self.broadcast(&Control::Interrupt(generation, why));
                }
                Ruling::Pause => self.pause(),
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
            self.listener = None;
        }
        self.roll_call = REMINDER;
    }

    /// Tells everybody that the job is over, and why.
    fn abort(&mut self, error: Error) {
        self.verdict = Some(Instant::now());
        let culprit = error.culprit.as_ref().map(|culprit| culprit.rank);
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
        for guest in self.guests.values_mut().filter(|guest| guest.settled) {
            // Whoever cannot hear it has gone, and is noticed by its reader.
            let _ = send(&mut guest.stream, message);
        }
    }
}

fn read(mut reader: TcpStream, serial: u64, number: usize, sender: &Sender<Heard>) {
    let _ = reader.set_read_timeout(None);
    while let Ok(said) = receive::<Control>(&mut reader) {
        if sender.send(Heard::Said(serial, number, said)).is_err() {
            return;
        }
    }
    let _ = sender.send(Heard::Closed(serial, number, Instant::now()));
}
