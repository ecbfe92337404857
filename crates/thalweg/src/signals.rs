//! The signals that ask this process to stop.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_core::{Error, Result};

/// What is done about a signal.
enum Answer {
    /// There is nothing to save yet: clean up and end the process.
    Leave(Option<Box<dyn FnOnce() + Send>>),
    /// Somebody takes care of it.
    Pass(Sender<i32>),
}

/// Watches for signals from the moment it is made. While the job is only being looked at, a signal ends the process.
pub struct Signals {
    answer: Arc<Mutex<Answer>>,
    last: Arc<AtomicI32>,
}

impl Signals {
    /// Watches from now on. That a file may not grow any more is no signal to die of.
    pub fn watch() -> Result<Signals> {
        thalweg_cluster::linux::outlive_file_limits();
        let failed = |error: std::io::Error| Error::io("cannot watch for signals", &error);
        let mut incoming = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let answer = Arc::new(Mutex::new(Answer::Leave(None)));
        let last = Arc::new(AtomicI32::new(0));
        let (shared, seen) = (Arc::clone(&answer), Arc::clone(&last));
        std::thread::spawn(move || {
            for signal in incoming.forever() {
                seen.store(signal, Ordering::Relaxed);
                match &mut *shared.lock().unwrap_or_else(PoisonError::into_inner) {
                    Answer::Leave(clean_up) => {
                        if let Some(clean_up) = clean_up.take() {
                            clean_up();
                        }
                        std::process::exit(128 + signal);
                    }
                    Answer::Pass(sender) => {
                        // Whoever took them is gone only when the process is about to end.
                        let _ = sender.send(signal);
                    }
                }
            }
        });
        Ok(Signals { answer, last })
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// What has to be cleaned up if the process ends before it has begun.
    pub fn before_leaving(&self, clean_up: impl FnOnce() + Send + 'static) {
        self.set(Answer::Leave(Some(Box::new(clean_up))));
    }

    /// From now on signals are somebody's business.
    pub fn pass_on(&self) -> Receiver<i32> {
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
                let _ = sender.send(SIGINT);
            }
        });
    }

    /// The exit code of a process that was interrupted: by its own last signal, or for another one's.
    pub fn code(&self) -> u8 {
        match self.last.load(Ordering::Relaxed) {
            0 => 128 + SIGINT as u8,
            signal => 128 + signal as u8,
        }
    }
}
