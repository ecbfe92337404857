//! The connection that stays open between each rank and the coordinator: pulses one way, verdicts the other.
//!
//! The coordinator keeps the [`Watch`] and the [`Inquest`]; every rank watches the coordinator in turn, by its own
//! pulses. So each silence, each vanished process and each rank's own error reaches all within moments.

use crate::beacon::Beacon;
use crate::inquest::{Evidence, Inquest, PATIENCE};
use crate::rendezvous::REMINDER;
use crate::rendezvous::coordinator::Arrived;
use crate::rendezvous::message::{Control, receive, send};
use crate::watch::Watch;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::{Culprit, Error, Kind};

/// Time between two pulses.
pub const PULSE: Duration = Duration::from_millis(200);

/// A rank's end of the connection.
pub struct Line {
    stream: Mutex<TcpStream>,
    left: AtomicBool,
}

impl Line {
    /// Listens to the coordinator from now on; what it says ends up in the beacon.
    pub fn open(stream: TcpStream, deadline: Duration, beacon: Arc<Beacon>) -> std::io::Result<Arc<Line>> {
        let reader = stream.try_clone()?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let line = Arc::new(Line { stream: Mutex::new(stream), left: AtomicBool::new(false) });
        let listening = Arc::clone(&line);
        std::thread::spawn(move || listening.listen(reader, deadline, &beacon));
        Ok(line)
    }

    fn listen(&self, mut reader: TcpStream, deadline: Duration, beacon: &Beacon) {
        // A silent coordinator is noticed a little later than by whoever watches it and this rank both. Silence is
        // counted in looks, not by the clock: a process that was stopped itself must not blame others for it.
        let patience = 3 + deadline.as_millis() / PULSE.as_millis();
        let mut quiet = 0;
        let verdict = loop {
            match heard(&mut reader) {
                Ok(Some(Control::Abort(error))) => break *error,
                Ok(Some(_)) => quiet = 0,
                Ok(None) if quiet < patience => quiet += 1,
                Ok(None) if !self.left.load(Ordering::Relaxed) => {
                    break lost_coordinator(
                        &format!("has been silent for {:.1} s", deadline.as_secs_f64()),
                        &beacon.pulse(),
                    );
                }
                Err(_) if !self.left.load(Ordering::Relaxed) => {
                    break lost_coordinator(
                        "vanished: its connection closed without a goodbye",
                        &beacon.pulse(),
                    );
                }
                _ => return,
            }
        };
        if !self.left.load(Ordering::Relaxed) {
            beacon.condemn(verdict);
        }
    }

    /// Says something to the coordinator. A failure to do so is noticed by the listener.
    pub fn say(&self, message: &Control) {
        let _ = send(&mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner), message);
    }

    /// The last word: a failure, or a goodbye.
    pub fn leave(&self, last: &Control) {
        self.left.store(true, Ordering::Relaxed);
        self.say(last);
        let _ = self.stream.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Write);
    }
}

/// The coordinator's next message; nothing if none comes within the time of a pulse.
fn heard(reader: &mut TcpStream) -> std::io::Result<Option<Control>> {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    reader.set_read_timeout(Some(PULSE))?;
    match reader.peek(&mut [0]) {
        Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => {
            // It has begun: the rest follows at once, or never.
            reader.set_read_timeout(Some(Duration::from_secs(10)))?;
            receive(reader).map(Some)
        }
        Err(error) if matches!(error.kind(), Interrupted | TimedOut | WouldBlock) => Ok(None),
        Err(error) => Err(error),
    }
}

fn lost_coordinator(cause: &str, pulse: &Pulse) -> Error {
    Error::new(Kind::RankFailed, format!("rank 0 (the coordinator) {cause} at step {}", pulse.step)).blame(
        Culprit {
            rank: 0,
            host: None,
            step: Some(pulse.step),
            operation: Some(pulse.name.clone()),
            cause: cause.into(),
            detect_s: None,
        },
    )
}

/// What the coordinator hears.
enum Heard {
    Said(usize, Control),
    Closed(usize),
}

/// The waits between ranks after which something is said or done.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The longest a rank may hold up a step.
    pub step: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare: Duration,
}

/// Seconds between two reminders of a rank that prepares; the first comes earlier.
const NEXT_REMINDER: f64 = 30.0;

/// The coordinator's side. Returns when all ranks have left. `say` hears whom the others wait for.
pub fn preside(arrived: Vec<Arrived>, patience: Patience, beacon: &Beacon, say: &dyn Fn(String)) {
    let world = arrived.len();
    let mut inquest = Inquest::new(world, PATIENCE);
    let (sender, receiver) = channel();
    let mut streams = Vec::new();
    let mut watch = Watch::new(world, patience.step, patience.step, patience.prepare);
    for here in arrived {
        let rank = here.member.rank;
        watch.expect(rank, Duration::ZERO, Phase::Preparing);
        inquest.name(rank, format!("{} (pid {})", here.member.host, here.member.process));
        let _ = here.stream.set_write_timeout(Some(Duration::from_secs(1)));
        if let Ok(reader) = here.stream.try_clone() {
            let sender = sender.clone();
            std::thread::spawn(move || read(reader, rank, &sender));
        }
        streams.push(here.stream);
    }
    drop(sender);
    let (present, start, reminder) = (vec![true; world], Instant::now(), REMINDER.as_secs_f64());
    Chair { watch, inquest, streams, present, start, verdict: None, reminder }.run(&receiver, beacon, say);
}

fn read(mut reader: TcpStream, rank: usize, sender: &Sender<Heard>) {
    let _ = reader.set_read_timeout(None);
    while let Ok(said) = receive::<Control>(&mut reader) {
        if sender.send(Heard::Said(rank, said)).is_err() {
            return;
        }
    }
    let _ = sender.send(Heard::Closed(rank));
}

