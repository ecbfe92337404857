//! [`Rank`]: one member of the group, as its program sees it.
//!
//! Programs wait, sleep, compute and draw random numbers only through this type, and communicate through the groups
//! that it is a member of: [`Rank::world`], [`Rank::group`]. So they run unchanged on threads, on
//! processes and on a simulated network, and every wait has a deadline and a name.
//!
//! [`in_memory`] builds ranks without starting threads: `bench allreduce` runs its own threads on them, and tests that
//! need a single `Rank` use it too.

use crate::control_connection::HEARTBEAT_INTERVAL;
use crate::fault_injection::{ActiveFaults, FaultyProcess, OwnProcess};
use crate::hosts::Hosts;
use crate::meeting_policy::WorkReport;
use crate::process_group::ProcessGroup;
use crate::progress_thread::ProgressThread;
use crate::rank_status::RankStatus;
use crate::regroup::{MembershipChange, MembershipClient};
use std::sync::Arc;
use std::time::Duration;
use thalweg_comm::Traffic;
use thalweg_comm::arena::WindowTraffic;
use thalweg_comm::collective::NonblockingTransport;
use thalweg_comm::host::LocalPeers;
use thalweg_comm::messages::Messages;
use thalweg_comm::transport::{Transport, TransportError, mesh};
use thalweg_core::clock::{Clock, SystemClock};
use thalweg_core::event::{Event, Phase};
use thalweg_core::report::RankReport;
use thalweg_core::times::Times;
use thalweg_core::{Result, Rng};

/// Sink of a rank's events.
pub type Emit = Arc<dyn Fn(Event) + Send + Sync>;

/// Preparation deadline of ranks that are threads of one process.
pub(crate) const PREPARATION: Duration = Duration::from_secs(3600);

/// Everything a [`Rank`] is built from.
pub struct RankParts {
    /// The connections to all peers, with the nonblocking operations and messages in flight on them.
    pub transport: NonblockingTransport,
    pub clock: Arc<dyn Clock>,
    pub emit: Emit,
    /// State shared with the heartbeat and control threads.
    pub rank_status: Arc<RankStatus>,
    pub hosts: Hosts,
    /// The peers this rank shares memory with, by rank; empty if there are none.
    pub local_peers: LocalPeers,
    /// Transport named in the report: `shm`, `tcp`, `shm+tcp`, `mpi`; `mem` or `sim` for threads.
    pub carrier: &'static str,
    pub generation: u32,
    /// Member ids by rank. A member keeps its id across generations; its rank may change.
    pub member_ids: Vec<usize>,
    /// Membership changes before this generation.
    pub change: MembershipChange,
    /// The target of injected kills and stops.
    pub process: Arc<dyn FaultyProcess>,
    /// Forms the next generation; without it the loss of a member ends the job.
    pub membership_client: Option<Box<dyn MembershipClient>>,
    /// Longest time a rank may make no progress in a training step.
    pub step_deadline: Duration,
    /// The same outside of steps, while data or files are read.
    pub prepare_deadline: Duration,
    /// The job's random seed.
    pub seed: u64,
}

/// A member of the group, as its program sees it.
pub struct Rank {
    pub(crate) parts: RankParts,
    /// The group of all ranks.
    pub(crate) world: ProcessGroup,
    /// Id and name of the smaller groups formed in this generation.
    pub(crate) groups: Vec<(u32, String)>,
    /// Whether this rank is in a group: false after it left, and after a regroup that failed.
    pub(crate) in_group: bool,
    pub(crate) step: u64,
    pub(crate) training: bool,
    /// Whether any step has begun.
    has_begun: bool,
    pub(crate) faults: ActiveFaults,
    pub(crate) account: RankReport,
    pub(crate) times: Times,
    /// Floating-point operations of the current computation already charged to a simulated clock.
    charged: u64,
    /// Traffic through shared arenas, and that of earlier generations.
    pub(crate) shared: Traffic,
    /// Traffic through windows, those of earlier generations too.
    pub(crate) window_traffic: Vec<Arc<WindowTraffic>>,
    /// When messages were last moved between two pieces of computation.
    pub(crate) last_poll: Duration,
    /// Milliseconds from sending a message to its acknowledgement.
    pub(crate) message_delays: Times,
    pub(crate) progress_thread: Option<ProgressThread>,
}

