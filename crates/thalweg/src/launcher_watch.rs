//! Stops a rank, with a checkpoint, when the launcher that started it exits. As an orphan it would keep training, hold
//! the lock of the run folder, and conflict with its replacement.
//!
//! The parent is watched through a pidfd: the signal of `PR_SET_PDEATHSIG` arrives as soon as the thread that forked
//! exits, which may be before the parent process does. Shells are not launchers: a user's command outlives its shell.

use crate::signals::Signals;
use thalweg_cluster::linux::{self, PidFd};

/// Shells, login services and init processes.
const SHELLS: [&str; 19] = [
    "sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "busybox", "sshd", "login",
    "su", "sudo", "nohup", "setsid", "systemd", "init",
];

/// Stops this process, as SIGTERM does, when its launcher exits.
pub fn stop_with_launcher(signals: &Signals) {
    let name = linux::parent_name().unwrap_or_default();
    if outlives(&name, linux::is_under_nohup()) {
        return;
    }
    // Without a pidfd the launcher must stop its ranks itself.
    if let Ok(Some(parent)) = PidFd::of_parent() {
        signals.terminate_with(parent, move || {
            eprintln!(
                "warning: the launcher that started this rank ({name}) is gone: stopping with a checkpoint"
            );
        });
    }
}

/// Whether a process outlives its parent: a command typed in a shell, or one under `nohup`. A separate session is no
/// criterion: torchrun starts every rank in one. Nor is an ignored SIGHUP alone: the ranks of a launcher under `nohup`
/// (as Spark starts its workers) inherit it.
fn outlives(parent: &str, under_nohup: bool) -> bool {
    let shell = parent.trim_start_matches('-');
    under_nohup || SHELLS.contains(&shell) || shell.starts_with("sshd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_outlive_shells_and_ranks_do_not_outlive_launchers() {
        for parent in ["bash", "-bash", "sh", "zsh", "systemd", "sshd-session"] {
            assert!(outlives(parent, false), "{parent}");
        }
        for parent in
            ["python3", "torchrun", "pt_elastic", "orted", "mpirun", "hydra_pmi_proxy", "slurmstepd", "java"]
        {
            assert!(!outlives(parent, false), "{parent}");
            assert!(outlives(parent, true), "{parent}, under nohup");
        }
    }
}
