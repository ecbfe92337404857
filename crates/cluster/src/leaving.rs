//! How a process ends before its program does: on a signal, or when the job is over and the program does not come back.

use crate::beacon::Beacon;
use crate::interruption::{Interruption, Received, Request, STOP_LIMIT, Signal};
use crate::linux;
use crate::rank::Emit;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use thalweg_core::Error;
use thalweg_core::event::{Event, Level, Pulse};

/// Why a process must end before its program does.
#[derive(Clone, Debug)]
pub enum Leaving {
    /// A signal, when there is nothing to save yet, for the second time, or too long ago.
    Signal(Signal),
    /// The job is over, and the program does not come back from its computation.
    Verdict(Error),
}

/// Does what is to be done when the process ends at once, such as writing the report. The process ends after it.
pub type OnLeave = Arc<dyn Fn(&Leaving) + Send + Sync>;

/// How long the last things may take: whatever the program holds, the process ends.
const LAST_THINGS: Duration = Duration::from_secs(3);

/// Does the last things and ends the process.
pub(crate) fn leave(on_leave: &OnLeave, leaving: Leaving, words: impl FnOnce() + Send + 'static) -> ! {
    let code = match &leaving {
        Leaving::Signal(signal) => signal.exit_code(),
        Leaving::Verdict(error) => error.exit_code(),
    };
    let (done, ended) = channel();
    let on_leave = Arc::clone(on_leave);
    let last_things = std::thread::Builder::new().spawn(move || {
        words();
        on_leave(&leaving);
        let _ = std::io::stdout().flush();
        let _ = done.send(());
    });
    // Where no thread can be started, the end comes first.
    if last_things.is_ok() {
        let _ = ended.recv_timeout(LAST_THINGS);
    }
    linux::exit_now(code)
}

/// How far a session has come.
#[derive(Default)]
pub(crate) struct State {
    /// The ranks have met.
    pub(crate) joined: AtomicBool,
    /// The program has ended.
    pub(crate) done: AtomicBool,
    /// Nothing is left to be done for others.
    pub(crate) ended: AtomicBool,
}

/// What signals are passed on to.
pub(crate) struct Heeding {
    pub(crate) rank: usize,
    pub(crate) beacon: Arc<Beacon>,
    pub(crate) state: Arc<State>,
    pub(crate) emit: Emit,
    pub(crate) on_leave: OnLeave,
    /// Whether the others go on when this process is asked to end.
    pub(crate) drains: bool,
    /// Whether the job is somebody else's.
    pub(crate) is_guest: bool,
}

impl Heeding {
    /// Passes signals on to the program. Before the ranks have met there is nothing to save: the process ends. It also ends
    /// if the program does not stop in time, whatever holds it up.
    pub(crate) fn run(self, signals: &Receiver<Received>) {
        let mut interruption = Interruption::default();
        let mut asked: Option<(Signal, Instant)> = None;
        loop {
            let left = asked.map_or(Duration::MAX, |(_, when)| STOP_LIMIT.saturating_sub(when.elapsed()));
            let received = match (signals.recv_timeout(left), asked) {
                (Ok(received), _) => received,
                (Err(RecvTimeoutError::Timeout), Some((signal, _))) => {
                    if !self.state.ended.load(Ordering::Relaxed) {
                        self.give_up(signal);
                    }
                    asked = None;
                    continue;
                }
                (Err(RecvTimeoutError::Timeout), None) => continue,
                (Err(RecvTimeoutError::Disconnected), _) => return,
            };
            let signal = received.signal;
            match interruption.on_signal(received, self.state.joined.load(Ordering::Relaxed)) {
                Request::Leave => leave(&self.on_leave, Leaving::Signal(signal), || {}),
                Request::Stop => {
                    asked = Some((signal, Instant::now()));
                    self.stop(signal);
                }
                Request::Checkpoint => self.beacon.request_checkpoint(),
                Request::Nothing => {}
            }
        }
    }

    /// Asked to end, this process leaves the others to go on; asked to interrupt, the job stops, unless it is somebody else's.
    fn stop(&self, signal: Signal) {
        if self.drains && (self.is_guest || signal == Signal::Terminate) {
            self.beacon.request_leave();
        } else if signal == Signal::Terminate {
            self.beacon.request_termination();
        } else {
            self.beacon.request_stop();
        }
    }

    fn give_up(&self, signal: Signal) {
        let Pulse { name, step, since, .. } = self.beacon.pulse();
        let message = format!(
            "rank {} could not stop in good order within {} s: it has been in {name} at step {step} for {since:.1} s; what was trained since the last checkpoint is lost",
            self.rank,
            STOP_LIMIT.as_secs()
        );
        let emit = Arc::clone(&self.emit);
        let words = move || emit(Event::Notice { level: Level::Warning, message });
        leave(&self.on_leave, Leaving::Signal(signal), words)
    }
}
