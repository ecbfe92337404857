//! A rank's end of the connection that stays open between it and the coordinator: pulses one way, verdicts the other.
//!
//! The coordinator watches the ranks (see [`crate::coordinator`]); every rank watches the coordinator in turn, by its own
//! pulses. So each silence, each vanished process and each rank's own error reaches all within moments.

use crate::beacon::Beacon;
use crate::rendezvous::mesh;
use crate::rendezvous::message::{Control, Member, Roster, receive, send};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_core::event::Pulse;
use thalweg_core::{Culprit, Error, Kind};

/// Time between two pulses.
pub const PULSE: Duration = Duration::from_millis(200);

/// After so many pulses that did not come, this rank says so: 3 s.
const WORRY: u128 = 15;

/// What a rank waits for between two generations.
pub enum Mail {
    /// The next group.
    Roster(Box<Roster>),
    /// The coordinator is gone, and how.
    Lost(Error),
    /// Another one takes the role.
    Moved,
}

/// What a rank knows of its coordinator, and whom it tells.
pub struct Listener {
    /// Where verdicts go.
    pub beacon: Arc<Beacon>,
    /// Who it is.
    pub coordinator: Member,
    /// The generation at the beginning.
    pub generation: u32,
    /// How long it may be silent.
    pub deadline: Duration,
    /// Where groups go, and the end of the coordinator if that is not the end of the job.
    pub mail: Option<Sender<Mail>>,
    /// Whether it asked for a stop, which the next group answers.
    pub pauses: bool,
    /// Hears that it has been silent for a while.
    pub say: Arc<dyn Fn(String) + Send + Sync>,
}

/// A rank's end of the connection.
pub struct Line {
    stream: Mutex<TcpStream>,
    left: AtomicBool,
}

impl Line {
    /// Listens to the coordinator from now on.
    pub fn open(stream: TcpStream, listener: Listener) -> std::io::Result<Arc<Line>> {
        let reader = stream.try_clone()?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let line = Arc::new(Line { stream: Mutex::new(stream), left: AtomicBool::new(false) });
        let listening = Arc::clone(&line);
        std::thread::spawn(move || listening.listen(reader, listener));
        Ok(line)
    }

    fn listen(self: &Arc<Line>, mut reader: TcpStream, mut listener: Listener) {
        // Silence is counted in looks, not by the clock: a process that was stopped itself must not blame others for it.
        let margin = listener.deadline.min(Duration::from_secs(2)) / 10;
        let patience = ((listener.deadline - margin).as_millis() / PULSE.as_millis()).max(2);
        let mut quiet = 0;
        let lost = loop {
            match heard(&mut reader) {
                Ok(Some(Control::Moved)) => {
                    return listener.mail.into_iter().for_each(|mail| drop(mail.send(Mail::Moved)));
                }
                Ok(Some(Control::Probe(member))) => {
                    quiet = 0;
                    let line = Arc::clone(self);
                    mesh::probe(*member, move |probed| line.say(probed));
                }
                Ok(Some(said)) => {
                    quiet = 0;
                    if let Some(verdict) = listener.hear(said) {
                        if !self.left.load(Ordering::Relaxed) {
                            listener.beacon.condemn(verdict);
                        }
                        return;
                    }
                }
                Ok(None) if quiet < patience => {
                    quiet += 1;
                    if quiet == WORRY {
                        listener.worry();
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
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        match &listener.mail {
            Some(mail) => {
                listener.beacon.interrupt(listener.generation, Error { kind: Kind::Regroup, ..lost.clone() });
                let _ = mail.send(Mail::Lost(lost));
            }
            None => listener.beacon.condemn(lost),
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

impl Listener {
    /// Acts on what the coordinator says; its verdict on the job, if that is what it is.
    fn hear(&mut self, said: Control) -> Option<Error> {
        match said {
            Control::Abort(error) => return Some(*error),
            Control::Interrupt(generation, why) => {
                self.beacon.interrupt(generation, Error { kind: Kind::Regroup, ..*why });
            }
            Control::Pulse(pulse) => self.beacon.tell_group(pulse.progress),
            Control::Pause => {
                self.pauses = true;
                self.beacon.request_pause(true);
            }
            Control::Roster(roster) => {
                // A coordinator in this very process asks and answers by itself, ahead of what it says here.
                if std::mem::take(&mut self.pauses) {
                    self.beacon.request_pause(false);
                }
                self.generation = roster.generation;
                if let Some(mail) = &self.mail {
                    let _ = mail.send(Mail::Roster(roster));
                }
            }
            _ => {}
        }
        None
    }

    /// The coordinator has been silent for a while: a host that is cut off says so before it gives up.
    fn worry(&self) {
        let Member { rank, host, .. } = &self.coordinator;
        let silent = (PULSE * WORRY as u32).as_secs_f64();
        let deadline = self.deadline.as_secs_f64();
        (self.say)(format!(
            "nothing was heard from rank {rank} on {host}, the coordinator, for {silent:.0} s: it is stopped, or the network between them is cut (given up after {deadline} s)"
        ));
    }

    fn lost(&self, cause: &str, detect: Duration) -> Error {
        let Pulse { step, name, .. } = self.beacon.pulse();
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
