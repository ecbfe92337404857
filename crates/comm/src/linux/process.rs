//! Signals to process groups, and their names.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Ends a process and all that it started, at once. It must lead its own process group.
pub fn kill_group(process: u32) {
    // A group that is gone already is what we want: nothing to do about an error.
    let _ = killpg(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// The name of a signal: `SIGKILL`.
pub fn signal_name(number: i32) -> &'static str {
    Signal::try_from(number).map_or("an unknown signal", |signal| signal.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(-1), "an unknown signal");
    }
}
