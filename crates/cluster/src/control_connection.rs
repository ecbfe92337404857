//! A rank's end of the control connection to the coordinator: heartbeats in both directions, commands to the rank.
//!
//! The coordinator monitors the ranks (see [`crate::coordinator`]), and every rank monitors the coordinator by its
//! heartbeats. So silence, a dead process or an error of any rank reaches all ranks within moments.

use crate::rank_status::RankStatus;
use crate::rendezvous::mesh;
use crate::rendezvous::message::{Control, Member, Roster, receive, send};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_core::event::Heartbeat;
use thalweg_core::{Culprit, Error, Kind};

/// Time between two heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);

/// Missing heartbeats after which a rank warns about its coordinator: 3 s.
const WARN_AFTER: u128 = 15;

/// What ends a rank's wait between two generations.
pub enum CoordinatorEvent {
    /// The next group is formed.
    Roster(Box<Roster>),
    /// The coordinator is lost.
    Lost(Error),
    /// Another process takes the coordinator's role.
    Moved,
}

/// Handles the messages of the coordinator.
pub struct CoordinatorListener {
    pub rank_status: Arc<RankStatus>,
    pub coordinator: Member,
    pub generation: u32,
    /// How long the coordinator may be silent.
    pub deadline: Duration,
    /// Gets new groups and the loss of the coordinator; without, that loss ends the job.
    pub events: Option<Sender<CoordinatorEvent>>,
    /// Whether a pause was requested here; the next group ends it.
    pub pause_requested: bool,
    /// Gets a warning once the coordinator has been silent for a while.
    pub warn: Arc<dyn Fn(String) + Send + Sync>,
}

pub struct ControlConnection {
    stream: Mutex<TcpStream>,
    closed: AtomicBool,
}

impl ControlConnection {
    /// Starts the thread that receives the coordinator's messages.
    pub fn open(stream: TcpStream, listener: CoordinatorListener) -> std::io::Result<Arc<ControlConnection>> {
        let reader = stream.try_clone()?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let connection =
            Arc::new(ControlConnection { stream: Mutex::new(stream), closed: AtomicBool::new(false) });
        let listening = Arc::clone(&connection);
        std::thread::spawn(move || listening.listen(reader, listener));
        Ok(connection)
    }

    fn listen(self: &Arc<ControlConnection>, mut reader: TcpStream, mut listener: CoordinatorListener) {
        // Silence is counted in receive timeouts, not by the clock: a process that was suspended must not blame others.
        let margin = listener.deadline.min(Duration::from_secs(2)) / 10;
        let limit = ((listener.deadline - margin).as_millis() / HEARTBEAT_INTERVAL.as_millis()).max(2);
        let mut missed = 0;
        let lost = loop {
            match next_message(&mut reader) {
                Ok(Some(Control::Moved)) => {
                    return listener
                        .events
                        .into_iter()
                        .for_each(|events| drop(events.send(CoordinatorEvent::Moved)));
                }
                Ok(Some(Control::Probe(member))) => {
                    missed = 0;
                    let connection = Arc::clone(self);
                    mesh::probe(*member, move |probed| connection.send(probed));
                }
                Ok(Some(message)) => {
                    missed = 0;
                    if let Some(reason) = listener.on_message(message) {
                        if !self.closed.load(Ordering::Relaxed) {
                            listener.rank_status.abort(reason);
                        }
                        return;
                    }
                }
                Ok(None) if missed < limit => {
                    missed += 1;
                    if missed == WARN_AFTER {
                        listener.warn_silent();
                    }
                }
                Ok(None) => {
                    let silent = listener.deadline - margin;
                    break listener
                        .lost(&format!("has been silent for {:.1} s", silent.as_secs_f64()), silent);
                }
                Err(_) => {
                    break listener.lost("vanished: its connection closed without a goodbye", Duration::ZERO);
                }
            }
        };
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        match &listener.events {
            Some(events) => {
                listener.rank_status.interrupt(listener.generation, lost.clone());
                let _ = events.send(CoordinatorEvent::Lost(lost));
            }
            None => listener.rank_status.abort(lost),
        }
    }

    /// Sends a message. Errors are ignored here: the receiving thread notices a broken connection.
    pub fn send(&self, message: &Control) {
        let _ = send(&mut *self.stream.lock().unwrap_or_else(PoisonError::into_inner), message);
    }

    /// Sends a last message and closes the sending direction; the end of the connection is no loss from now on.
    pub fn close(&self, last: &Control) {
        self.closed.store(true, Ordering::Relaxed);
        self.send(last);
        let _ = self.stream.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Write);
    }
}

/// The next message; `None` if none arrives within a heartbeat interval.
fn next_message(reader: &mut TcpStream) -> std::io::Result<Option<Control>> {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    reader.set_read_timeout(Some(HEARTBEAT_INTERVAL))?;
    match reader.peek(&mut [0]) {
        Ok(0) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => {
            // The message has begun: the rest follows at once, or never.
            reader.set_read_timeout(Some(Duration::from_secs(10)))?;
            receive(reader).map(Some)
        }
        Err(error) if matches!(error.kind(), Interrupted | TimedOut | WouldBlock) => Ok(None),
        Err(error) => Err(error),
    }
}

impl CoordinatorListener {
    /// Acts on a message; returns the error if it ends the job.
    fn on_message(&mut self, message: Control) -> Option<Error> {
        match message {
            Control::Abort(error) => return Some(*error),
            Control::Interrupt(generation, reason) => self.rank_status.interrupt(generation, *reason),
            Control::Heartbeat(heartbeat) => self.rank_status.set_group_progress(heartbeat.progress),
            Control::BoundaryRequested(requested) => self.rank_status.set_group_boundary(requested),
            Control::Meeting { called, rows } => {
                self.rank_status.set_group_rows(rows);
                self.rank_status.call_meeting(called);
            }
            Control::Pause => {
                self.pause_requested = true;
                self.rank_status.request_pause(true);
            }
            Control::Roster(roster) => {
                // A coordinator in this process sets and clears the request itself, ahead of its messages.
                if std::mem::take(&mut self.pause_requested) {
                    self.rank_status.request_pause(false);
                }
                // The group was formed at a boundary.
                self.rank_status.set_group_boundary(false);
                self.generation = roster.generation;
                if let Some(events) = &self.events {
                    let _ = events.send(CoordinatorEvent::Roster(roster));
                }
            }
            _ => {}
        }
        None
    }

    /// Warns that the coordinator has been silent, so that a host that is cut off reports it before it times out.
    fn warn_silent(&self) {
        let Member { rank, host, .. } = &self.coordinator;
        let silent = (HEARTBEAT_INTERVAL * WARN_AFTER as u32).as_secs_f64();
        let deadline = self.deadline.as_secs_f64();
        (self.warn)(format!(
            "no heartbeat from rank {rank} on {host}, the coordinator, for {silent:.0} s: it is stopped, or the network between them is cut (timeout after {deadline} s)"
        ));
    }

    fn lost(&self, cause: &str, detect: Duration) -> Error {
        let Heartbeat { step, name, .. } = self.rank_status.heartbeat();
        let Member { rank, host, process, .. } = &self.coordinator;
        let message = format!(
            "rank {rank} on {host} (pid {process}), the coordinator, {cause} at step {step}; this rank was in {name}"
        );
        Error::new(Kind::RankFailed, message).blame(Culprit {
            rank: *rank,
            host: Some(host.clone()),
            step: Some(step),
            operation: Some(name),
            cause: cause.into(),
            detect_s: Some(detect.as_secs_f64()),
            noticed: Some(crate::session::unix_time()),
        })
    }
}
