//! The local launcher: starts workers of this machine, hears their events, ends them all, and says why.
//!
//! Every worker leads its own process group, so that Ctrl-C reaches only the launcher, and nothing a worker started
//! outlives it. Whatever happens, when [`launch`] returns no worker is left.

use crate::inquest::{Evidence, Inquest, PATIENCE_FOR_A_VERDICT};
use crate::linux;
use crate::uplink::{VARIABLE, Wish};
use crate::watch::Watch;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Phase, Pulse, Record};
use thalweg_core::{Error, Result};

/// What to start.
pub struct Plan {
    /// The program and its arguments: this very command.
    pub command: Vec<OsString>,
    /// Variables that all workers get.
    pub variables: Vec<(String, OsString)>,
    /// The ranks of this machine.
    pub ranks: std::ops::Range<usize>,
    /// Ranks on all machines together.
    pub world: usize,
    /// Where rank 0 listens, if not on this machine or on a port agreed beforehand.
    pub master: Option<(String, u16)>,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest to wait until all are there.
    pub join_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
}

/// How the workers ended, if not with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All did their work.
    Done,
    /// The user stopped them with this signal.
    Interrupted(i32),
}

/// How often the launcher looks around.
const TICK: Duration = Duration::from_millis(20);

/// The rendezvous keeps its own deadline and knows more: this is the net below it.
const NET: Duration = Duration::from_secs(5);

/// How long the kernel may take to end a process that was killed (one that waits for a dead disk may take for ever).
const CONFIRM: Duration = Duration::from_secs(10);

/// The exit code of a worker that was asked to stop and did.
pub const STOPPED: u8 = 130;

/// What Ctrl-C sends.
const SIGINT: i32 = 2;

enum Heard {
    Said(usize, Box<Record>),
    Garbled(usize, String),
    Closed(usize),
}

struct Worker {
    rank: usize,
    child: Child,
    line: UnixStream,
    /// Its line is drained: everything it had to say was heard.
    closed: bool,
    status: Option<ExitStatus>,
    last: Pulse,
    /// It gave a reason for its end.
    explained: bool,
}

/// Starts the workers and stays with them until the end. `signals` yields the signals that reach this process.
pub fn launch(
    plan: &Plan,
    signals: &Receiver<i32>,
    on_record: &mut dyn FnMut(&Record) -> Result<()>,
) -> Result<Ended> {
    let (sender, receiver) = channel();
    let mut crew = Crew {
        workers: Vec::new(),
        watch: Watch::new(plan.world, plan.step_deadline, plan.join_deadline + NET, plan.prepare_deadline),
        inquest: Inquest::new(plan.world, PATIENCE_FOR_A_VERDICT),
        start: Instant::now(),
        started: false,
        interrupted: None,
        step_deadline: plan.step_deadline,
    };
    let mut failed = None;
    for rank in plan.ranks.clone() {
        let worker = match start(plan, rank, &sender) {
            Ok(worker) => worker,
            Err(error) => {
                failed = Some(error);
                break;
            }
        };
        crew.watch.expect(rank, crew.start.elapsed(), Phase::Starting);
        crew.inquest.name(rank, format!("{} (pid {})", linux::host_name(), worker.child.id()));
        crew.workers.push(worker);
    }
    drop(sender);
    let ended = match failed {
        Some(error) => Err(error),
        None => crew.run(&receiver, signals, on_record),
    };
    crew.end_all();
    ended
}

fn start(plan: &Plan, rank: usize, sender: &Sender<Heard>) -> Result<Worker> {
    let failed = |error: std::io::Error| Error::io(format!("cannot start worker {rank}"), &error);
    let (line, far_end) = UnixStream::pair().map_err(failed)?;
    let program = plan.command.first().ok_or_else(|| Error::internal("no command to start"))?;
    let mut command = Command::new(program);
    command.args(&plan.command[1..]).envs(plan.variables.iter().cloned());
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", plan.world.to_string());
    command.env("LOCAL_RANK", (rank - plan.ranks.start).to_string());
    command.env("LOCAL_WORLD_SIZE", plan.ranks.len().to_string()).env(VARIABLE, "stdin");
    match &plan.master {
        Some((host, port)) => command.env("MASTER_ADDR", host).env("MASTER_PORT", port.to_string()),
        None => command.env_remove("MASTER_ADDR").env_remove("MASTER_PORT"),
    };
    command.stdin(Stdio::from(OwnedFd::from(far_end))).process_group(0);
    let child = command.spawn().map_err(failed)?;
    let reader = line.try_clone().map_err(failed)?;
    let sender = sender.clone();
    std::thread::spawn(move || {
        for text in BufReader::new(reader).lines() {
            let Ok(text) = text else { break };
            let heard = match serde_json::from_str::<Record>(&text) {
                Ok(record) => Heard::Said(rank, Box::new(record)),
                Err(error) => Heard::Garbled(rank, error.to_string()),
            };
            if sender.send(heard).is_err() {
                return;
            }
        }
        let _ = sender.send(Heard::Closed(rank));
    });
    Ok(Worker { rank, child, line, closed: false, status: None, last: Pulse::default(), explained: false })
}

struct Crew {
    workers: Vec<Worker>,
    watch: Watch,
    inquest: Inquest,
    start: Instant,
    /// Some rank has begun to train: there is something to save.
    started: bool,
    /// The signal, and when it came.
    interrupted: Option<(i32, Instant)>,
    step_deadline: Duration,
}

