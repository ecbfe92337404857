//! Bounded exit of a process whose program does not end: after a signal, or when the job was aborted.

use crate::interruption::{Interruption, Received, Request, STOP_LIMIT, Signal};
use crate::linux;
use crate::rank::Emit;
use crate::rank_status::RankStatus;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use thalweg_core::Error;
use thalweg_core::event::{Event, Heartbeat, Level};

/// Why a process exits before its program returns.
#[derive(Clone, Debug)]
pub enum ExitReason {
    /// A signal before there is state to save, a second one, or a stop that exceeded [`STOP_LIMIT`].
    Signal(Signal),
    /// The job was aborted, and the program does not return from its computation.
    Aborted(Error),
}

/// Runs before a forced exit, such as writing the report; limited to `EXIT_HOOK_LIMIT`.
pub type OnForcedExit = Arc<dyn Fn(&ExitReason) + Send + Sync>;

/// Time limit of the exit hook: it may block on locks that the program holds.
const EXIT_HOOK_LIMIT: Duration = Duration::from_secs(3);

/// Runs `last_events` and the exit hook, then exits.
pub(crate) fn force_exit(
    on_forced_exit: &OnForcedExit,
    reason: ExitReason,
    last_events: impl FnOnce() + Send + 'static,
) -> ! {
    let code = match &reason {
        ExitReason::Signal(signal) => signal.exit_code(),
        ExitReason::Aborted(error) => error.exit_code(),
    };
    let (done, ended) = channel();
    let on_forced_exit = Arc::clone(on_forced_exit);
    let hook = std::thread::Builder::new().spawn(move || {
        last_events();
        on_forced_exit(&reason);
        let _ = std::io::stdout().flush();
        let _ = done.send(());
    });
    // Without a thread the hook is skipped.
    if hook.is_ok() {
        let _ = ended.recv_timeout(EXIT_HOOK_LIMIT);
    }
    linux::exit_now(code)
}

/// Progress of a session, shared with the signal thread.
#[derive(Default)]
pub(crate) struct SessionState {
    /// The rendezvous is complete.
    pub(crate) joined: AtomicBool,
    /// The program has returned.
    pub(crate) done: AtomicBool,
    /// The coordinator's role, if this process had it, has ended too.
    pub(crate) ended: AtomicBool,
}

/// Passes signals on to the program of this process.
pub(crate) struct SignalForwarder {
    pub(crate) rank: usize,
    pub(crate) rank_status: Arc<RankStatus>,
    pub(crate) state: Arc<SessionState>,
    pub(crate) emit: Emit,
    pub(crate) on_forced_exit: OnForcedExit,
    /// Whether the job continues without this process after SIGTERM.
    pub(crate) drains: bool,
    /// Whether this process joined a job started by another launcher.
    pub(crate) is_guest: bool,
}

impl SignalForwarder {
    /// Passes signals on to the program. Before the rendezvous is complete there is no state to save and the process
    /// exits at once; it also exits if the program does not stop within [`STOP_LIMIT`].
    pub(crate) fn run(self, signals: &Receiver<Received>) {
        let mut interruption = Interruption::default();
        let mut requested: Option<(Signal, Instant)> = None;
        loop {
            let left = requested.map_or(Duration::MAX, |(_, when)| STOP_LIMIT.saturating_sub(when.elapsed()));
            let received = match (signals.recv_timeout(left), requested) {
                (Ok(received), _) => received,
                (Err(RecvTimeoutError::Timeout), Some((signal, _))) => {
                    if !self.state.ended.load(Ordering::Relaxed) {
                        self.exit_after_timeout(signal);
                    }
                    requested = None;
                    continue;
                }
                (Err(RecvTimeoutError::Timeout), None) => continue,
                (Err(RecvTimeoutError::Disconnected), _) => return,
            };
            let signal = received.signal;
            match interruption.on_signal(received, self.state.joined.load(Ordering::Relaxed)) {
                Request::Exit => force_exit(&self.on_forced_exit, ExitReason::Signal(signal), || {}),
                Request::Stop => {
                    requested = Some((signal, Instant::now()));
                    self.stop(signal);
                }
                Request::Checkpoint => self.rank_status.request_checkpoint(),
                Request::Ignore => {}
            }
        }
    }

    /// SIGTERM makes this process leave an elastic job, which continues; SIGINT stops the job, except for a process
    /// that joined another launcher's job, which leaves.
    fn stop(&self, signal: Signal) {
        if self.drains && (self.is_guest || signal == Signal::Terminate) {
            self.rank_status.request_leave();
        } else if signal == Signal::Terminate {
            self.rank_status.request_termination();
        } else {
            self.rank_status.request_stop();
        }
    }

    fn exit_after_timeout(&self, signal: Signal) {
        let Heartbeat { name, step, since, .. } = self.rank_status.heartbeat();
        let message = format!(
            "rank {} could not stop in good order within {} s: it has been in {name} at step {step} for {since:.1} s; what was trained since the last checkpoint is lost",
            self.rank,
            STOP_LIMIT.as_secs()
        );
        let emit = Arc::clone(&self.emit);
        let last_event = move || emit(Event::Notice { level: Level::Warning, message });
        force_exit(&self.on_forced_exit, ExitReason::Signal(signal), last_event)
    }
}