impl Rank {
    pub fn new(parts: RankParts) -> Rank {
        parts.rank_status.count_this_thread();
        parts.rank_status.attach(parts.transport.as_ref(), parts.generation, &parts.member_ids);
        let index = parts.transport.rank();
        let member_id = parts.member_ids.get(index).copied().unwrap_or(index);
        let host = parts.hosts.name(index).cloned().unwrap_or_default();
        let world = ProcessGroup::world(&parts);
        let account =
            RankReport { rank: member_id, host, transport: parts.carrier.into(), ..RankReport::default() };
        let rank = Rank {
            parts,
            world,
            groups: Vec::new(),
            in_group: true,
            step: 0,
            training: false,
            has_begun: false,
            faults: ActiveFaults::default(),
            account,
            times: Times::default(),
            charged: 0,
            shared: Traffic::default(),
            window_traffic: Vec::new(),
            last_poll: Duration::ZERO,
            message_delays: Times::default(),
            progress_thread: None,
        };
        rank.enter(Phase::Preparing, "preparation");
        rank
    }

    /// This rank's index in the group of the current generation: 0 to [`Rank::size`] - 1.
    pub fn index(&self) -> usize {
        self.parts.transport.rank()
    }

    /// The member id, which stays the same across generations. Events and errors name ranks by it.
    pub fn member_id(&self) -> usize {
        self.member_id_at(self.index())
    }

    /// The member id of the rank with this index.
    pub fn member_id_at(&self, index: usize) -> usize {
        self.parts.member_ids.get(index).copied().unwrap_or(index)
    }

    /// Member ids of all ranks, by index.
    pub fn member_ids(&self) -> Vec<usize> {
        (0..self.size()).map(|index| self.member_id_at(index)).collect()
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.parts.transport.world()
    }

    /// Number of ranks on this host, this one included.
    pub fn local_world(&self) -> usize {
        self.parts.hosts.population(self.index())
    }

    /// Time since a fixed but arbitrary origin.
    pub fn now(&self) -> Duration {
        self.parts.clock.now()
    }

    pub fn sleep(&self, duration: Duration) {
        self.parts.clock.sleep(duration);
    }

    /// Sleeps as a slower machine would compute, counting each heartbeat interval as progress. Messages move meanwhile.
    pub fn slow_down(&mut self, rest: Duration) -> Result<()> {
        self.slow_down_until(rest, |_| None::<()>).map(drop)
    }

    /// The same, at most until `take` takes a message.
    pub(crate) fn slow_down_until<T>(
        &mut self,
        mut rest: Duration,
        mut take: impl FnMut(&mut Messages) -> Option<T>,
    ) -> Result<Option<T>> {
        while !rest.is_zero() {
            let slice = rest.min(HEARTBEAT_INTERVAL);
            if self.has_messages() {
                let slept = self.parts.transport.sleep_until(slice, &mut take);
                let taken = slept.map_err(|fault| self.explain(&fault, "messages of the others"))?;
                if taken.is_some() {
                    return Ok(taken);
                }
            } else {
                self.sleep(slice);
            }
            self.parts.rank_status.advance();
            rest -= slice;
        }
        Ok(self.parts.transport.messages_mut().and_then(take))
    }

    /// A random stream for a purpose, the same on every rank unless `numbers` differ.
    pub fn random(&self, purpose: &str, numbers: &[u64]) -> Rng {
        Rng::keyed(self.parts.seed, purpose, numbers)
    }

    pub fn emit(&self, event: Event) {
        (self.parts.emit)(event);
    }

    /// Whether the job is to stop after this step.
    pub fn stop_requested(&self) -> bool {
        self.parts.rank_status.stop_requested()
    }

    /// Whether the stop was requested by SIGTERM, on this or another rank.
    pub fn is_terminated(&self) -> bool {
        self.parts.rank_status.is_terminated()
    }

    /// Records that another rank received SIGTERM.
    pub fn note_termination(&self) {
        self.parts.rank_status.note_termination();
    }

    /// Whether a checkpoint was requested after this step.
    pub fn checkpoint_requested(&self) -> bool {
        self.parts.rank_status.checkpoint_requested()
    }

    /// Reports to the coordinator how far a worker at its own speed is.
    pub fn report_work(&self, report: WorkReport) {
        self.parts.rank_status.report_work(report);
    }

    /// The last meeting of all workers that was called.
    pub fn called_meeting(&self) -> u64 {
        self.parts.rank_status.called_meeting()
    }

    /// Rows of all workers, as far as the coordinator knows.
    pub fn group_rows(&self) -> u64 {
        self.parts.rank_status.group_rows()
    }

    /// Records that a checkpoint of this step is taken; `asked`: on request, not on schedule.
    pub fn checkpoint_taken(&self, asked: bool) {
        self.parts.rank_status.checkpoint_taken(asked);
    }

    /// Emits which ranks requested the stop. Only the first rank of each host emits, so that each launcher receives one
    /// event.
    pub fn announce_stop(&self, ranks: &[usize]) {
        let all = &self.parts.hosts;
        if !all.is_first(self.index()) {
            return;
        }
        let mut hosts: Vec<String> = ranks.iter().filter_map(|rank| all.name(*rank).cloned()).collect();
        hosts.dedup();
        let ranks = ranks.iter().map(|index| self.member_id_at(*index)).collect();
        self.emit(Event::Stopping { ranks, hosts });
    }