impl Crew {
    fn run(
        &mut self,
        receiver: &Receiver<Heard>,
        signals: &Receiver<i32>,
        on_record: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Ended> {
        let mut last_tick = Instant::now();
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(Heard::Said(rank, record)) => self.hear(rank, &record, on_record)?,
                Ok(Heard::Garbled(rank, why)) => {
                    return Err(Error::internal(format!("what rank {rank} says cannot be read: {why}")));
                }
                Ok(Heard::Closed(rank)) => self.worker(rank).closed = true,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            if last_tick.elapsed() > Duration::from_secs(1) {
                // This process itself was stopped, or the machine slept.
                self.watch.forgive(self.start.elapsed());
            }
            last_tick = Instant::now();
            self.reap();
            if let Ok(signal) = signals.try_recv() {
                if self.interrupted.is_some() || !self.started {
                    // Asked twice, or nothing to save yet.
                    return Ok(Ended::Interrupted(signal));
                }
                self.interrupt(signal, on_record)?;
            }
            if let Some(ended) = self.decide() {
                return ended;
            }
        }
    }

    fn worker(&mut self, rank: usize) -> &mut Worker {
        let first = self.workers[0].rank;
        &mut self.workers[rank - first]
    }

    fn hear(
        &mut self,
        rank: usize,
        record: &Record,
        on_record: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<()> {
        let now = self.start.elapsed();
        match &record.event {
            Event::Started { .. } => self.started = true,
            Event::Pulse(pulse) => {
                self.started |= matches!(pulse.phase, Phase::Computing | Phase::Exchanging);
                self.worker(rank).last = pulse.clone();
                self.inquest.see(rank, pulse.clone());
                self.watch.heard(rank, now, pulse.clone());
            }
            Event::Listening { address } => self.pass_on(&Wish::Coordinator(address.clone())),
            Event::Lost { error, pulse } => {
                self.inquest.hear(now, Evidence::Lost { rank, error: error.clone(), pulse: pulse.clone() });
            }
            Event::Failed { error, pulse } => {
                let worker = self.worker(rank);
                worker.last = pulse.clone();
                worker.explained = true;
                self.watch.dismiss(rank);
                self.inquest.hear(now, Evidence::Failed { rank, error: error.clone(), pulse: pulse.clone() });
            }
            _ => {}
        }
        on_record(record)
    }

    /// Notices the workers that have ended. One is only judged when all it had to say was heard.
    fn reap(&mut self) {
        let now = self.start.elapsed();
        for worker in &mut self.workers {
            if worker.status.is_some() || !worker.closed {
                continue;
            }
            let Ok(Some(status)) = worker.child.try_wait() else { continue };
            worker.status = Some(status);
            self.watch.dismiss(worker.rank);
            if !is_fine(status) && !worker.explained {
                let evidence =
                    Evidence::Exited { rank: worker.rank, how: describe(status), pulse: worker.last.clone() };
                self.inquest.hear(now, evidence);
            }
        }
    }

    fn interrupt(&mut self, signal: i32, on_record: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        self.interrupted = Some((signal, Instant::now()));
        self.pass_on(&Wish::Stop);
        let event = Event::Stopping { ranks: Vec::new(), hosts: Vec::new() };
        on_record(&Record { time: crate::session::unix_time(), rank: None, event })
    }

    fn pass_on(&mut self, wish: &Wish) {
        let Ok(mut line) = serde_json::to_vec(wish) else { return };
        line.push(b'\n');
        for worker in &mut self.workers {
            // One that cannot hear it has ended.
            let _ = worker.line.write_all(&line);
        }
    }

    fn decide(&mut self) -> Option<Result<Ended>> {
        let now = self.start.elapsed();
        if self.workers.iter().all(|worker| worker.status.is_some_and(is_fine)) {
            let stopped =
                self.workers.iter().any(|worker| worker.status.is_some_and(|status| !status.success()));
            // Stopped without a signal of our own: another host's launcher asked for it.
            let signal = self.interrupted.map(|(signal, _)| signal).or(stopped.then_some(SIGINT));
            return Some(Ok(signal.map_or(Ended::Done, Ended::Interrupted)));
        }
        if !self.inquest.is_settled()
            && let Some(evidence) = self.watch.verdict(now)
        {
            self.inquest.hear(now, evidence);
        }
        if let Some(error) = self.inquest.conclude(now) {
            return Some(Err(error));
        }
        match self.interrupted {
            Some((signal, when)) if when.elapsed() > self.step_deadline + Duration::from_secs(10) => {
                Some(Ok(Ended::Interrupted(signal)))
            }
            _ => None,
        }
    }

    /// Ends whoever is left and waits until the kernel confirms it.
    fn end_all(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| worker.status.is_none()) {
            linux::kill_group(worker.child.id());
        }
        let end = Instant::now() + CONFIRM;
        for worker in &mut self.workers {
            while matches!(worker.child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Done, or stopped as it was asked to.
fn is_fine(status: ExitStatus) -> bool {
    status.success() || status.code() == Some(i32::from(STOPPED))
}

/// How a process ended: `was killed by signal 9 (SIGKILL)`.
fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal} ({})", linux::signal_name(signal)),
        (None, Some(code)) => format!("ended with exit code {code} without saying why"),
        (None, None) => "ended".into(),
    }
}
