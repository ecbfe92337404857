//! Signals of a job: installation of the handlers, and the exit code after a signal.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thalweg_cluster::interruption::{Received, Signal};
use thalweg_cluster::linux;
use thalweg_core::{Error, Result};

/// What happens on a signal.
enum Handler {
    /// Before training: run the cleanup, if any, and exit.
    Exit(Option<Box<dyn FnOnce() + Send>>),
    /// During training: forward the signal to the job.
    Forward(Sender<Received>),
}

/// Handles signals from its creation on. Until [`Signals::forward`] is called, a signal ends the process.
pub struct Signals {
    handler: Arc<Mutex<Handler>>,
    /// Exit code of the first SIGHUP, SIGINT or SIGTERM; 0 before any.
    first: Arc<AtomicU8>,
}

impl Signals {
    /// Installs the handlers, and ignores SIGXFSZ: a write past the file size limit then returns an error.
    pub fn install() -> Result<Signals> {
        linux::ignore_file_size_signal();
        let failed = |error: std::io::Error| Error::io("cannot install signal handlers", &error);
        let mut incoming = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(failed)?;
        if !linux::ignores_hangup() {
            incoming.add_signal(SIGHUP).map_err(failed)?;
        }
        let handler = Arc::new(Mutex::new(Handler::Exit(None)));
        let first = Arc::new(AtomicU8::new(0));
        let (shared, seen) = (Arc::clone(&handler), Arc::clone(&first));
        std::thread::spawn(move || {
            incoming.forever().filter_map(signal_of).for_each(|signal| receive(signal, &shared, &seen));
        });
        Ok(Signals { handler, first })
    }

    /// Acts as on SIGTERM when another process exits; `notify` runs first.
    pub fn terminate_with(&self, other: linux::PidFd, notify: impl FnOnce() + Send + 'static) {
        let (shared, seen) = (Arc::clone(&self.handler), Arc::clone(&self.first));
        std::thread::spawn(move || {
            other.wait_for_exit();
            notify();
            receive(Signal::Terminate, &shared, &seen);
        });
    }

    fn set(&self, handler: Handler) {
        *self.handler.lock().unwrap_or_else(PoisonError::into_inner) = handler;
    }

    /// Runs `clean_up` if a signal ends the process before training starts.
    pub fn set_cleanup(&self, clean_up: impl FnOnce() + Send + 'static) {
        self.set(Handler::Exit(Some(Box::new(clean_up))));
    }

    /// Sends signals to the returned receiver from now on, instead of exiting.
    pub fn forward(&self) -> Receiver<Received> {
        let (sender, receiver) = channel();
        self.set(Handler::Forward(sender));
        receiver
    }

    /// Acts as on SIGINT after `time`.
    pub fn stop_after(&self, time: Duration) {
        let handler = Arc::clone(&self.handler);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            if let Handler::Forward(sender) = &*handler.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = sender.send(Received { signal: Signal::Interrupt, at: Instant::now() });
            }
        });
    }

    /// Whether this process has received a signal that ends it.
    pub fn has_received(&self) -> bool {
        self.first.load(Ordering::Relaxed) != 0
    }

    /// Exit code of an interrupted process: that of its first signal, or of SIGINT if another rank was signalled.
    pub fn code(&self) -> u8 {
        self.code_or(Signal::Interrupt)
    }

    /// The same, with the signal of the other rank.
    pub fn code_or(&self, other: Signal) -> u8 {
        match self.first.load(Ordering::Relaxed) {
            0 => other.exit_code(),
            code => code,
        }
    }
}

fn receive(signal: Signal, handler: &Mutex<Handler>, first: &AtomicU8) {
    let code = signal.exit_code();
    if signal != Signal::User1 {
        let _ = first.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }
    match &mut *handler.lock().unwrap_or_else(PoisonError::into_inner) {
        Handler::Exit(_) if signal == Signal::User1 => {}
        Handler::Exit(clean_up) => {
            if let Some(clean_up) = clean_up.take() {
                clean_up();
            }
            std::process::exit(i32::from(code));
        }
        Handler::Forward(sender) => {
            // The receiver is dropped only when the process is about to exit.
            let _ = sender.send(Received { signal, at: Instant::now() });
        }
    }
}

fn signal_of(number: i32) -> Option<Signal> {
    match number {
        SIGHUP => Some(Signal::HangUp),
        SIGINT => Some(Signal::Interrupt),
        SIGTERM => Some(Signal::Terminate),
        SIGUSR1 => Some(Signal::User1),
        _ => None,
    }
}
