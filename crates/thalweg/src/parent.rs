//! A rank ends with the launcher that started it, with a checkpoint first: as an orphan it would train on, hold the run
//! folder, and be in the way of the rank that is started in its place.
//!
//! The parent is watched by a descriptor of its process: the signal that Linux can send at a parent's death
//! (`PR_SET_PDEATHSIG`) comes already when the parent's thread ends. A command that a user started outlives the shell it
//! was typed in: shells are no launchers.

use crate::signals::Signals;
use thalweg_cluster::linux::{self, Grip};

/// Programs that start what users type, and first processes of containers.
const SHELLS: [&str; 19] = [
    "sh", "bash", "dash", "ash", "zsh", "fish", "ksh", "mksh", "csh", "tcsh", "busybox", "sshd", "login",
    "su", "sudo", "nohup", "setsid", "systemd", "init",
];

/// Ends this process when its launcher is gone.
pub fn end_with_launcher(signals: &Signals) {
    let name = linux::parent_name().unwrap_or_default();
    if outlives(&name, linux::ignores_hangup()) {
        return;
    }
    // Without a way to watch it, the launcher has to end its ranks itself.
    if let Ok(Some(parent)) = Grip::on_parent() {
        signals.end_with(parent, move || {
            eprintln!(
                "warning: the launcher that started this rank ({name}) is gone: stopping with a checkpoint"
            );
        });
    }
}

/// Whether a process is to outlive the one that started it: a user's command, or one under `nohup`. A session of its own
/// says nothing: torchrun starts every rank in one.
fn outlives(parent: &str, ignores_hangup: bool) -> bool {
    let shell = parent.trim_start_matches('-');
    ignores_hangup || SHELLS.contains(&shell) || shell.starts_with("sshd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_users_outlive_their_shells_and_ranks_not_their_launchers() {
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
