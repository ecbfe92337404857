//! One worker process of the local launcher: how it is started, heard, spoken to, and how it ended.

use super::local::Plan;
use super::program::Program;
use crate::interruption::Signal;
use crate::linux;
use crate::uplink::{JOINS, VARIABLE, Wish};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use thalweg_core::event::{Phase, Pulse, Record};
use thalweg_core::{Error, Result};

/// By the order in which they were started.
pub(super) enum Heard {
    Said(usize, Box<Record>),
    Garbled(usize, String),
    Closed(usize),
}

/// A worker of this machine.
pub(super) struct Worker {
    pub(super) rank: usize,
    /// It came while the job ran: the others do without it if it fails before it has met them.
    pub(super) joins: bool,
    pub(super) child: Child,
    line: UnixStream,
    /// Its line is drained: everything it had to say was heard.
    pub(super) closed: bool,
    pub(super) status: Option<ExitStatus>,
    pub(super) last: Pulse,
    /// It gave a reason for its end.
    pub(super) explained: bool,
    /// It was lost, and the others went on.
    pub(super) lost: bool,
    /// How it ended, or why it was ended.
    pub(super) cause: Option<String>,
}

impl Worker {
    pub(super) fn is_alive(&self) -> bool {
        self.status.is_none()
    }

    /// Whether the others have never counted on it.
    pub(super) fn is_stranger(&self) -> bool {
        self.joins && self.last.phase == Phase::Starting
    }

    /// It is in a group, whatever was last heard of it.
    pub(super) fn has_met_the_others(&mut self) {
        self.last.phase = Phase::Preparing;
    }

    /// Whether it is one of those who hold the job's state between them: a stranger has none of it.
    pub(super) fn is_at_work(&self) -> bool {
        self.is_alive() && !self.is_stranger()
    }

    /// Whether the job is not over with the others: it works on, or has done its part.
    pub(super) fn carries_on(&self) -> bool {
        self.is_at_work() || self.status.is_some_and(is_fine)
    }

    pub(super) fn wish(&mut self, wish: &Wish) {
        if let Ok(mut line) = serde_json::to_vec(wish) {
            line.push(b'\n');
            // One that cannot hear it has ended.
            let _ = self.line.write_all(&line);
        }
    }
}

/// Starts a worker, and a thread that listens to it.
pub(super) fn start(
    plan: &Plan,
    program: &Program,
    rank: usize,
    index: usize,
    joins: bool,
    sender: &Sender<Heard>,
) -> Result<Worker> {
    let failed = |error: std::io::Error| Error::io(format!("cannot start worker {rank}"), &error);
    let (line, far_end) = UnixStream::pair().map_err(failed)?;
    // All that can fail comes before the process: one that nobody knows of would never be ended.
    let reader = line.try_clone().map_err(failed)?;
    let mut command = program.command();
    command.args(plan.command.iter().skip(1)).envs(plan.variables.iter().cloned());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", plan.world.to_string());
    command.env("LOCAL_RANK", rank.saturating_sub(plan.ranks.start).to_string());
    if joins {
        command.env(JOINS, "1");
    }
    command.env("LOCAL_WORLD_SIZE", plan.ranks.len().to_string()).env(VARIABLE, "stdin");
    match &plan.master {
        Some((host, port)) => command.env("MASTER_ADDR", host).env("MASTER_PORT", port.to_string()),
        None => command.env_remove("MASTER_ADDR").env_remove("MASTER_PORT"),
    };
    command.stdin(Stdio::from(OwnedFd::from(far_end))).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let sender = sender.clone();
    let listen = move || {
        for text in BufReader::new(reader).lines() {
            let Ok(text) = text else { break };
            let heard = match serde_json::from_str::<Record>(&text) {
                Ok(record) => Heard::Said(index, Box::new(record)),
                Err(error) => Heard::Garbled(index, error.to_string()),
            };
            if sender.send(heard).is_err() {
                return;
            }
        }
        let _ = sender.send(Heard::Closed(index));
    };
    if let Err(error) = std::thread::Builder::new().spawn(listen) {
        linux::kill_group(child.id());
        let _ = child.wait();
        return Err(failed(error));
    }
    let last = Pulse::default();
    Ok(Worker {
        rank,
        joins,
        child,
        line,
        closed: false,
        status: None,
        last,
        explained: false,
        lost: false,
        cause: None,
    })
}

/// Done, or stopped as it was asked to.
pub(super) fn is_fine(status: ExitStatus) -> bool {
    status.success() || stopping_signal(status).is_some()
}

/// The signal that asked for the stop of the job, on this host or another, after which a worker ended as it should.
pub(super) fn stopping_signal(status: ExitStatus) -> Option<Signal> {
    let ended_by = |signal: &Signal| status.code() == Some(i32::from(signal.exit_code()));
    [Signal::Interrupt, Signal::Terminate].into_iter().find(ended_by)
}

/// How a process ended: `was killed by signal 9 (SIGKILL)`.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal} ({})", linux::signal_name(signal)),
        (None, Some(code)) => format!("ended with exit code {code} without saying why"),
        (None, None) => "ended".into(),
    }
}
