//! The local launcher: starts the worker processes of this host, reads their records, and explains how they ended.
//!
//! Every worker leads its own process group, so that Ctrl-C reaches only the launcher, and no child of a worker
//! outlives it. When [`launch`] returns, no worker is left.

mod records;
mod termination;
mod workers;

use super::process::{WorkerMessage, WorkerProcess, is_fine, stopping_signal};
use super::program::Program;
use crate::diagnosis::{COORDINATOR_TIMEOUT, Diagnosis};
use crate::heartbeat_monitor::HeartbeatMonitor;
use crate::interruption::{Interruption, Received, Request, STOP_LIMIT, Signal};
use crate::launcher_connection::LauncherCommand;
use crate::stall::StallReporter;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Level, Record};
use thalweg_core::spec::inject::{FaultKind, InjectedFault};
use thalweg_core::{Error, Result};

/// The workers to start.
pub struct LaunchPlan {
    /// The program and its arguments: this command itself.
    pub command: Vec<OsString>,
    /// Environment variables of all workers.
    pub variables: Vec<(String, OsString)>,
    /// The ranks of this host.
    pub ranks: Vec<usize>,
    /// Number of ranks on all hosts.
    pub world: usize,
    /// Rank 0's address if it is on another host or on a fixed port.
    pub master: Option<(String, u16)>,
    /// Longest time a rank may make no progress in a step.
    pub step_deadline: Duration,
    /// Longest time the rendezvous may take.
    pub join_deadline: Duration,
    /// Longest time a rank may make no progress outside of steps.
    pub prepare_deadline: Duration,
    /// Whether the job continues when a worker is lost.
    pub elastic: bool,
    /// Whether lost workers are replaced.
    pub respawn: bool,
}

/// How a launch without an error ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchOutcome {
    Done,
    /// Stopped by this signal.
    Interrupted(Signal),
}

/// Observes the job's records and acts on its workers, for fault injection.
pub trait LaunchControl: Send {
    fn on_record(&mut self, record: &Record) -> Vec<LaunchAction>;

    /// The most workers that it starts.
    fn max_started(&self) -> usize;
}

/// An action of [`LaunchControl`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchAction {
    Inject(InjectedFault),
    /// Start one more worker under the lowest free rank, with an optional fault during its join.
    StartWorker(Option<FaultKind>),
    /// End the job after the current epoch.
    Finish,
}

/// Poll interval of the launcher.
const TICK: Duration = Duration::from_millis(20);

/// Margin on the join deadline: the rendezvous enforces it itself and gives better errors.
const JOIN_MARGIN: Duration = Duration::from_secs(5);

/// Added to the step deadline on hosts without the coordinator, so that it reports first.
const COORDINATOR_MARGIN: Duration = Duration::from_millis(500);

/// Starts the workers and supervises them until all have exited. `signals` yields the signals of this process.
pub fn launch<'a>(
    plan: &'a LaunchPlan,
    signals: &Receiver<Received>,
    control: Option<&'a mut (dyn LaunchControl + 'a)>,
    on_record: &mut dyn FnMut(&Record) -> Result<()>,
) -> Result<LaunchOutcome> {
    let (sender, receiver) = channel();
    // A rank that exits because the coordinator aborted the job must not be taken for the cause.
    let step_deadline =
        plan.step_deadline + if plan.ranks.contains(&0) { Duration::ZERO } else { COORDINATOR_MARGIN };
    let program = plan.command.first().ok_or_else(|| Error::internal("no command to start"))?;
    let mut launcher = Launcher {
        plan,
        program: Program::new(program),
        control,
        workers: Vec::new(),
        sender,
        monitor: HeartbeatMonitor::new(
            plan.world,
            step_deadline,
            plan.join_deadline + JOIN_MARGIN,
            plan.prepare_deadline,
        ),
        diagnosis: Diagnosis::new(plan.world, COORDINATOR_TIMEOUT),
        start: Instant::now(),
        started: false,
        interruption: Interruption::default(),
        stalls: StallReporter::default(),
        interrupted: None,
        coordinator: plan.ranks.contains(&0).then_some(0),
        coordinator_address: None,
        left_ranks: BTreeSet::new(),
        last_checkpoint: None,
        warnings: Vec::new(),
    };
    let started = plan.ranks.iter().try_for_each(|rank| launcher.start_worker(*rank, false, None));
    let ended = started.and_then(|()| launcher.run(&receiver, signals, on_record));
    launcher.kill_all();
    ended
}

struct Launcher<'a> {
    plan: &'a LaunchPlan,
    program: Program,
    control: Option<&'a mut (dyn LaunchControl + 'a)>,
    workers: Vec<WorkerProcess>,
    sender: Sender<WorkerMessage>,
    monitor: HeartbeatMonitor,
    diagnosis: Diagnosis,
    start: Instant,
    /// A rank has begun to train: there is state to save.
    started: bool,
    stalls: StallReporter,
    interruption: Interruption,
    /// The signal that stops the job, and when it arrived.
    interrupted: Option<(Signal, Instant)>,
    /// Index of the worker with the coordinator's role; None if it is on another host.
    coordinator: Option<usize>,
    coordinator_address: Option<String>,
    /// Ranks that left together with a coordinator that resigned.
    left_ranks: BTreeSet<usize>,
    /// Step of the last checkpoint.
    last_checkpoint: Option<u64>,
    /// Warnings not yet emitted.
    warnings: Vec<String>,
}

