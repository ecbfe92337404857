//! One worker process of the local launcher: start, records, commands and exit status.

use super::local::LaunchPlan;
use super::program::Program;
use crate::interruption::Signal;
use crate::launcher_connection::{JOINS, LauncherCommand, VARIABLE};
use crate::linux;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use thalweg_core::event::{Heartbeat, Phase, Record};
use thalweg_core::{Error, Result};

/// A message of a worker, with its index in start order.
pub(super) enum WorkerMessage {
    Record(usize, Box<Record>),
    Malformed(usize, String),
    Closed(usize),
}

pub(super) struct WorkerProcess {
    pub(super) rank: usize,
    /// Started while the job ran: the job continues if it fails before it has joined.
    pub(super) joins: bool,
    pub(super) child: Child,
    commands: UnixStream,
    /// Its record stream has ended and was read to the end.
    pub(super) closed: bool,
    pub(super) status: Option<ExitStatus>,
    pub(super) last: Heartbeat,
    /// It reported its own failure.
    pub(super) explained: bool,
    /// The group continued without it.
    pub(super) lost: bool,
    /// How it exited, or why it was killed.
    pub(super) cause: Option<String>,
}

impl WorkerProcess {
    pub(super) fn is_alive(&self) -> bool {
        self.status.is_none()
    }

    /// Whether it was started for a running job and has not joined the group yet.
    pub(super) fn has_not_joined(&self) -> bool {
        self.joins && self.last.phase == Phase::Starting
    }

    /// Records that it is a member, before its first heartbeat as one arrives.
    pub(super) fn mark_joined(&mut self) {
        self.last.phase = Phase::Preparing;
    }

    /// Whether it is alive and a member of the group, so that it holds part of the job's state.
    pub(super) fn is_in_group(&self) -> bool {
        self.is_alive() && !self.has_not_joined()
    }

    /// Whether the job can continue or has succeeded with it: it is in the group, or exited normally.
    pub(super) fn keeps_job_alive(&self) -> bool {
        self.is_in_group() || self.status.is_some_and(is_fine)
    }

    pub(super) fn send(&mut self, command: &LauncherCommand) {
        if let Ok(mut line) = serde_json::to_vec(command) {
            line.push(b'\n');
            // Fails only if the worker has exited.
            let _ = self.commands.write_all(&line);
        }
    }
}

/// Starts a worker, and a thread that reads its records.
pub(super) fn spawn(
    plan: &LaunchPlan,
    program: &Program,
    rank: usize,
    index: usize,
    joins: bool,
    sender: &Sender<WorkerMessage>,
) -> Result<WorkerProcess> {
    let failed = |error: std::io::Error| Error::io(format!("cannot start worker {rank}"), &error);
    let (commands, worker_end) = UnixStream::pair().map_err(failed)?;
    // Everything that can fail comes before the spawn, so that no process is left behind unsupervised.
    let reader = commands.try_clone().map_err(failed)?;
    let mut command = program.command();
    command.args(plan.command.iter().skip(1)).envs(plan.variables.iter().cloned());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", plan.world.to_string());
    let local = plan.ranks.iter().position(|local| *local == rank);
    let local = local.unwrap_or_else(|| rank.saturating_sub(plan.ranks.first().copied().unwrap_or(0)));
    command.env("LOCAL_RANK", local.to_string());
    if joins {
        command.env(JOINS, "1");
    }
    command.env("LOCAL_WORLD_SIZE", plan.ranks.len().to_string()).env(VARIABLE, "stdin");
    match &plan.master {
        Some((host, port)) => command.env("MASTER_ADDR", host).env("MASTER_PORT", port.to_string()),
        None => command.env_remove("MASTER_ADDR").env_remove("MASTER_PORT"),
    };
    command.stdin(Stdio::from(OwnedFd::from(worker_end))).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let sender = sender.clone();
    let read_records = move || {
        for text in BufReader::new(reader).lines() {
            let Ok(text) = text else { break };
            let message = match serde_json::from_str::<Record>(&text) {
                Ok(record) => WorkerMessage::Record(index, Box::new(record)),
                Err(error) => WorkerMessage::Malformed(index, error.to_string()),
            };
            if sender.send(message).is_err() {
                return;
            }
        }
        let _ = sender.send(WorkerMessage::Closed(index));
    };
    if let Err(error) = std::thread::Builder::new().spawn(read_records) {
        linux::kill_group(child.id());
        let _ = child.wait();
        return Err(failed(error));
    }
    let last = Heartbeat::default();
    Ok(WorkerProcess {
        rank,
        joins,
        child,
        commands,
        closed: false,
        status: None,
        last,
        explained: false,
        lost: false,
        cause: None,
    })
}

/// Whether it succeeded or stopped on request.
pub(super) fn is_fine(status: ExitStatus) -> bool {
    status.success() || stopping_signal(status).is_some()
}

/// The signal that requested the stop, on this host or another, from the exit code of a worker that stopped normally.
pub(super) fn stopping_signal(status: ExitStatus) -> Option<Signal> {
    let ended_by = |signal: &Signal| status.code() == Some(i32::from(signal.exit_code()));
    [Signal::Interrupt, Signal::Terminate].into_iter().find(ended_by)
}

/// Describes an exit status: `was killed by signal 9 (SIGKILL)`.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal} ({})", linux::signal_name(signal)),
        (None, Some(code)) => format!("ended with exit code {code} without saying why"),
        (None, None) => "ended".into(),
    }
}