struct Chair {
    watch: Watch,
    inquest: Inquest,
    streams: Vec<TcpStream>,
    present: Vec<bool>,
    start: Instant,
    verdict: Option<Instant>,
    /// Seconds of waiting for a rank that prepares after which it is told next.
    reminder: f64,
}

impl Chair {
    fn run(mut self, receiver: &Receiver<Heard>, beacon: &Beacon, say: &dyn Fn(String)) {
        let mut last_pulse = Instant::now();
        let mut last_tick = Instant::now();
        loop {
            match receiver.recv_timeout(Duration::from_millis(20)) {
                Ok(Heard::Said(rank, said)) => self.hear(rank, said),
                Ok(Heard::Closed(rank)) => self.close(rank),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.start.elapsed();
            if last_tick.elapsed() > Duration::from_secs(1) {
                self.watch.forgive(now);
            }
            last_tick = Instant::now();
            if last_pulse.elapsed() >= PULSE {
                last_pulse = Instant::now();
                self.broadcast(&Control::Pulse(beacon.pulse()));
            }
            self.remind(say);
            if let Some(when) = self.verdict {
                if when.elapsed() > Duration::from_secs(2) {
                    return;
                }
            } else {
                if !self.inquest.is_settled()
                    && let Some(evidence) = self.watch.verdict(now)
                {
                    self.inquest.hear(now, evidence);
                }
                if let Some(error) = self.inquest.conclude(now) {
                    self.verdict = Some(Instant::now());
                    self.broadcast(&Control::Abort(Box::new(error)));
                }
            }
            if !self.present.contains(&true) {
                return;
            }
        }
    }

    /// Says whom the others wait for, once it takes long.
    fn remind(&mut self, say: &dyn Fn(String)) {
        match self.watch.awaited() {
            Some((rank, pulse, waited)) if waited >= self.reminder => {
                self.reminder = waited + NEXT_REMINDER;
                say(format!(
                    "waiting for {}: {} for {:.0} s",
                    self.inquest.who(rank),
                    pulse.name,
                    pulse.since
                ));
            }
            Some(_) => {}
            None => self.reminder = REMINDER.as_secs_f64(),
        }
    }

    fn hear(&mut self, rank: usize, said: Control) {
        let now = self.start.elapsed();
        match said {
            Control::Pulse(pulse) => {
                self.inquest.see(rank, pulse.clone());
                self.watch.heard(rank, now, pulse);
            }
            Control::Witness(error, pulse) => {
                self.inquest.hear(now, Evidence::Lost { rank, error: *error, pulse });
            }
            Control::Failed(error, pulse) => {
                self.watch.dismiss(rank);
                self.present[rank] = false;
                self.inquest.hear(now, Evidence::Failed { rank, error: *error, pulse });
            }
            Control::Goodbye => {
                self.watch.dismiss(rank);
                self.present[rank] = false;
            }
            Control::Abort(_) => {}
        }
    }

    fn close(&mut self, rank: usize) {
        if std::mem::replace(&mut self.present[rank], false) {
            let pulse = self.watch.last(rank).cloned().unwrap_or_default();
            self.watch.dismiss(rank);
            self.inquest.hear(self.start.elapsed(), Evidence::Vanished { rank, pulse });
        }
    }

    fn broadcast(&mut self, message: &Control) {
        for stream in &mut self.streams {
            // Whoever cannot hear it has gone, and is noticed by its reader.
            let _ = send(stream, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::message::Member;
    use std::net::TcpListener;

    /// A rank's end of a connection, and the coordinator's.
    fn connected(rank: usize) -> (TcpStream, Arrived) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let data = listener.local_addr().unwrap();
        let near = TcpStream::connect(data).unwrap();
        let member = Member { rank, host: "box".into(), process: 17, data, identity: None };
        (near, Arrived { member, stream: listener.accept().unwrap().0 })
    }

    #[test]
    fn a_rank_that_does_not_get_done_with_its_data_is_told_and_then_named() {
        let ((mut waiting, first), (mut reading, second)) = (connected(0), connected(1));
        let said = Mutex::new(Vec::new());
        let patience = Patience { step: Duration::from_secs(60), prepare: Duration::from_millis(50) };
        let verdict = std::thread::scope(|scope| {
            scope.spawn(|| {
                preside(vec![first, second], patience, &Beacon::default(), &|text| {
                    said.lock().unwrap().push(text)
                })
            });
            let pulse = |phase, name: &str, since| {
                Control::Pulse(Pulse { phase, name: name.into(), since, ..Pulse::default() })
            };
            send(&mut reading, &pulse(Phase::Preparing, "reading the data", 12.0)).unwrap();
            send(&mut waiting, &pulse(Phase::Exchanging, "all-gather of data set", 11.0)).unwrap();
            let verdict = loop {
                if let Control::Abort(error) = receive::<Control>(&mut waiting).unwrap() {
                    break error;
                }
            };
            send(&mut waiting, &Control::Goodbye).unwrap();
            send(&mut reading, &Control::Goodbye).unwrap();
            verdict
        });
        assert_eq!(
            said.into_inner().unwrap(),
            ["waiting for rank 1 on box (pid 17): reading the data for 12 s"]
        );
        assert_eq!(
            verdict.message,
            "rank 1 on box (pid 17) has been busy with reading the data for 12.0 s while the others waited; \
             rank 0 waited for it in all-gather of data set"
        );
        assert_eq!(verdict.culprit.unwrap().rank, 1);
        assert!(verdict.hint.unwrap().contains("fault.prepare_deadline"));
    }
}
