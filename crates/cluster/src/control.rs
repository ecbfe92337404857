//! The connection that stays open between each rank and the coordinator: pulses one way, verdicts the other.
//!
//! The coordinator keeps the [`Watch`] and the [`Inquest`]; every rank watches the coordinator in turn, by its own
//! pulses. So each silence, each vanished process and each rank's own error reaches all within moments.

use crate::beacon::Beacon;
use crate::inquest::{Evidence, Inquest, PATIENCE};
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

/// The coordinator's side. Returns when all ranks have left.
pub fn preside(arrived: Vec<Arrived>, deadline: Duration, beacon: &Beacon) {
    let world = arrived.len();
    let mut inquest = Inquest::new(world, PATIENCE);
    let (sender, receiver) = channel();
    let mut streams = Vec::new();
    let mut watch = Watch::new(world, deadline, deadline);
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
    Chair { watch, inquest, streams, present: vec![true; world], start: Instant::now(), verdict: None }
        .run(&receiver, beacon);
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
}

impl Chair {
    fn run(mut self, receiver: &Receiver<Heard>, beacon: &Beacon) {
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
