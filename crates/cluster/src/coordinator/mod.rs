//! The coordinator: a role of one rank, not a machine apart.
//!
//! It lets ranks in, tells them who the group is, hears their pulses, and when one is lost ends the generation and forms the
//! next one of those who are left ([`Membership`] decides, this carries it out). What ends the job ends it for all, with
//! the same words. If the process that holds the role dies, another rank takes it: the ranks come to it and say where they
//! stand, so that it needs to know nothing that is lost.

mod door;
mod judgement;
mod roll;

use crate::beacon::Beacon;
use crate::inquest::{Inquest, PATIENCE};
use crate::line::PULSE;
use crate::membership::{Formed, Limits, Membership, Order};
use crate::rendezvous::message::{Answer, Call, Control, Member, Roster, receive, send};
use crate::rendezvous::reception::Reception;
use crate::rendezvous::{REMINDER, handshake::Purpose, welcome};
use crate::watch::Watch;
use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::Culprit;
use thalweg_core::event::Phase;

/// What the role is given.
pub struct Charge {
    /// The rank that has the role.
    pub own: usize,
    /// The ranks to expect.
    pub expected: Vec<usize>,
    /// Those of the last generation whose processes have ended.
    pub lost: Vec<usize>,
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
    /// Whether the others go on when one is lost.
    pub elastic: bool,
    /// How many there must and may be, and how long to wait for them.
    pub limits: Limits,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
}

/// How the coordinator speaks to its surroundings.
pub struct Voice {
    /// What its own rank does, and where it is asked to pause.
    pub beacon: Arc<Beacon>,
    /// Hears whom the others wait for.
    pub say: Box<dyn Fn(String) + Send>,
    /// Ranks whose process has ended, as the launcher says.
    pub gone: Receiver<usize>,
}

/// Seconds between two reminders of a rank that prepares; the first comes earlier.
const NEXT_REMINDER: f64 = 30.0;

/// Times in a row that a rank's connections may break without a step in between before it is given up.
const STRIKES: u32 = 3;

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
    let chair = Chair {
        membership: Membership::new(charge.expected.iter().copied(), charge.after, charge.limits, now),
        watch: Watch::new(charge.world, charge.step_deadline, charge.step_deadline, charge.prepare_deadline),
        inquest: Inquest::new(charge.world, PATIENCE),
        guests: BTreeMap::new(),
        promised: BTreeMap::new(),
        turned_away: BTreeMap::new(),
        lost: charge.lost.iter().map(|rank| welcome::ended(*rank)).collect(),
        strikes: BTreeMap::new(),
        sender,
        start: Instant::now(),
        serial: 0,
        verdict: None,
        reminder: REMINDER.as_secs_f64(),
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
    membership: Membership,
    watch: Watch,
    inquest: Inquest,
    guests: BTreeMap<usize, Guest>,
    /// Numbers of those who prepare to come, and since when.
    promised: BTreeMap<usize, Duration>,
    /// Who came and could not stay, and why.
    turned_away: BTreeMap<usize, String>,
    /// Who was lost since the last group, and how.
    lost: Vec<Culprit>,
    /// How often a rank's connections broke at a step.
    strikes: BTreeMap<usize, (u64, u32)>,
    sender: Sender<Heard>,
    start: Instant,
    serial: u64,
    verdict: Option<Instant>,
    /// Seconds of waiting for a rank that prepares after which it is told next.
    reminder: f64,
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
            let tick = Duration::from_millis(if self.membership.is_working() { 20 } else { 2 });
            match receiver.recv_timeout(tick) {
                Ok(Heard::Said(serial, number, said)) if self.is_current(serial, number) => {
                    self.hear(number, said)
                }
                Ok(Heard::Closed(serial, number, when)) if self.is_current(serial, number) => {
                    self.close(number, when)
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            while let Ok(number) = self.voice.gone.try_recv() {
                self.miss(number);
            }
            if last_tick.elapsed() > Duration::from_secs(1) {
                // This process itself was stopped, or the machine slept.
                self.watch.forgive(self.now());
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
            let all_left = self.serial > 0 && self.guests.is_empty() && self.membership.generation() > 0;
            if all_left || self.membership.is_empty() {
                return;
            }
        }
    }

    /// What is due without anybody saying anything.
    fn look_after(&mut self) {
        let now = self.now();
        self.remind();
        self.call_roll(now);
        if !self.inquest.is_settled()
            && let Some(evidence) = self.watch.verdict(now)
        {
            self.judge(evidence, Instant::now());
        }
        if self.verdict.is_none()
            && let Some(error) = self.inquest.conclude(now)
        {
            self.conclude(error);
        }
        let orders = self.membership.settle(now);
        self.carry_out(orders);
    }

    fn is_current(&self, serial: u64, number: usize) -> bool {
        self.guests.get(&number).is_some_and(|guest| guest.serial == serial)
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Interrupt(generation) => {
                    self.inquest.forget();
                    let error = welcome::interruption(self.lost.last());
                    self.broadcast(&Control::Interrupt(generation, Box::new(error)));
                }
                Order::Pause => self.voice.beacon.request_pause(true),
                Order::Form(formed) => self.form(formed),
                Order::GiveUp { present } => {
                    let error = welcome::too_few(present, self.charge.limits, &self.lost);
                    self.abort(error);
                }
            }
        }
    }

    /// Tells all members who the group is.
    fn form(&mut self, formed: Formed) {
        self.voice.beacon.request_pause(false);
        // What was heard so far is about the group that is over: ranks speak before they report.
        self.inquest.forget();
        let now = self.now();
        let Formed { generation, members, joined, left, .. } = formed;
        let here = |number: &usize| self.guests.get(number).map(|guest| guest.member.clone());
        // One that was lost while the others had left their operations already was waited for in none but this.
        let step =
            members.values().filter_map(|standing| standing.position).map(|position| position.step).max();
        let told = self.lost.iter().find_map(|culprit| culprit.operation.clone());
        for culprit in self.lost.iter_mut().filter(|culprit| culprit.operation.is_none()) {
            culprit.operation = told.clone().or_else(|| Some("forming of the group".into()));
            culprit.step = culprit.step.or(step).or(Some(0));
        }
        let roster = Roster {
            generation,
            leader: self.charge.own,
            members: members.keys().filter_map(here).collect(),
            standings: members.values().copied().collect(),
            lost: std::mem::take(&mut self.lost),
            joined,
            left,
        };
        for number in members.keys() {
            self.watch.expect(*number, now, Phase::Preparing);
            let Some(guest) = self.guests.get_mut(number) else { continue };
            // One that has left meanwhile is noticed by its reader.
            let _ = if std::mem::replace(&mut guest.settled, true) {
                send(&mut guest.stream, &Control::Roster(Box::new(roster.clone())))
            } else {
                send(&mut guest.stream, &Answer::Roster(roster.clone()))
            };
        }
        if !self.charge.elastic {
            // Nobody else may come: the port is free for the next job.
            self.listener = None;
        }
        self.roll_call = REMINDER;
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
