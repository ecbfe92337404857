//! The signals that concern a job: how they reach this process, and who answers them.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_cluster::interruption::{Received, Signal};
use thalweg_cluster::linux;
use thalweg_core::{Error, Result};

/// What is done about a signal.
enum Answer {
    /// There is nothing to save yet: clean up and end the process.
    Leave(Option<Box<dyn FnOnce() + Send>>),
    /// Somebody takes care of it.
    Pass(Sender<Received>),
}

/// Watches for signals from the moment it is made. While the job is only being looked at, a signal ends the process.
pub struct Signals {
    answer: Arc<Mutex<Answer>>,
    /// The exit code of the first that asked for an end; 0 if none has.
    first: Arc<AtomicU8>,
}

impl Signals {
    /// Watches from now on. That a file may not grow any more is no signal to die of.
    pub fn watch() -> Result<Signals> {
        linux::outlive_file_limits();
        let failed = |error: std::io::Error| Error::io("cannot watch for signals", &error);
        let mut incoming = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(failed)?;
        if !linux::ignores_hangup() {
            incoming.add_signal(SIGHUP).map_err(failed)?;
        }
        let answer = Arc::new(Mutex::new(Answer::Leave(None)));
        let first = Arc::new(AtomicU8::new(0));
        let (shared, seen) = (Arc::clone(&answer), Arc::clone(&first));
        std::thread::spawn(move || {
            incoming.forever().filter_map(named).for_each(|signal| receive(signal, &shared, &seen));
        });
        Ok(Signals { answer, first })
    }

    /// Ends this process with another one: when that is gone, as after a SIGTERM. `say` tells the user so.
    pub fn end_with(&self, other: linux::Grip, say: impl FnOnce() + Send + 'static) {
        let (shared, seen) = (Arc::clone(&self.answer), Arc::clone(&self.first));
        std::thread::spawn(move || {
            other.await_end();
            say();
            receive(Signal::Terminate, &shared, &seen);
        });
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// What has to be cleaned up if the process ends before it has begun.
    pub fn before_leaving(&self, clean_up: impl FnOnce() + Send + 'static) {
        self.set(Answer::Leave(Some(Box::new(clean_up))));
    }

    /// From now on signals are somebody's business.
    pub fn pass_on(&self) -> Receiver<Received> {
        let (sender, receiver) = channel();
        self.set(Answer::Pass(sender));
        receiver
    }

    /// Asks for a stop by itself after that time, as a user would.
    pub fn stop_after(&self, time: Duration) {
        let answer = Arc::clone(&self.answer);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            if let Answer::Pass(sender) = &*answer.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = sender.send(Received { signal: Signal::Interrupt, at: Instant::now() });
            }
        });
    }

    /// The exit code of a process that was interrupted: by the first signal of its own, or for another one's.
    pub fn code(&self) -> u8 {
        self.code_or(Signal::Interrupt)
    }

    /// The same, if another one's signal is known.
    pub fn code_or(&self, other: Signal) -> u8 {
        match self.first.load(Ordering::Relaxed) {
            0 => other.exit_code(),
            code => code,
        }
    }
}

fn receive(signal: Signal, answer: &Mutex<Answer>, first: &AtomicU8) {
    let code = signal.exit_code();
    if signal != Signal::User1 {
        let _ = first.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }
    match &mut *answer.lock().unwrap_or_else(PoisonError::into_inner) {
        Answer::Leave(_) if signal == Signal::User1 => {}
        Answer::Leave(clean_up) => {
            if let Some(clean_up) = clean_up.take() {
                clean_up();
            }
            std::process::exit(i32::from(code));
        }
        Answer::Pass(sender) => {
            // The receiver is gone only when the process is about to end.
            let _ = sender.send(Received { signal, at: Instant::now() });
        }
    }
}

fn named(number: i32) -> Option<Signal> {
    match number {
        SIGHUP => Some(Signal::HangUp),
        SIGINT => Some(Signal::Interrupt),
        SIGTERM => Some(Signal::Terminate),
        SIGUSR1 => Some(Signal::User1),
        _ => None,
    }
}
