//! A worker's line to the launcher that started it: events up, wishes down.
//!
//! The launcher gives each worker one end of a socket pair as standard input. Its end of file means that the launcher
//! is gone, and with it the job: the worker stops after its step, with a checkpoint. Where the job goes on on other hosts
//! (`LEAVES`), it leaves after its step instead.

use crate::beacon::Beacon;
use crate::exhaustion;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Record};
use thalweg_core::spec::inject::Fault;
use thalweg_core::{Error, Kind, Result};

/// The variable that tells a process that its standard input is such a line.
pub const VARIABLE: &str = "THALWEG_UPLINK";

/// The variable that tells a process that it comes to a group that works already.
pub const JOINS: &str = "THALWEG_JOINS";

/// The variable that tells a process that the job goes on without its launcher, which does not write the results.
pub const LEAVES: &str = "THALWEG_LEAVES";

/// What a launcher says to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// The coordinator listens here.
    Coordinator(String),
    /// Take the coordinator's role.
    Convene {
        /// The ranks whose processes have ended.
        gone: Vec<usize>,
        /// The ranks that left in good order, with the one that had the role.
        left: Vec<usize>,
    },
    /// The process of this rank has ended.
    Gone(usize),
    /// This is to happen to this rank.
    Inject(Fault),
    /// Be done with the epoch you are in.
    Finish,
    /// Write a checkpoint after this step and go on.
    Checkpoint,
    /// Stop after this step and write a checkpoint.
    Stop {
        /// Whether SIGTERM asked for it.
        terminate: bool,
    },
}

/// The launcher that started this process, if one did.
pub fn launcher() -> Option<u32> {
    std::env::var_os(VARIABLE).map(|_| std::os::unix::process::parent_id())
}

/// Records that may wait for a launcher that does not listen; beyond that, progress is not worth keeping.
const QUEUE: usize = 10_000;

/// How long a worker that is done waits for a launcher that does not listen (somebody typed Ctrl-Z).
const LAST_WORDS: Duration = Duration::from_secs(600);

/// A worker's end of the line.
///
/// What is said goes through a queue and a thread of its own: a launcher that is stopped for a while stops nobody.
pub struct Uplink {
    queue: Sender<Vec<u8>>,
    /// Records said and not yet written.
    waiting: Arc<AtomicUsize>,
    /// Where it listens, and how often that was said.
    coordinator: Arc<(Mutex<(u64, String)>, Condvar)>,
    wishes: Mutex<Option<Receiver<Wish>>>,
    /// The launcher's end is closed.
    gone: Arc<AtomicBool>,
}

impl Uplink {
    /// The line on standard input, if a launcher started this process.
    pub fn open(beacon: Arc<Beacon>) -> Result<Option<Arc<Uplink>>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let broken = |error: std::io::Error| exhaustion::io("no line to the launcher", &error);
        let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(broken)?);
        let reader = stream.try_clone().map_err(broken)?;
        let (sender, wishes) = channel();
        let coordinator: Arc<(Mutex<(u64, String)>, Condvar)> = Arc::default();
        let known = Arc::clone(&coordinator);
        let gone = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&gone);
        std::thread::spawn(move || {
            listen(reader, &known, &sender, &beacon);
            closed.store(true, Ordering::Release);
            // The lock is taken so that nobody is between looking and waiting.
            drop(known.0.lock().unwrap_or_else(PoisonError::into_inner));
            known.1.notify_all();
        });
        let (queue, lines) = channel::<Vec<u8>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        std::thread::spawn(move || {
            for line in lines {
                // If the launcher is gone, nobody is left to hear it.
                let _ = stream.write_all(&line);
                written.fetch_sub(1, Ordering::Release);
            }
        });
        Ok(Some(Arc::new(Uplink { queue, waiting, coordinator, wishes: Mutex::new(Some(wishes)), gone })))
    }

    /// Sends an event up.
    pub fn send(&self, record: &Record) {
        let dispensable = matches!(record.event, Event::Pulse(_) | Event::Step { .. });
        if dispensable && self.waiting.load(Ordering::Acquire) >= QUEUE {
            return;
        }
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            self.waiting.fetch_add(1, Ordering::Release);
            let _ = self.queue.send(line);
        }
    }

    /// Waits until all that was said is on its way.
    pub fn drain(&self) {
        let end = Instant::now() + LAST_WORDS;
        while self.waiting.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What the launcher asks of the coordinator, or of whoever is to become it. They are somebody's from then on.
    pub fn wishes(&self) -> Option<Receiver<Wish>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the launcher is gone: it says nothing any more, and nobody hears what is said to it.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether another coordinator was told of since that one.
    pub fn has_moved(&self, since: u64) -> bool {
        self.coordinator.0.lock().unwrap_or_else(PoisonError::into_inner).0 > since
    }

    /// Where the coordinator listens, as the launcher says: the next one that is told of after the one of that number.
    pub fn coordinator(&self, since: u64, deadline: Duration) -> Result<(u64, String)> {
        let (known, news) = &*self.coordinator;
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = |told: &mut (u64, String)| told.0 <= since && !self.is_gone();
        let (known, _) =
            news.wait_timeout_while(known, deadline, stale).unwrap_or_else(PoisonError::into_inner);
        if known.0 > since {
            return Ok(known.clone());
        }
        if self.is_gone() {
            return Err(Error::new(Kind::Rendezvous, "the launcher is gone, and with it the job"));
        }
        let words = format!("rank 0 did not open its port within {} s", deadline.as_secs_f64());
        Err(Error::new(Kind::Rendezvous, words))
    }
}

fn listen(
    reader: UnixStream,
    coordinator: &(Mutex<(u64, String)>, Condvar),
    wishes: &Sender<Wish>,
    beacon: &Beacon,
) {
    for line in BufReader::new(reader).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Wish::Coordinator(address)) => {
                let mut known = coordinator.0.lock().unwrap_or_else(PoisonError::into_inner);
                *known = (known.0 + 1, address);
                drop(known);
                coordinator.1.notify_all();
            }
            Ok(Wish::Stop { terminate: true }) => beacon.request_termination(),
            Ok(Wish::Stop { terminate: false }) => beacon.request_stop(),
            Ok(Wish::Checkpoint) => beacon.request_checkpoint(),
            Ok(Wish::Finish) => beacon.request_finish(),
            Ok(Wish::Inject(fault)) => beacon.inject(fault),
            Ok(wish) => {
                // Whoever takes them lives as long as the process.
                let _ = wishes.send(wish);
            }
            Err(_) => {}
        }
    }
    if std::env::var_os(LEAVES).is_some() {
        beacon.request_leave();
    } else {
        beacon.request_stop();
    }
}
