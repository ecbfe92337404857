//! A worker's connection to the launcher that started it: events to the launcher, commands to the worker.
//!
//! The launcher gives each worker one end of a socket pair as standard input. End of file means that the launcher has
//! exited, and the job ends with it: the worker stops after its step, with a checkpoint. If the job goes on on other hosts
//! (`LEAVES`), the worker leaves after its step instead.

use crate::rank_status::RankStatus;
use crate::resource_limits;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Record};
use thalweg_core::spec::inject::InjectedFault;
use thalweg_core::{Error, Kind, Result};

/// Set if standard input is such a connection.
pub const VARIABLE: &str = "THALWEG_UPLINK";

/// Set if the process joins a group that works already.
pub const JOINS: &str = "THALWEG_JOINS";

/// Set if the job goes on without this launcher, which does not write the results.
pub const LEAVES: &str = "THALWEG_LEAVES";

/// A launcher's message to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LauncherCommand {
    /// The address of the coordinator.
    Coordinator(String),
    /// Take over the coordinator's role.
    TakeCoordinatorRole {
        /// Ranks whose processes have exited.
        exited: Vec<usize>,
        /// Ranks that left in good order, the last coordinator among them.
        left: Vec<usize>,
    },
    /// The process of this rank has exited.
    RankExited(usize),
    Inject(InjectedFault),
    /// End the job with the current epoch.
    Finish,
    /// Write a checkpoint after this step, and go on.
    Checkpoint,
    /// Stop after this step, with a checkpoint.
    Stop {
        /// Whether SIGTERM requested it.
        terminate: bool,
    },
}

/// The process id of the launcher that started this process, if one did.
pub fn launcher_pid() -> Option<u32> {
    std::env::var_os(VARIABLE).map(|_| std::os::unix::process::parent_id())
}

/// Queued records beyond which heartbeats and steps are dropped, if the launcher does not read.
const QUEUE: usize = 10_000;

/// How long a worker that is done waits for a launcher that does not read (stopped by Ctrl-Z).
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);

/// A worker's end of the connection.
///
/// Records go through a queue and a thread: a launcher that is stopped for a while does not block its workers.
pub struct LauncherConnection {
    queue: Sender<Vec<u8>>,
    /// Records not yet written.
    queued: Arc<AtomicUsize>,
    /// How often the launcher has sent an address, and the last one.
    coordinator: Arc<(Mutex<(u64, String)>, Condvar)>,
    commands: Mutex<Option<Receiver<LauncherCommand>>>,
    closed: Arc<AtomicBool>,
}

impl LauncherConnection {
    /// The connection on standard input; `None` if no launcher started this process.
    pub fn open(rank_status: Arc<RankStatus>) -> Result<Option<Arc<LauncherConnection>>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let broken = |error: std::io::Error| resource_limits::io("no connection to the launcher", &error);
        let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(broken)?);
        let reader = stream.try_clone().map_err(broken)?;
        let (sender, commands) = channel();
        let coordinator: Arc<(Mutex<(u64, String)>, Condvar)> = Arc::default();
        let known = Arc::clone(&coordinator);
        let closed = Arc::new(AtomicBool::new(false));
        let at_end = Arc::clone(&closed);
        std::thread::spawn(move || {
            listen(reader, &known, &sender, &rank_status);
            at_end.store(true, Ordering::Release);
            // Takes the lock so that no thread is between its check and its wait.
            drop(known.0.lock().unwrap_or_else(PoisonError::into_inner));
            known.1.notify_all();
        });
        let (queue, lines) = channel::<Vec<u8>>();
        let queued = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&queued);
        std::thread::spawn(move || {
            for line in lines {
                // If the launcher has exited, the record is lost.
                let _ = stream.write_all(&line);
                written.fetch_sub(1, Ordering::Release);
            }
        });
        let commands = Mutex::new(Some(commands));
        Ok(Some(Arc::new(LauncherConnection { queue, queued, coordinator, commands, closed })))
    }

    pub fn send(&self, record: &Record) {
        let dispensable = matches!(record.event, Event::Heartbeat(_) | Event::Step { .. });
        if dispensable && self.queued.load(Ordering::Acquire) >= QUEUE {
            return;
        }
        if let Ok(mut line) = serde_json::to_vec(record) {
            line.push(b'\n');
            self.queued.fetch_add(1, Ordering::Release);
            let _ = self.queue.send(line);
        }
    }

    /// Waits until all records are written.
    pub fn drain(&self) {
        let end = Instant::now() + DRAIN_TIMEOUT;
        while self.queued.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The commands about the coordinator's role; `None` after the first call.
    pub fn commands(&self) -> Option<Receiver<LauncherCommand>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the launcher has exited.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether the launcher has sent more than `since` addresses.
    pub fn has_new_coordinator(&self, since: u64) -> bool {
        self.coordinator.0.lock().unwrap_or_else(PoisonError::into_inner).0 > since
    }

    /// Waits for an address of the coordinator after the first `since`; returns their count and the last one.
    pub fn await_coordinator(&self, since: u64, deadline: Duration) -> Result<(u64, String)> {
        let (known, news) = &*self.coordinator;
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = |known: &mut (u64, String)| known.0 <= since && !self.is_closed();
        let (known, _) =
            news.wait_timeout_while(known, deadline, stale).unwrap_or_else(PoisonError::into_inner);
        if known.0 > since {
            return Ok(known.clone());
        }
        if self.is_closed() {
            return Err(Error::new(Kind::Rendezvous, "the launcher has exited, and the job ends with it"));
        }
        let message = format!("rank 0 did not open its port within {} s", deadline.as_secs_f64());
        Err(Error::new(Kind::Rendezvous, message))
    }
}

fn listen(
    reader: UnixStream,
    coordinator: &(Mutex<(u64, String)>, Condvar),
    commands: &Sender<LauncherCommand>,
    rank_status: &RankStatus,
) {
    for line in BufReader::new(reader).lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(LauncherCommand::Coordinator(address)) => {
                let mut known = coordinator.0.lock().unwrap_or_else(PoisonError::into_inner);
                *known = (known.0 + 1, address);
                drop(known);
                coordinator.1.notify_all();
            }
            Ok(LauncherCommand::Stop { terminate: true }) => rank_status.request_termination(),
            Ok(LauncherCommand::Stop { terminate: false }) => rank_status.request_stop(),
            Ok(LauncherCommand::Checkpoint) => rank_status.request_checkpoint(),
            Ok(LauncherCommand::Finish) => rank_status.request_finish(),
            Ok(LauncherCommand::Inject(fault)) => rank_status.inject(fault),
            Ok(command) => {
                // The receiver lives as long as the process.
                let _ = commands.send(command);
            }
            Err(_) => {}
        }
    }
    if std::env::var_os(LEAVES).is_some() {
        rank_status.request_leave();
    } else {
        rank_status.request_stop();
    }
}