    /// Begins a training step: from here on the step deadline applies.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
        self.training = true;
        // Tells the launcher that there is state to save; the next regular heartbeat may be many steps away.
        if !std::mem::replace(&mut self.has_begun, true) {
            self.enter(Phase::Computing, "step");
            self.emit(Event::Heartbeat(self.parts.rank_status.heartbeat()));
        }
    }

    /// Begins work between two steps that makes progress, such as an evaluation: the step deadline applies as in a step.
    pub fn begin_interval(&mut self, name: &str) {
        self.training = false;
        self.enter(Phase::Computing, name);
    }

    /// Begins work outside of any step that may wait for a disk, such as reading data or writing files: the preparation
    /// deadline applies.
    pub fn begin_preparation(&mut self, name: &str) {
        self.training = false;
        self.enter(Phase::Preparing, name);
    }

    /// Runs local work and books its time as computing. `operations` is its cost in floating-point operations, which a
    /// simulated clock is charged with.
    pub fn compute<T>(&mut self, name: &str, operations: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.compute_with_collectives(name, operations, |_| work())
    }

    /// The same for work that runs collectives: their time is booked as exchange, not as computing.
    pub fn compute_with_collectives<T>(
        &mut self,
        name: &str,
        operations: u64,
        work: impl FnOnce(&mut Rank) -> Result<T>,
    ) -> Result<T> {
        // With peers, the next collective reports an abort, and knows which operation it ended.
        if self.size() == 1 {
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
            let exchange = self.account.exchange_s - exchanged;
            self.account.compute_s += (self.now() - start).as_secs_f64() - exchange;
        }
        result
    }

    /// Charges a simulated clock for the first `operations` of the current computation now instead of at its end.
    pub fn charge(&mut self, operations: u64) {
        let fresh = operations.saturating_sub(self.charged);
        self.charged += fresh;
        if fresh > 0 {
            self.parts.clock.charge(fresh);
        }
    }

    /// Sends a close frame to all peers, so that they do not wait for this rank.
    pub fn leave(&mut self) {
        self.enter(Phase::Leaving, "leaving");
        self.parts.transport.close();
    }

    /// Runs an operation of a group; returns its result and its duration, which is booked as exchange.
    pub(crate) fn await_operation<R>(
        &mut self,
        title: &str,
        run: impl FnOnce(&mut Rank, Duration) -> Result<R, TransportError>,
    ) -> Result<(R, Duration)> {
        self.enter(Phase::Exchanging, title);
        self.check()?;
        self.livelock_if_injected();
        let (start, deadline) = (self.now(), self.deadline());
        let result = run(self, deadline);
        let took = self.now() - start;
        if self.training {
            self.account.exchange_s += took.as_secs_f64();
        }
        let result = result.map_err(|fault| self.explain(&fault, title))?;
        Ok((result, took))
    }

    /// Fallback for the heartbeat monitor, which decides at the step deadline which rank failed.
    pub(crate) fn deadline(&self) -> Duration {
        let deadline = if self.training { self.parts.step_deadline } else { self.parts.prepare_deadline };
        deadline + deadline / 4 + Duration::from_secs(1)
    }

    /// Fails if the job was aborted or this generation has ended.
    pub fn check(&self) -> Result<()> {
        self.parts.rank_status.end_reason(self.parts.generation).map_or(Ok(()), Err)
    }

    pub(crate) fn enter(&self, phase: Phase, name: &str) {
        self.parts.rank_status.enter(self.step, phase, self.world.operation, name);
    }
}

/// Ranks for threads of this process, connected in memory, on the system clock.
pub fn in_memory(world: usize, step_deadline: Duration) -> Vec<Rank> {
    let rank = |transport| {
        Rank::new(RankParts {
            transport: NonblockingTransport::from(Box::new(transport) as Box<dyn Transport>),
            clock: Arc::new(SystemClock::default()),
            emit: Arc::new(|_| {}),
            rank_status: RankStatus::new(),
            hosts: Hosts::one("memory", world),
            local_peers: Vec::new(),
            carrier: "mem",
            generation: 1,
            member_ids: Vec::new(),
            change: MembershipChange::default(),
            process: Arc::new(OwnProcess),
            membership_client: None,
            step_deadline,
            prepare_deadline: PREPARATION,
            seed: 0,
        })
    };
    mesh(world).into_iter().map(rank).collect()
}

/// Operation ids continue from generation to generation, the same on all ranks.
pub(crate) fn first_operation(generation: u32) -> u64 {
    u64::from(generation.saturating_sub(1)) << 32
}
