//! The connection that stays open between each rank and the coordinator: pulses one way, verdicts the other.
//!
//! The coordinator keeps the [`Watch`] and the [`Inquest`]; every rank watches the coordinator in turn, by its own
//! pulses. So each silence, each vanished process and each rank's own error reaches all within moments.

use crate::beacon::Beacon;
use crate::inquest::{Evidence, Inquest};
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

/// A rank that was told that it is over may take so long to leave by itself.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A rank's end of the connection.
pub struct Line {
    stream: Mutex<TcpStream>,
    left: AtomicBool,
}

impl Line {
    /// Listens to the coordinator from now on; what it says ends up in the beacon.
    pub fn open(
        stream: TcpStream,
        rank: usize,
        deadline: Duration,
        beacon: Arc<Beacon>,
    ) -> std::io::Result<Arc<Line>> {
        let reader = stream.try_clone()?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let line = Arc::new(Line { stream: Mutex::new(stream), left: AtomicBool::new(false) });
        let listening = Arc::clone(&line);
        std::thread::spawn(move || listening.listen(reader, rank, deadline, &beacon));
        Ok(line)
    }

    fn listen(&self, mut reader: TcpStream, rank: usize, deadline: Duration, beacon: &Beacon) {
        // A silent coordinator is noticed by the read's time-out: it sends pulses like everybody else.
        // It comes a little later than the verdict of whoever watches this rank and the coordinator both.
        let _ = reader.set_read_timeout(Some(deadline + 3 * PULSE));
        let verdict = loop {
            match receive::<Control>(&mut reader) {
                Ok(Control::Abort(error)) => break *error,
                Ok(_) => {}
                Err(_) if self.left.load(Ordering::Relaxed) => return,
                Err(error) => break lost_coordinator(&error, deadline, &beacon.pulse()),
            }
        };
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        beacon.condemn(verdict.clone());
        std::thread::sleep(LAST_WORDS);
        if !self.left.load(Ordering::Relaxed) {
            // The program does not come back from its computation: the process must end all the same.
            eprintln!("error: rank {rank}: {verdict}");
            std::process::exit(i32::from(verdict.exit_code()));
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

fn lost_coordinator(error: &std::io::Error, deadline: Duration, pulse: &Pulse) -> Error {
    let cause = match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("has been silent for {:.1} s", deadline.as_secs_f64())
        }
        _ => "vanished: its connection closed without a goodbye".into(),
    };
    Error::new(Kind::RankFailed, format!("rank 0 (the coordinator) {cause} at step {}", pulse.step)).blame(
        Culprit { rank: 0, host: None, step: Some(pulse.step), operation: Some(pulse.name.clone()), cause },
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
    let mut inquest = Inquest::new(world);
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
                if !self.inquest.is_open()
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
                self.inquest.hear(now, Evidence::Failed { rank, error: *error, pulse });
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
