//! A rank: who am I, who are the others, how do I reach them.
//!
//! Programs wait, sleep, compute and draw randomness only through this. So they run unchanged on threads, on real
//! processes and on a simulated network, and everything that waits has a deadline, a name and an owner.

use crate::beacon::Beacon;
use crate::collectives::Means;
use crate::hosts::Hosts;
use crate::line::PULSE;
use crate::regroup::{Change, Regroup};
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::Traffic;
use thalweg_comm::collective::Underway;
use thalweg_comm::host::Neighbours;
use thalweg_comm::post::Post;
use thalweg_comm::transport::{Fault, Tag, Transport, mesh};
use thalweg_comm::wire::tensor;
use thalweg_core::clock::{Clock, SystemClock};
use thalweg_core::event::{Event, Phase};
use thalweg_core::report::RankReport;
use thalweg_core::times::Times;
use thalweg_core::{Culprit, Error, Kind, Result, Rng};

/// Where a rank's events go.
pub type Emit = Arc<dyn Fn(Event) + Send + Sync>;

/// How long ranks that are threads of one process wait for one that reads data or files.
pub(crate) const PREPARATION: Duration = Duration::from_secs(3600);

/// What a rank is made of.
pub struct Parts {
    /// Its connections, and the operations that are under way on them.
    pub transport: Underway,
    /// Its time.
    pub clock: Arc<dyn Clock>,
    /// Where its events go.
    pub emit: Emit,
    /// Where its state can be seen.
    pub beacon: Arc<Beacon>,
    /// Machine of each rank.
    pub hosts: Hosts,
    /// The ranks it shares memory with, by rank; empty if it shares none.
    pub neighbours: Neighbours,
    /// What carries its bytes: `shm`, `tcp`, both, `mpi`, or something for ranks that are threads.
    pub carrier: &'static str,
    /// Generation of the group.
    pub generation: u32,
    /// The members' numbers, by place. A member keeps its number, whatever its place.
    pub numbers: Vec<usize>,
    /// What happened before this generation.
    pub change: Change,
    /// Leads into the next one; without, the loss of a member is the end.
    pub delegate: Option<Box<dyn Regroup>>,
    /// The longest a rank may hold up a step.
    pub step_deadline: Duration,
    /// The longest the others wait for a rank that reads data or files.
    pub prepare_deadline: Duration,
    /// Seed of the job.
    pub seed: u64,
}

/// A member of the group, as its program sees it.
pub struct Rank {
    pub(crate) parts: Parts,
    /// Its letters, if its program writes any.
    pub(crate) post: Option<Post>,
    /// How collectives are carried out.
    pub(crate) means: Means,
    /// Number and name of the circles it has formed in this generation.
    pub(crate) circles: Vec<(u32, String)>,
    /// Whether all ranks share memory, once they have agreed on it in this generation.
    pub(crate) sharing: Option<(u32, bool)>,
    pub(crate) operation: u64,
    pub(crate) step: u64,
    pub(crate) training: bool,
    /// Whether a step was ever begun.
    has_begun: bool,
    /// Whether its next exchange is never to end: an injected fault.
    pub(crate) livelocks: bool,
    pub(crate) account: RankReport,
    pub(crate) times: Times,
    /// Operations of the piece of work at hand that were charged already.
    charged: u64,
    /// What passed through shared memory without messages, and in earlier generations.
    pub(crate) shared: Traffic,
}

impl Rank {
    /// Puts a rank together.
    pub fn new(parts: Parts) -> Rank {
        parts.beacon.count_this_thread();
        parts.beacon.attach(parts.transport.as_ref(), parts.generation);
        let place = parts.transport.rank();
        let rank = parts.numbers.get(place).copied().unwrap_or(place);
        let host = parts.hosts.name(place).cloned().unwrap_or_default();
        let means = Means::of(&parts);
        let account = RankReport { rank, host, transport: parts.carrier.into(), ..RankReport::default() };
        let generation = parts.generation;
        let rank = Rank {
            parts,
            sharing: None,
            post: None,
            means,
            circles: Vec::new(),
            operation: first_operation(generation),
            step: 0,
            training: false,
            has_begun: false,
            livelocks: false,
            account,
            times: Times::default(),
            charged: 0,
            shared: Traffic::default(),
        };
        rank.enter(Phase::Preparing, "preparation");
        rank
    }

    /// Its place in the group.
    pub fn index(&self) -> usize {
        self.parts.transport.rank()
    }