impl Launcher<'_> {
    fn run(
        &mut self,
        receiver: &Receiver<WorkerMessage>,
        signals: &Receiver<Received>,
        on_record: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<LaunchOutcome> {
        let mut last_tick = Instant::now();
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(WorkerMessage::Record(index, record)) => {
                    self.on_worker_record(index, &record, &mut *on_record)?
                }
                Ok(WorkerMessage::Malformed(index, why)) => {
                    let rank = self.workers[index].rank;
                    return Err(Error::internal(format!("a record of rank {rank} cannot be decoded: {why}")));
                }
                Ok(WorkerMessage::Closed(index)) => self.workers[index].closed = true,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            if last_tick.elapsed() > Duration::from_secs(1) {
                // This process was stopped, or the machine was suspended.
                self.monitor.restart_timers(self.start.elapsed());
            }
            last_tick = Instant::now();
            self.reap();
            for message in std::mem::take(&mut self.warnings) {
                self.emit(Event::Notice { level: Level::Warning, message }, on_record)?;
            }
            if let Some(event) = self.find_stall() {
                self.emit(event, on_record)?;
            }
            if let Ok(received) = signals.try_recv() {
                match self.interruption.on_signal(received, self.started) {
                    Request::Exit => return Ok(LaunchOutcome::Interrupted(received.signal)),
                    Request::Stop => self.interrupt(received.signal, on_record)?,
                    Request::Checkpoint => self.broadcast(&LauncherCommand::Checkpoint),
                    Request::Ignore => {}
                }
            }
            if let Some(ended) = self.decide() {
                if let Some(message) = self.unfinished_stop() {
                    let event = Event::Notice { level: Level::Warning, message };
                    on_record(&Record { time: crate::session::unix_time(), rank: None, event })?;
                }
                return ended;
            }
        }
    }

    /// Emits an event of the launcher itself.
    fn emit(&mut self, event: Event, on_record: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        let record = Record { time: crate::session::unix_time(), rank: None, event };
        self.apply_control(&record)?;
        on_record(&record)
    }

    /// The event about a stalled group, if one is due. Normally the coordinator emits it; this launcher does if the
    /// coordinator is silent.
    fn find_stall(&mut self) -> Option<Event> {
        let now = self.start.elapsed();
        let coordinator = self.coordinator.map(|index| self.workers[index].rank);
        let is_silent = coordinator.is_some_and(|rank| self.monitor.is_silent(rank, now));
        let stall = is_silent.then(|| self.monitor.find_stall(now)).flatten();
        self.stalls.update(now, stall)
    }

    fn interrupt(&mut self, signal: Signal, on_record: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        self.interrupted = Some((signal, Instant::now()));
        self.broadcast(&LauncherCommand::Stop { terminate: signal == Signal::Terminate });
        let event = Event::Stopping { ranks: Vec::new(), hosts: Vec::new() };
        on_record(&Record { time: crate::session::unix_time(), rank: None, event })
    }

    fn broadcast(&mut self, command: &LauncherCommand) {
        self.workers.iter_mut().for_each(|worker| worker.send(command));
    }

    fn decide(&mut self) -> Option<Result<LaunchOutcome>> {
        let now = self.start.elapsed();
        let mut counted = self.workers.iter().filter(|worker| !worker.lost).peekable();
        if counted.peek().is_some() && counted.all(|worker| worker.status.is_some_and(is_fine)) {
            // Without a signal here, another host's launcher requested the stop.
            let stopped = || {
                let counted = self.workers.iter().filter(|worker| !worker.lost);
                counted.filter_map(|worker| worker.status.and_then(stopping_signal)).next()
            };
            let signal = self.interrupted.map(|(signal, _)| signal).or_else(stopped);
            return Some(Ok(signal.map_or(LaunchOutcome::Done, LaunchOutcome::Interrupted)));
        }
        if !self.diagnosis.has_direct_evidence()
            && let Some(evidence) = self.monitor.find_culprit(now)
        {
            self.on_evidence(now, evidence);
        }
        // Remaining members continue, unless a rank failed by its own error.
        let over = !self.plan.elastic
            || self.diagnosis.has_self_report()
            || !self.workers.iter().any(WorkerProcess::is_in_group);
        if let Some(error) = self.diagnosis.conclude(now).filter(|_| over) {
            return Some(Err(error));
        }
        let (signal, _) = self.interrupted.filter(|(_, when)| when.elapsed() > STOP_LIMIT)?;
        Some(Ok(LaunchOutcome::Interrupted(signal)))
    }
}
