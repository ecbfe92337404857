//! Signals to process groups, their names, and what processes used.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Ends a process and all that it started, at once. It must lead its own process group.
pub fn kill_group(process: u32) {
    // A group that is gone already is what we want: nothing to do about an error.
    let _ = killpg(Pid::from_raw(process as i32), Signal::SIGKILL);
}

/// The most memory that any process held which this one started and saw the end of, in bytes.
pub fn peak_memory_of_children() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok()?;
    u64::try_from(usage.max_rss()).ok().map(|kibibytes| kibibytes * 1024)
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