    /// Its number in the job, by which users know it.
    pub fn number(&self) -> usize {
        self.number_at(self.index())
    }

    /// The number of the rank in that place.
    pub fn number_at(&self, place: usize) -> usize {
        self.parts.numbers.get(place).copied().unwrap_or(place)
    }

    /// The numbers of all ranks, by place.
    pub fn numbers(&self) -> Vec<usize> {
        (0..self.world()).map(|place| self.number_at(place)).collect()
    }

    /// How many there are.
    pub fn world(&self) -> usize {
        self.parts.transport.world()
    }

    /// Machine of each rank.
    pub fn hosts(&self) -> &[String] {
        self.parts.hosts.names()
    }

    /// How many ranks share this one's machine, itself included.
    pub fn local_world(&self) -> usize {
        self.parts.hosts.population(self.index())
    }

    /// Time since some fixed moment.
    pub fn now(&self) -> Duration {
        self.parts.clock.now()
    }

    /// Lets time pass.
    pub fn sleep(&self, duration: Duration) {
        self.parts.clock.sleep(duration);
    }

    /// Draws out a piece of work, as a slower machine would: time passes, and every bit of it is progress.
    pub fn draw_out(&self, mut rest: Duration) {
        while !rest.is_zero() {
            let slice = rest.min(PULSE);
            self.sleep(slice);
            self.parts.beacon.advance();
            rest -= slice;
        }
    }

    /// A stream of random numbers for a purpose: the same on every rank unless the numbers say otherwise.
    pub fn random(&self, purpose: &str, numbers: &[u64]) -> Rng {
        Rng::keyed(self.parts.seed, purpose, numbers)
    }

    /// Tells the world.
    pub fn emit(&self, event: Event) {
        (self.parts.emit)(event);
    }

    /// Whether the job was asked to stop after this step.
    pub fn stop_requested(&self) -> bool {
        self.parts.beacon.stop_requested()
    }

    /// Whether SIGTERM asked for the stop, here or on another rank.
    pub fn is_terminated(&self) -> bool {
        self.parts.beacon.is_terminated()
    }

    /// Another rank was asked for the stop by SIGTERM.
    pub fn note_termination(&self) {
        self.parts.beacon.note_termination();
    }

    /// Whether a checkpoint was asked for after this step.
    pub fn checkpoint_requested(&self) -> bool {
        self.parts.beacon.checkpoint_requested()
    }

    /// A checkpoint of this step is taken, because one was `asked` for or because it was due.
    pub fn checkpoint_taken(&self, asked: bool) {
        self.parts.beacon.checkpoint_taken(asked);
    }

    /// Says who asked for the stop that begins now. One rank of each host does, so that every launcher hears it once.
    pub fn announce_stop(&self, places: &[usize]) {
        let ranks = places;
        let all = &self.parts.hosts;
        if !all.is_first(self.index()) {
            return;
        }
        let mut hosts: Vec<String> = ranks.iter().filter_map(|rank| all.name(*rank).cloned()).collect();
        hosts.dedup();
        let ranks = ranks.iter().map(|place| self.number_at(*place)).collect();
        self.emit(Event::Stopping { ranks, hosts });
    }

