//! The local launcher: starts workers of this machine, hears their events, ends them all, and says why.
//!
//! Every worker leads its own process group, so that Ctrl-C reaches only the launcher, and nothing a worker started
//! outlives it. Whatever happens, when [`launch`] returns no worker is left.

mod ending;

use super::process::{Heard, Worker, describe, is_fine, start, stopping_signal};
use super::program::Program;
use crate::inquest::{Evidence, Inquest, PATIENCE, PATIENCE_FOR_A_VERDICT};
use crate::interruption::{Interruption, Received, Request, STOP_LIMIT, Signal};
use crate::linux;
use crate::stall::StallReporter;
use crate::uplink::Wish;
use crate::watch::Watch;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use thalweg_core::event::{Event, Level, Phase, Record};
use thalweg_core::spec::inject::{Fault, Mischief};
use thalweg_core::{Culprit, Error, Result};

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
    /// Whether the others go on when a worker is lost.
    pub elastic: bool,
    /// Whether another one is started in its place.
    pub respawn: bool,
}

/// How the workers ended, if not with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All did their work.
    Done,
    /// The user stopped them with this signal.
    Interrupted(Signal),
}

/// Somebody who follows the job and interferes with it.
pub trait Director {
    /// What to do about what happened.
    fn follow(&mut self, record: &Record) -> Vec<Act>;
}

/// What a director can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Let this happen to a worker.
    Inject(Fault),
    /// Start one more worker, under the lowest number that is free; this may happen to it as it comes.
    Hire(Option<Mischief>),
    /// Let the job be done with the epoch it is in.
    Finish,
}

/// How often the launcher looks around.
const TICK: Duration = Duration::from_millis(20);

/// How causes begin that say more than an exit status: the coordinator or the rank itself knows why it was given up.
const KNOWN_CAUSES: [&str; 4] = ["has been ", "failed: ", "broke the protocol", "cannot be connected"];

/// The rendezvous keeps its own deadline and knows more: this is the net below it.
const NET: Duration = Duration::from_secs(5);

/// What the coordinator has on launchers of other hosts.
const HEAD_START: Duration = Duration::from_millis(500);

/// How many workers in a row may end in one place before they have met the others.
const TRIES: usize = 3;

/// Starts the workers and stays with them until the end. `signals` yields the signals that reach this process.
pub fn launch<'a>(
    plan: &'a Plan,
    signals: &Receiver<Received>,
    director: Option<&'a mut (dyn Director + 'a)>,
    on_record: &mut dyn FnMut(&Record) -> Result<()>,
) -> Result<Ended> {
    let (sender, receiver) = channel();
    // Away from the coordinator a launcher lets it speak first: the end of a rank must not be taken for its cause.
    let step_deadline =
        plan.step_deadline + if plan.ranks.contains(&0) { Duration::ZERO } else { HEAD_START };
    let program = plan.command.first().ok_or_else(|| Error::internal("no command to start"))?;
    let mut crew = Crew {
        plan,
        program: Program::new(program),
        director,
        workers: Vec::new(),
        sender,
        watch: Watch::new(plan.world, step_deadline, plan.join_deadline + NET, plan.prepare_deadline),
        inquest: Inquest::new(plan.world, PATIENCE_FOR_A_VERDICT),
        start: Instant::now(),
        started: false,
        interruption: Interruption::default(),
        stalls: StallReporter::default(),
        interrupted: None,
        coordinator: plan.ranks.contains(&0).then_some(0),
        meeting: None,
        left: BTreeSet::new(),
        saved: None,
        worries: Vec::new(),
    };
    let started = plan.ranks.clone().try_for_each(|rank| crew.hire(rank, false, None));
    let ended = started.and_then(|()| crew.run(&receiver, signals, on_record));
    crew.end_all();
    ended
}

struct Crew<'a> {
    plan: &'a Plan,
    program: Program,
    director: Option<&'a mut (dyn Director + 'a)>,
    workers: Vec<Worker>,
    sender: Sender<Heard>,
    watch: Watch,
    inquest: Inquest,
    start: Instant,
    /// Some rank has begun to train: there is something to save.
    started: bool,
    stalls: StallReporter,
    /// What signals have asked for.
    interruption: Interruption,
    /// The signal that stops the job, and when it came.
    interrupted: Option<(Signal, Instant)>,
    /// The worker that has the coordinator's role, if one of these has.
    coordinator: Option<usize>,
    /// Where it listens.
    meeting: Option<String>,
    /// Ranks that left with a coordinator that gave up its role.
    left: BTreeSet<usize>,
    /// The step of the last checkpoint.
    saved: Option<u64>,
    /// What the user should know, and has not been told.
    worries: Vec<String>,
}

