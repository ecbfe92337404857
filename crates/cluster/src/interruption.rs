//! What signals ask of a job: a pure decision over which came and when.
//!
//! One request to stop often arrives as several signals: Slurm sends SIGTERM twice at the time limit, a terminal that
//! closes sends SIGHUP and the shell another signal, `timeout` signals its child and then the child's process group. So a
//! second signal means "leave at once" only if it comes a while after the first, and SIGHUP never means it.

use crate::watch::Laggard;
use std::time::{Duration, Instant};

/// The time from the first signal on in which further ones say the same again.
pub const GRACE: Duration = Duration::from_secs(1);

/// How long a job that was asked to stop has to save its state; then its processes are ended. Kubernetes kills after 30 s.
pub const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How long ranks of a job that is to stop may make no progress before they go on without the one that holds them up: it
/// takes two of these and a step to save the state of the others within [`STOP_LIMIT`].
pub const STALL_WHILE_STOPPING: Duration = Duration::from_secs(4);

/// A signal that concerns the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGHUP: the terminal is gone.
    HangUp,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: what schedulers and `kill` send.
    Terminate,
    /// SIGUSR1: a checkpoint is wanted.
    User1,
}

impl Signal {
    /// The exit code of a process that this signal ended, as shells give it.
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::HangUp => 129,
            Signal::Interrupt => 130,
            Signal::User1 => 138,
            Signal::Terminate => 143,
        }
    }
}

/// A signal and when it came.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Which one.
    pub signal: Signal,
    /// When it reached this process.
    pub at: Instant,
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop after this step, with a checkpoint.
    Stop,
    /// End the process now.
    Leave,
    /// Write a checkpoint after this step and go on.
    Checkpoint,
    /// Nothing that was not asked for already.
    Nothing,
}

/// The signals so far, as far as they matter.
#[derive(Debug, Default)]
pub struct Interruption {
    /// When the stop was asked for.
    asked: Option<Instant>,
}

impl Interruption {
    /// What a signal asks for. Before there is anything to save, a request to stop ends the process.
    pub fn on_signal(&mut self, received: Received, can_save: bool) -> Request {
        let Received { signal, at } = received;
        match (signal, self.asked) {
            (Signal::User1, None) => Request::Checkpoint,
            // The stop writes one.
            (Signal::User1, Some(_)) => Request::Nothing,
            (_, None) if !can_save => Request::Leave,
            (_, None) => {
                self.asked = Some(at);
                Request::Stop
            }
            (Signal::HangUp, Some(_)) => Request::Nothing,
            (_, Some(asked)) if at.saturating_duration_since(asked) >= GRACE => Request::Leave,
            (_, Some(_)) => Request::Nothing,
        }
    }
}

/// What is said of a stop that took too long: the rank that held it up, by name if it can be told from those that waited
/// for it, and the step of the checkpoint that is left.
pub fn unfinished(held_up: Option<(Option<String>, Laggard<'_>)>, saved: Option<u64>) -> String {
    let held_up = match held_up {
        Some((who, Laggard { pulse, idle, .. })) => {
            let (name, step, idle) = (&pulse.name, pulse.step, idle.as_secs_f64());
            let who = who.map_or_else(|| "no rank has made".into(), |who| format!("{who} has made no"));
            format!("{who} progress in {name} at step {step} for {idle:.1} s")
        }
        None => "workers do not end".into(),
    };
    let kept = match saved {
        Some(step) => format!("the last checkpoint is that of step {step}"),
        None => "this run has written no checkpoint".into(),
    };
    format!("could not stop in good order within {} s: {held_up}; {kept}", STOP_LIMIT.as_secs())
}

#[cfg(test)]
mod tests {
    use super::Request::{Checkpoint, Leave, Nothing, Stop};
    use super::Signal::{HangUp, Interrupt, Terminate, User1};
    use super::*;

    /// What a sequence of signals with their times in milliseconds asks for, one after the other.
    fn answers(can_save: bool, signals: &[(Signal, u64)]) -> Vec<Request> {
        let (start, mut interruption) = (Instant::now(), Interruption::default());
        let mut answer = |&(signal, after): &(Signal, u64)| {
            interruption.on_signal(Received { signal, at: start + Duration::from_millis(after) }, can_save)
        };
        signals.iter().map(&mut answer).collect()
    }

    #[test]
    fn signals_within_a_second_are_one_request() {
        for burst in [
            // The time limit of Slurm; a terminal that closes; `timeout`; Ctrl-C of somebody in a hurry.
            [(Terminate, 0), (Terminate, 2), (Terminate, 6)],
            [(HangUp, 0), (Terminate, 1), (HangUp, 1)],
            [(Terminate, 0), (Terminate, 0), (Interrupt, 999)],
            [(Interrupt, 0), (Interrupt, 150), (Interrupt, 400)],
        ] {
            assert_eq!(answers(true, &burst), [Stop, Nothing, Nothing], "{burst:?}");
        }
    }

    #[test]
    fn a_second_signal_after_a_second_leaves_at_once() {
        let signals = [(Interrupt, 0), (Interrupt, 500), (Interrupt, 1000), (Terminate, 1500)];
        assert_eq!(answers(true, &signals), [Stop, Nothing, Leave, Leave]);
        assert_eq!(answers(true, &[(HangUp, 0), (Terminate, 5000)]), [Stop, Leave]);
    }

    #[test]
    fn a_closed_terminal_never_leaves_without_a_checkpoint() {
        assert_eq!(
            answers(true, &[(Interrupt, 0), (HangUp, 9000), (HangUp, 20_000)]),
            [Stop, Nothing, Nothing]
        );
    }

    #[test]
    fn before_there_is_anything_to_save_the_first_signal_ends_it() {
        for signal in [HangUp, Interrupt, Terminate] {
            assert_eq!(answers(false, &[(signal, 0)]), [Leave]);
        }
        assert_eq!(answers(false, &[(User1, 0)]), [Checkpoint], "it is written after the first step");
    }

    #[test]
    fn a_checkpoint_is_no_stop_and_a_stop_is_a_checkpoint() {
        let signals = [(User1, 0), (User1, 10), (Terminate, 5000), (User1, 5001), (Terminate, 5900)];
        assert_eq!(answers(true, &signals), [Checkpoint, Checkpoint, Stop, Nothing, Nothing]);
        assert_eq!([HangUp, Interrupt, Terminate].map(Signal::exit_code), [129, 130, 143]);
    }
}