    /// A step of training begins: from now on its deadline holds.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
        self.training = true;
        // From here on there is something to save; the next regular pulse may be many steps away.
        if !std::mem::replace(&mut self.has_begun, true) {
            self.enter(Phase::Computing, "step");
            self.emit(Event::Pulse(self.parts.beacon.pulse()));
        }
    }

    /// Something that may take long begins outside of any step: reading data, writing files.
    pub fn begin_preparation(&mut self, name: &str) {
        self.training = false;
        self.enter(Phase::Preparing, name);
    }

    /// Does a piece of the rank's own work. `operations` is what it costs in floating-point operations: a simulated
    /// rank is charged for it, a real one is measured.
    pub fn compute<T>(&mut self, name: &str, operations: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.compute_together(name, operations, |_| work())
    }

    /// The same for work that meets the others on its way: what that takes is booked as exchange, not as computing.
    pub fn compute_together<T>(
        &mut self,
        name: &str,
        operations: u64,
        work: impl FnOnce(&mut Rank) -> Result<T>,
    ) -> Result<T> {
        // With others about, a verdict is met in the next operation with them: there it is seen what that was.
        if self.world() == 1 {
            self.check()?;
        }
        if self.training {
            self.enter(Phase::Computing, name);
        }
        let (start, exchanged) = (self.now(), self.account.exchange_s);
        self.charged = 0;
        let result = work(self);
        self.parts.clock.charge(operations.saturating_sub(self.charged));
        if self.training {
            let met = self.account.exchange_s - exchanged;
            self.account.compute_s += (self.now() - start).as_secs_f64() - met;
        }
        result
    }

    /// So much of the piece of work at hand is done: a simulated rank is charged for it now and not at its end.
    pub fn charge(&mut self, operations: u64) {
        let fresh = operations.saturating_sub(self.charged);
        self.charged += fresh;
        if fresh > 0 {
            self.parts.clock.charge(fresh);
        }
    }

    /// Makes sure that all ranks mean the same; names the first that does not.
    pub fn agree(&mut self, what: &str, digest: &[u8]) -> Result<()> {
        let all = self.all_gather(what, digest)?;
        match all.iter().position(|other| *other != all[0]) {
            None => Ok(()),
            Some(place) => {
                let (rank, first) = (self.number_at(place), self.number_at(0));
                let cause = format!("has another {what} than rank {first}");
                Err(Error::new(Kind::Rendezvous, format!("rank {rank} {cause}"))
                    .hint("every host must have the same job, the same data and the same version of thalweg")
                    .blame(Culprit { rank, cause, ..Culprit::default() }))
            }
        }
    }

    /// Says goodbye to the others: nobody waits for this rank any more.
    pub fn leave(&mut self) {
        self.enter(Phase::Leaving, "leaving");
        self.parts.transport.close();
    }

    pub(crate) fn operate(
        &mut self,
        kind: &str,
        name: &str,
        run: impl FnOnce(&mut Rank, Tag, Duration) -> Result<(), Fault>,
    ) -> Result<Duration> {
        let tag = self.next_tag(kind, name);
        self.await_operation(kind, name, |rank, deadline| run(rank, tag, deadline))
    }

    /// What the frames of the next operation of all ranks belong to.
    pub(crate) fn next_tag(&mut self, kind: &str, name: &str) -> Tag {
        self.operation += 1;
        let tensor = tensor(&format!("{kind} of {name}"));
        Tag { generation: self.parts.generation, operation: self.operation, group: 0, tensor }
    }

    /// Waits for an operation, whoever takes part in it.
    pub(crate) fn await_operation(
        &mut self,
        kind: &str,
        name: &str,
        run: impl FnOnce(&mut Rank, Duration) -> Result<(), Fault>,
    ) -> Result<Duration> {
        self.enter(Phase::Exchanging, &format!("{kind} of {name}"));
        self.check()?;
        self.livelock_if_injected();
        let (start, deadline) = (self.now(), self.deadline());
        let result = run(self, deadline);
        let took = self.now() - start;
        if self.training {
            self.account.exchange_s += took.as_secs_f64();
        }
        result.map_err(|fault| self.explain(&fault, kind, name))?;
        Ok(took)
    }

    /// The watch decides at the step's deadline whom to blame; this is the net below it.
    pub(crate) fn deadline(&self) -> Duration {
        let patience = if self.training { self.parts.step_deadline } else { self.parts.prepare_deadline };
        patience + patience / 4 + Duration::from_secs(1)
    }

    /// A verdict that came meanwhile ends the program here; so does the end of this generation.
    pub(crate) fn check(&self) -> Result<()> {
        self.parts.beacon.ending(self.parts.generation).map_or(Ok(()), Err)
    }

    pub(crate) fn enter(&self, phase: Phase, name: &str) {
        self.parts.beacon.enter(self.step, phase, self.operation, name);
    }
}

/// The ranks of a world of threads, connected by memory: real in all but the processes.
pub fn in_memory(world: usize, step_deadline: Duration) -> Vec<Rank> {
    let rank = |transport| {
        Rank::new(Parts {
            transport: Underway::from(Box::new(transport) as Box<dyn Transport>),
            clock: Arc::new(SystemClock::default()),
            emit: Arc::new(|_| {}),
            beacon: Beacon::new(),
            hosts: Hosts::one("memory", world),
            neighbours: Vec::new(),
            carrier: "mem",
            generation: 1,
            numbers: Vec::new(),
            change: Change::default(),
            delegate: None,
            step_deadline,
            prepare_deadline: PREPARATION,
            seed: 0,
        })
    };
    mesh(world).into_iter().map(rank).collect()
}

/// Operations are numbered on from generation to generation, the same on all ranks.
pub(crate) fn first_operation(generation: u32) -> u64 {
    u64::from(generation.saturating_sub(1)) << 32
}