impl Crew<'_> {
    fn run(
        &mut self,
        receiver: &Receiver<Heard>,
        signals: &Receiver<Received>,
        on_record: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Ended> {
        let mut last_tick = Instant::now();
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(Heard::Said(index, record)) => self.hear(index, &record, &mut *on_record)?,
                Ok(Heard::Garbled(index, why)) => {
                    let rank = self.workers[index].rank;
                    return Err(Error::internal(format!("what rank {rank} says cannot be read: {why}")));
                }
                Ok(Heard::Closed(index)) => self.workers[index].closed = true,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
            }
            if last_tick.elapsed() > Duration::from_secs(1) {
                // This process itself was stopped, or the machine slept.
                self.watch.forgive(self.start.elapsed());
            }
            last_tick = Instant::now();
            self.reap();
            for message in std::mem::take(&mut self.worries) {
                self.tell(Event::Notice { level: Level::Warning, message }, on_record)?;
            }
            if let Some(event) = self.stall() {
                self.tell(event, on_record)?;
            }
            if let Ok(received) = signals.try_recv() {
                match self.interruption.on_signal(received, self.started) {
                    Request::Leave => return Ok(Ended::Interrupted(received.signal)),
                    Request::Stop => self.interrupt(received.signal, on_record)?,
                    Request::Checkpoint => self.pass_on(&Wish::Checkpoint),
                    Request::Nothing => {}
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

    /// Says something of its own.
    fn tell(&mut self, event: Event, on_record: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        let record = Record { time: crate::session::unix_time(), rank: None, event };
        self.direct(&record)?;
        on_record(&record)
    }

    /// What is to be told of ranks that wait. The coordinator tells it; if it is silent itself, this launcher does.
    fn stall(&mut self) -> Option<Event> {
        let now = self.start.elapsed();
        let coordinator = self.coordinator.map(|index| self.workers[index].rank);
        let is_silent = coordinator.is_some_and(|rank| self.watch.is_silent(rank, now));
        let stall = is_silent.then(|| self.watch.stall(now)).flatten();
        self.stalls.follow(now, stall)
    }

    /// Starts a worker.
    fn hire(&mut self, rank: usize, joins: bool, fault: Option<Mischief>) -> Result<()> {
        self.left.remove(&rank);
        let mut worker = start(self.plan, &self.program, rank, self.workers.len(), joins, &self.sender)?;
        self.watch.expect(rank, self.start.elapsed(), Phase::Starting);
        self.inquest.name(rank, format!("{} (pid {})", linux::host_name(), worker.child.id()));
        if let Some(kind) = fault {
            worker.wish(&Wish::Inject(Fault { step: 0, rank, kind }));
        }
        if let (true, Some(address)) = (joins, &self.meeting) {
            worker.wish(&Wish::Coordinator(address.clone()));
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Starts a worker while the others train, who can do without it.
    fn hire_another(&mut self, rank: usize, fault: Option<Mischief>) {
        if let Err(error) = self.hire(rank, true, fault) {
            self.worries.push(format!("{}; the others go on without it", error.message));
        }
    }

    fn hear(
        &mut self,
        index: usize,
        record: &Record,
        on_record: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<()> {
        let (now, rank) = (self.start.elapsed(), self.workers[index].rank);
        match &record.event {
            Event::Started { .. } => self.started = true,
            Event::Pulse(pulse) => {
                self.started |= matches!(pulse.phase, Phase::Computing | Phase::Exchanging);
                self.workers[index].last = pulse.clone();
                self.inquest.see(rank, pulse.clone());
                if self.workers[index].is_alive() {
                    self.watch.heard(rank, now, pulse.clone());
                }
            }
            Event::Listening { address } => {
                self.meeting = Some(address.clone());
                self.pass_on(&Wish::Coordinator(address.clone()));
            }
            Event::Resigned { left } if self.coordinator == Some(index) => {
                self.left.extend(left);
                self.convene();
            }
            // One that has not met the others yet is another worker in the place of the one that is meant.
            Event::GaveUp { culprit, cause } if self.coordinator == Some(index) => {
                let meant = |worker: &Worker| worker.rank == *culprit && !worker.is_stranger();
                if self.workers.iter().any(|worker| worker.is_alive() && meant(worker)) {
                    self.end(*culprit, cause);
                }
            }
            Event::Checkpoint { step, .. } => self.saved = Some(*step),
            // Where the others go on, it is the coordinator that weighs what a rank saw.
            Event::Lost { .. } if self.plan.elastic => {}
            Event::Lost { error, pulse } => {
                self.inquest.hear(now, Evidence::Lost { rank, error: error.clone(), pulse: pulse.clone() });
            }
            // The others went on without it: that it says so itself is no news.
            Event::Failed { .. } if self.plan.elastic && self.workers[index].cause.is_some() => {
                let worker = &mut self.workers[index];
                (worker.explained, worker.lost) = (true, true);
                self.watch.dismiss(rank);
            }
            // The others have done without it before.
            Event::Failed { error, .. } if self.can_spare(index) => {
                let what = match self.workers[index].is_stranger() {
                    true => "could not join",
                    false => "failed, and the others go on without it",
                };
                let worker = &mut self.workers[index];
                (worker.explained, worker.lost) = (true, true);
                self.watch.dismiss(rank);
                let message = format!("rank {rank} {what}: {error}");
                let notice = Event::Notice { level: Level::Warning, message };
                on_record(&Record { time: record.time, rank: Some(rank), event: notice })?;
            }
            Event::Failed { error, pulse } => {
                let worker = &mut self.workers[index];
                worker.last = pulse.clone();
                worker.explained = true;
                self.watch.dismiss(rank);
                self.inquest.hear(now, Evidence::Failed { rank, error: error.clone(), pulse: pulse.clone() });
            }
            Event::Regrouped { members, .. } => {
                // A newcomer counts from now on, though its first heartbeat may be on its way.
                let met = |worker: &&mut Worker| members.contains(&worker.rank) && worker.is_stranger();
                self.workers.iter_mut().filter(met).for_each(Worker::has_met_the_others);
                let explained = self.with_causes(record.clone());
                self.direct(&explained)?;
                return on_record(&explained);
            }
            _ => {}
        }
        self.direct(record)?;
        on_record(record)
    }

    /// Whether the others can go on without a worker whatever became of it: it came while they worked.
    fn can_spare(&self, index: usize) -> bool {
        let worker = &self.workers[index];
        let at_work = |(other, worker): (usize, &Worker)| other != index && worker.is_at_work();
        let others = self.workers.iter().enumerate().any(at_work);
        self.plan.elastic && (worker.is_stranger() || worker.joins && others)
    }

    fn direct(&mut self, record: &Record) -> Result<()> {
        let acts = self.director.as_mut().map_or_else(Vec::new, |director| director.follow(record));
        for act in acts {
            match act {
                Act::Inject(fault) => {
                    let told = |worker: &&mut Worker| worker.is_alive() && worker.rank == fault.rank;
                    if let Some(worker) = self.workers.iter_mut().find(told) {
                        worker.wish(&Wish::Inject(fault.clone()));
                    }
                }
                Act::Hire(fault) => {
                    let taken: BTreeSet<usize> = self
                        .workers
                        .iter()
                        .filter(|worker| worker.is_alive())
                        .map(|worker| worker.rank)
                        .collect();
                    let free = (0..).find(|rank| !taken.contains(rank)).unwrap_or(self.plan.world);
                    self.hire_another(free, fault);
                }
                Act::Finish => self.pass_on(&Wish::Finish),
            }
        }
        Ok(())
    }

    /// What the kernel says about the end of those who were lost is more than what the others saw.
    fn with_causes(&mut self, mut record: Record) -> Record {
        let end = Instant::now() + PATIENCE;
        let Event::Regrouped { lost, members, .. } = &mut record.event else { return record };
        // Of a rank that is still a member only connections broke.
        let exited = |culprit: &&mut Culprit| {
            !members.contains(&culprit.rank)
                && !KNOWN_CAUSES.iter().any(|known| culprit.cause.starts_with(known))
        };
        for culprit in lost.iter_mut().filter(exited) {
            if let Some(cause) = self.exit_cause(culprit.rank, end) {
                culprit.cause = cause;
            }
        }
        record
    }

    /// How the process of a lost rank ended, once the kernel reports it; None if it still runs at `end`. Peers may notice
    /// the end first, and the records of the process may not be drained yet.
    fn exit_cause(&mut self, rank: usize, end: Instant) -> Option<String> {
        let of_rank = |worker: &Worker| worker.rank == rank;
        let lost = self.workers.iter().rposition(|worker| of_rank(worker) && worker.lost);
        let index = lost
            .or_else(|| self.workers.iter().rposition(|worker| of_rank(worker) && !worker.is_stranger()))?;
        let worker = &mut self.workers[index];
        loop {
            if worker.cause.is_some() || worker.lost {
                return worker.cause.clone();
            }
            match worker.child.try_wait() {
                Ok(Some(status)) => return (!is_fine(status)).then(|| describe(status)),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        }
    }

    /// Notices the workers that have ended. One is only judged when all it had to say was heard.
    fn reap(&mut self) {
        let now = self.start.elapsed();
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            if worker.status.is_some() || !worker.closed {
                continue;
            }
            let Ok(Some(status)) = worker.child.try_wait() else { continue };
            worker.status = Some(status);
            self.watch.dismiss(worker.rank);
            if is_fine(status) || worker.explained {
                // One that came later and failed may have had the coordinator's role by then.
                if self.workers[index].lost && self.coordinator == Some(index) {
                    self.convene();
                }
                continue;
            }
            let (rank, how, pulse) = (worker.rank, describe(status), worker.last.clone());
            if self.plan.elastic && self.workers.iter().any(Worker::carries_on) {
                self.workers[index].cause.get_or_insert(how);
                self.lose(index);
            } else {
                let how = self.workers[index].cause.take().unwrap_or(how);
                self.inquest.hear(now, Evidence::Exited { rank, how, pulse });
            }
        }
    }

    /// The others go on without this worker.
    fn lose(&mut self, index: usize) {
        let rank = self.workers[index].rank;
        self.workers[index].lost = true;
        if self.coordinator == Some(index) {
            self.convene();
        } else if let Some(coordinator) = self.coordinator {
            self.workers[coordinator].wish(&Wish::Gone(rank));
        }
        if self.plan.respawn && self.interrupted.is_none() {
            self.replace(rank);
        }
    }

    /// Starts another worker in the place of a lost one, unless several ended in it before they had met the others.
    fn replace(&mut self, rank: usize) {
        let earlier = self.workers.iter().rev().filter(|worker| worker.rank == rank);
        let mut in_vain = earlier.take_while(|worker| worker.is_stranger()).peekable();
        let cause = in_vain.peek().and_then(|worker| worker.cause.clone()).unwrap_or_default();
        match in_vain.count() {
            TRIES.. => self.worries.push(format!(
                "no worker in the place of rank {rank}: the last of {TRIES} {cause} before it met the others, who go on"
            )),
            _ => self.hire_another(rank, None),
        }
    }

    /// The first worker that has met the others takes the coordinator's role; one that has not, only if nobody has.
    fn convene(&mut self) {
        let met = |worker: &Worker| worker.last.phase != Phase::Starting;
        let stays = |worker: &Worker| worker.is_alive() && !self.left.contains(&worker.rank);
        let here = || self.workers.iter().enumerate().filter(|(_, worker)| stays(worker));
        let next = here().filter(|(_, worker)| met(worker)).min_by_key(|(_, worker)| worker.rank);
        let next = next.or_else(|| here().min_by_key(|(_, worker)| worker.rank)).map(|(index, _)| index);
        self.coordinator = next;
        if let Some(next) = next {
            let living: BTreeSet<usize> = here().map(|(_, worker)| worker.rank).collect();
            let gone = |rank: &usize| !living.contains(rank) && !self.left.contains(rank);
            let gone = self.workers.iter().map(|worker| worker.rank).filter(gone).collect();
            let wish = Wish::Convene { gone, left: self.left.iter().copied().collect() };
            self.workers[next].wish(&wish);
        }
    }

    fn interrupt(&mut self, signal: Signal, on_record: &mut dyn FnMut(&Record) -> Result<()>) -> Result<()> {
        self.interrupted = Some((signal, Instant::now()));
        self.pass_on(&Wish::Stop { terminate: signal == Signal::Terminate });
        let event = Event::Stopping { ranks: Vec::new(), hosts: Vec::new() };
        on_record(&Record { time: crate::session::unix_time(), rank: None, event })
    }

    fn pass_on(&mut self, wish: &Wish) {
        self.workers.iter_mut().for_each(|worker| worker.wish(wish));
    }

    fn decide(&mut self) -> Option<Result<Ended>> {
        let now = self.start.elapsed();
        let mut counted = self.workers.iter().filter(|worker| !worker.lost).peekable();
        if counted.peek().is_some() && counted.all(|worker| worker.status.is_some_and(is_fine)) {
            // Without a signal of our own: another host's launcher asked for it.
            let stopped = || {
                let counted = self.workers.iter().filter(|worker| !worker.lost);
                counted.filter_map(|worker| worker.status.and_then(stopping_signal)).next()
            };
            let signal = self.interrupted.map(|(signal, _)| signal).or_else(stopped);
            return Some(Ok(signal.map_or(Ended::Done, Ended::Interrupted)));
        }
        if !self.inquest.is_settled()
            && let Some(evidence) = self.watch.verdict(now)
        {
            self.judge(now, evidence);
        }
        // Whoever is left may go on, unless a rank failed by itself.
        let over = !self.plan.elastic
            || self.inquest.has_own_words()
            || !self.workers.iter().any(Worker::is_at_work);
        if let Some(error) = self.inquest.conclude(now).filter(|_| over) {
            return Some(Err(error));
        }
        let (signal, _) = self.interrupted.filter(|(_, when)| when.elapsed() > STOP_LIMIT)?;
        Some(Ok(Ended::Interrupted(signal)))
    }
}
