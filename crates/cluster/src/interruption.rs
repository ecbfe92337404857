//! What signals request of a job: a pure decision by signal and time.
//!
//! One request to stop often arrives as several signals: Slurm sends SIGTERM twice at the time limit, a terminal that
//! closes sends SIGHUP and the shell another signal, `timeout` signals its child and then the child's process group. So
//! a second signal means "exit at once" only if it arrives [`GRACE`] after the first, and SIGHUP never means it.

use crate::heartbeat_monitor::Straggler;
use std::time::{Duration, Instant};

/// Signals within this time of the first repeat its request.
pub const GRACE: Duration = Duration::from_secs(1);

/// Time for a stopping job to save its state; then its processes exit. Kubernetes kills after 30 s.
pub const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Step deadline of a stopping job, after which the others continue without the rank that holds them up: two of these
/// and a step must fit into [`STOP_LIMIT`].
pub const STALL_WHILE_STOPPING: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: the terminal was closed.
    HangUp,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: what schedulers and `kill` send.
    Terminate,
    /// SIGUSR1: requests a checkpoint.
    User1,
}

impl Signal {
    /// 128 + signal number, as shells report it.
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::HangUp => 129,
            Signal::Interrupt => 130,
            Signal::User1 => 138,
            Signal::Terminate => 143,
        }
    }
}

/// A signal and when it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub signal: Signal,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop after this step, with a checkpoint.
    Stop,
    /// Exit now.
    Exit,
    /// Write a checkpoint after this step and continue.
    Checkpoint,
    /// Nothing new.
    Ignore,
}

/// The state that earlier signals leave.
#[derive(Debug, Default)]
pub struct Interruption {
    /// When the stop was requested.
    stop_requested: Option<Instant>,
}

impl Interruption {
    /// What a signal requests. Without state to save (`can_save`), a request to stop exits the process.
    pub fn on_signal(&mut self, received: Received, can_save: bool) -> Request {
        let Received { signal, at } = received;
        match (signal, self.stop_requested) {
            (Signal::User1, None) => Request::Checkpoint,
            // The stop writes a checkpoint.
            (Signal::User1, Some(_)) => Request::Ignore,
            (_, None) if !can_save => Request::Exit,
            (_, None) => {
                self.stop_requested = Some(at);
                Request::Stop
            }
            (Signal::HangUp, Some(_)) => Request::Ignore,
            (_, Some(requested)) if at.saturating_duration_since(requested) >= GRACE => Request::Exit,
            (_, Some(_)) => Request::Ignore,
        }
    }
}

/// The warning of a stop that exceeded [`STOP_LIMIT`]: the rank that held it up, by name if the monitor can tell it
/// from those that waited for it, and the step of the last checkpoint.
pub fn unfinished_stop(held_up: Option<(Option<String>, Straggler<'_>)>, saved: Option<u64>) -> String {
    let held_up = match held_up {
        Some((rank, Straggler { heartbeat, idle, .. })) => {
            let (name, step, idle) = (&heartbeat.name, heartbeat.step, idle.as_secs_f64());
            let rank = rank.map_or_else(|| "no rank has made".into(), |rank| format!("{rank} has made no"));
            format!("{rank} progress in {name} at step {step} for {idle:.1} s")
        }
        None => "workers do not end".into(),
    };
    let checkpoint = match saved {
        Some(step) => format!("the last checkpoint is that of step {step}"),
        None => "this run has written no checkpoint".into(),
    };
    format!("could not stop in good order within {} s: {held_up}; {checkpoint}", STOP_LIMIT.as_secs())
}

#[cfg(test)]
mod tests {
    use super::Request::{Checkpoint, Exit, Stop};
    use super::Signal::{HangUp, Interrupt, Terminate, User1};
    use super::*;

    /// The requests of a sequence of signals with their times in milliseconds.
    fn requests(can_save: bool, signals: &[(Signal, u64)]) -> Vec<Request> {
        let (start, mut interruption) = (Instant::now(), Interruption::default());
        let mut request = |&(signal, after): &(Signal, u64)| {
            interruption.on_signal(Received { signal, at: start + Duration::from_millis(after) }, can_save)
        };
        signals.iter().map(&mut request).collect()
    }

    #[test]
    fn signals_within_a_second_are_one_request() {
        for burst in [
            // Slurm at its time limit; a closed terminal; `timeout`; repeated Ctrl-C.
            [(Terminate, 0), (Terminate, 2), (Terminate, 6)],
            [(HangUp, 0), (Terminate, 1), (HangUp, 1)],
            [(Terminate, 0), (Terminate, 0), (Interrupt, 999)],
            [(Interrupt, 0), (Interrupt, 150), (Interrupt, 400)],
        ] {
            assert_eq!(requests(true, &burst), [Stop, Request::Ignore, Request::Ignore], "{burst:?}");
        }
    }

    #[test]
    fn a_second_signal_after_a_second_exits_at_once() {
        let signals = [(Interrupt, 0), (Interrupt, 500), (Interrupt, 1000), (Terminate, 1500)];
        assert_eq!(requests(true, &signals), [Stop, Request::Ignore, Exit, Exit]);
        assert_eq!(requests(true, &[(HangUp, 0), (Terminate, 5000)]), [Stop, Exit]);
    }

    #[test]
    fn a_closed_terminal_never_exits_without_a_checkpoint() {
        assert_eq!(
            requests(true, &[(Interrupt, 0), (HangUp, 9000), (HangUp, 20_000)]),
            [Stop, Request::Ignore, Request::Ignore]
        );
    }

    #[test]
    fn without_state_to_save_the_first_signal_exits() {
        for signal in [HangUp, Interrupt, Terminate] {
            assert_eq!(requests(false, &[(signal, 0)]), [Exit]);
        }
        assert_eq!(requests(false, &[(User1, 0)]), [Checkpoint], "it is written after the first step");
    }

    #[test]
    fn a_checkpoint_request_does_not_stop_and_a_stop_writes_one() {
        let signals = [(User1, 0), (User1, 10), (Terminate, 5000), (User1, 5001), (Terminate, 5900)];
        assert_eq!(
            requests(true, &signals),
            [Checkpoint, Checkpoint, Stop, Request::Ignore, Request::Ignore]
        );
        assert_eq!([HangUp, Interrupt, Terminate].map(Signal::exit_code), [129, 130, 143]);
    }
}
