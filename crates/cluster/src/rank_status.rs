//! The state that a rank's program shares with the other threads of its process.
//!
//! The program writes its current operation, which the heartbeat thread reads. The control threads write requests and the
//! reason to abort, which the program reads at its next operation at the latest.

use crate::interruption::GRACE;
use crate::meeting_policy::{MeetingPolicy, WorkReport};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thalweg_comm::transport::{Abort, AwaitedPeers, ProgressCounters, Transport, WaitMode};
use thalweg_core::event::{Heartbeat, Phase, WaitsFor};
use thalweg_core::spec::inject::{FaultKind, InjectedFault};
use thalweg_core::{Error, progress};

/// What a rank does, and what is requested of it.
#[derive(Default)]
pub struct RankStatus {
    doing: Mutex<Option<(Heartbeat, Instant)>>,
    /// Work of the program itself, and progress of the transports of earlier generations.
    completed: Arc<AtomicU64>,
    /// Progress of the transport of this generation.
    counters: Mutex<ProgressCounters>,
    /// Member ids by rank in this generation.
    member_ids: Mutex<Vec<usize>>,
    stop: AtomicBool,
    /// Whether SIGTERM asked for the stop, of this rank or of another.
    terminated: AtomicBool,
    leave: AtomicBool,
    pause: AtomicBool,
    finish: AtomicBool,
    checkpoint: AtomicBool,
    /// Whether a request of any member waits for a step boundary, as far as the coordinator knows.
    group_boundary: AtomicBool,
    /// The last meeting that was called.
    meeting: AtomicU64,
    /// Rows of all workers, as far as the coordinator knows.
    group_rows: AtomicU64,
    /// When a requested checkpoint was last taken.
    checkpoint_taken: Mutex<Option<Instant>>,
    faults: Mutex<Vec<InjectedFault>>,
    abort_reason: Mutex<Option<Error>>,
    /// The newest generation that was interrupted, and why.
    interrupted: Mutex<Option<(u32, Error)>>,
    abort: Mutex<Option<Abort>>,
    witness_handler: Mutex<Option<WitnessHandler>>,
    work_handler: Mutex<Option<WorkHandler>>,
}

/// Gets the program's error at once, before the reason is known: the error, the operation, and the rank that reported it
/// if the error is second-hand.
pub type WitnessHandler = Box<dyn Fn(&Error, &Heartbeat, Option<usize>) + Send>;

/// Takes a worker's report to the coordinator.
pub type WorkHandler = Box<dyn Fn(WorkReport) + Send>;

/// Ignores poisoning: the data behind these locks is consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RankStatus {
    pub fn new() -> Arc<RankStatus> {
        Arc::new(RankStatus::default())
    }

    /// The program enters an operation.
    pub fn enter(&self, step: u64, phase: Phase, operation: u64, name: &str) {
        self.advance();
        let mut doing = lock(&self.doing);
        match doing.as_mut() {
            Some((heartbeat, began)) => {
                (heartbeat.step, heartbeat.phase, heartbeat.operation) = (step, phase, operation);
                heartbeat.name.clear();
                heartbeat.name.push_str(name);
                *began = Instant::now();
            }
            None => {
                *doing = Some((
                    Heartbeat { step, phase, operation, name: name.into(), ..Heartbeat::default() },
                    Instant::now(),
                ))
            }
        }
    }

    pub fn heartbeat(&self) -> Heartbeat {
        let counters = lock(&self.counters).clone();
        let (progress, polls) = (self.completed.load(Ordering::Relaxed) + counters.moves(), counters.polls());
        match lock(&self.doing).as_ref() {
            Some((heartbeat, began)) => {
                let awaited = counters.awaited_peers(*began).filter(|_| heartbeat.phase == Phase::Exchanging);
                let waits_for = awaited.map(|awaited| self.name_members(awaited));
                let since = began.elapsed().as_secs_f64();
                Heartbeat { since, progress, polls, waits_for, ..heartbeat.clone() }
            }
            None => Heartbeat { name: "starting".into(), progress, polls, ..Heartbeat::default() },
        }
    }

    /// The awaited peers by member id.
    fn name_members(&self, awaited: AwaitedPeers) -> WaitsFor {
        let ids = lock(&self.member_ids);
        let member = |rank: usize| ids.get(rank).copied().unwrap_or(rank);
        let members = awaited.peers.into_iter().map(member).collect();
        match awaited.mode {
            WaitMode::All => WaitsFor::All(members),
            WaitMode::Any => WaitsFor::Any(members),
        }
    }

    /// Counts a unit of work as progress.
    pub fn advance(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what the calling thread reads and computes as progress of this rank.
    pub fn count_this_thread(&self) {
        progress::count_into(Arc::clone(&self.completed));
    }

    /// Passes the progress of the group to the transport: while it grows, a wait of this rank is no failure.
    pub fn set_group_progress(&self, progress: u64) {
        lock(&self.counters).set_group_progress(progress);
    }

    /// Asks the job to stop after this step.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Asks the job to stop after this step, because of SIGTERM.
    pub fn request_termination(&self) {
        self.terminated.store(true, Ordering::Relaxed);
        self.request_stop();
    }

    /// Records that SIGTERM on another rank requested the stop.
    pub fn note_termination(&self) {
        self.terminated.store(true, Ordering::Relaxed);
    }

    /// Whether SIGTERM requested the stop, on this rank or on another.
    pub fn is_terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }

    pub fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks this rank alone to leave after this step.
    pub fn request_leave(&self) {
        self.leave.store(true, Ordering::Relaxed);
    }

    pub fn leave_requested(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }

    /// Asks for a new generation after this step, because a worker waits to join; `wanted` is false when none does any more.
    pub fn request_pause(&self, wanted: bool) {
        self.pause.store(wanted, Ordering::Relaxed);
    }

    pub fn pause_requested(&self) -> bool {
        self.pause.load(Ordering::Relaxed)
    }

    /// Asks the job to end with the current epoch.
    pub fn request_finish(&self) {
        self.finish.store(true, Ordering::Relaxed);
    }

    pub fn finish_requested(&self) -> bool {
        self.finish.load(Ordering::Relaxed)
    }

    /// Asks for a checkpoint after this step. A request right after a requested checkpoint is dropped: if all ranks get the
    /// signal, it arrives at each at another time.
    pub fn request_checkpoint(&self) {
        if lock(&self.checkpoint_taken).is_none_or(|taken| taken.elapsed() >= GRACE) {
            self.checkpoint.store(true, Ordering::Relaxed);
        }
    }

    pub fn checkpoint_requested(&self) -> bool {
        self.checkpoint.load(Ordering::Relaxed)
    }

    /// A checkpoint was taken, because it was `requested` on any rank or because it was due.
    pub fn checkpoint_taken(&self, requested: bool) {
        if self.checkpoint.swap(false, Ordering::Relaxed) || requested {
            *lock(&self.checkpoint_taken) = Some(Instant::now());
        }
    }

    /// Whether a request to this rank waits for a step boundary. A request to finish does not: it waits for the end of the
    /// epoch.
    pub fn awaits_boundary(&self) -> bool {
        self.stop_requested()
            || self.leave_requested()
            || self.pause_requested()
            || self.checkpoint_requested()
    }

    /// Passes on whether a request of any member waits for a step boundary.
    pub fn set_group_boundary(&self, requested: bool) {
        self.group_boundary.store(requested, Ordering::Relaxed);
    }

    /// Whether a request waits for a step boundary, at this rank or at another.
    pub fn boundary_requested(&self) -> bool {
        self.awaits_boundary() || self.group_boundary.load(Ordering::Relaxed)
    }

    /// A meeting is called: the worker takes part after its commit unit.
    pub fn call_meeting(&self, number: u64) {
        self.meeting.fetch_max(number, Ordering::Relaxed);
    }

    /// The last meeting that was called.
    pub fn called_meeting(&self) -> u64 {
        self.meeting.load(Ordering::Relaxed)
    }

    pub fn set_group_rows(&self, rows: u64) {
        self.group_rows.store(rows, Ordering::Relaxed);
    }

    /// Rows of all workers, as far as the coordinator knows.
    pub fn group_rows(&self) -> u64 {
        self.group_rows.load(Ordering::Relaxed)
    }

    pub fn set_work_handler(&self, handler: WorkHandler) {
        *lock(&self.work_handler) = Some(handler);
    }

    /// Reports to the coordinator. A rank without one is alone, and decides by itself.
    pub fn report_work(&self, report: WorkReport) {
        if let Some(handler) = lock(&self.work_handler).as_ref() {
            return handler(report);
        }
        let mut policy = MeetingPolicy::default();
        let called = policy.on_report(0, report);
        self.set_group_rows(policy.rows());
        called.into_iter().for_each(|number| self.call_meeting(number));
    }

    /// Adds a fault that this rank injects into itself.
    pub fn inject(&self, fault: InjectedFault) {
        lock(&self.faults).push(fault);
    }

    /// Takes a fault that is due at the begin of this step.
    pub fn take_fault(&self, step: u64) -> Option<InjectedFault> {
        let mut faults = lock(&self.faults);
        let due = faults.iter().position(|fault| fault.step <= step)?;
        Some(faults.swap_remove(due))
    }

    /// Takes a fault of this kind that is due before the first step; whether there was one.
    pub fn take_early_fault(&self, kind: FaultKind) -> bool {
        let mut faults = lock(&self.faults);
        let due = faults.iter().position(|fault| fault.kind == kind && fault.step == 0);
        due.map(|due| faults.swap_remove(due)).is_some()
    }

    /// Sets the transport of this generation, between the members with these ids by rank: its transfers count as progress,
    /// and are aborted with the rank.
    pub fn attach(&self, transport: &dyn Transport, generation: u32, member_ids: &[usize]) {
        *lock(&self.member_ids) = member_ids.to_vec();
        let before = std::mem::replace(&mut *lock(&self.counters), transport.progress_counters().clone());
        self.completed.fetch_add(before.moves(), Ordering::Relaxed);
        *lock(&self.abort) = Some(transport.abort_handle());
        if self.abort_reason().is_some() || self.interrupt_reason(generation).is_some() {
            self.abort_transfers();
        }
    }

    pub fn set_witness_handler(&self, witness: WitnessHandler) {
        *lock(&self.witness_handler) = Some(witness);
    }

    /// Reports an error of an operation with others at once; its reason follows from the coordinator.
    pub fn report_witness(&self, error: &Error) {
        self.report_witness_from(error, None);
    }

    /// The same for an error that `source` reported to this rank.
    pub fn report_witness_from(&self, error: &Error, source: Option<usize>) {
        if let Some(witness) = lock(&self.witness_handler).as_ref() {
            witness(error, &self.heartbeat(), source);
        }
    }

    /// Ends the job on this rank. The first error counts.
    pub fn abort(&self, error: Error) {
        lock(&self.abort_reason).get_or_insert(error);
        self.abort_transfers();
    }

    /// Ends a generation of the group, but not the job.
    pub fn interrupt(&self, generation: u32, reason: Error) {
        let mut over = lock(&self.interrupted);
        if over.as_ref().is_none_or(|(known, _)| *known < generation) {
            *over = Some((generation, reason));
        }
        drop(over);
        self.abort_transfers();
    }

    /// `None` while this generation goes on.
    pub fn interrupt_reason(&self, generation: u32) -> Option<Error> {
        lock(&self.interrupted)
            .as_ref()
            .filter(|(over, _)| *over >= generation)
            .map(|(_, reason)| reason.clone())
    }

    fn abort_transfers(&self) {
        if let Some(abort) = lock(&self.abort).as_ref() {
            abort.abort();
        }
    }

    /// `None` while the job goes on.
    pub fn abort_reason(&self) -> Option<Error> {
        lock(&self.abort_reason).clone()
    }

    /// Why the job or, failing that, this generation is over; `None` while it goes on.
    pub fn end_reason(&self, generation: u32) -> Option<Error> {
        self.abort_reason().or_else(|| self.interrupt_reason(generation))
    }

    /// Whether this generation was interrupted while the job goes on.
    pub fn generation_is_over(&self, generation: u32) -> bool {
        self.abort_reason().is_none() && self.interrupt_reason(generation).is_some()
    }

    /// Waits up to `timeout` for the reason: a rank that loses a peer learns it a moment later.
    pub fn await_end_reason(&self, generation: u32, timeout: Duration) -> Option<Error> {
        if lock(&self.witness_handler).is_none() {
            // Without a handler the loss was not reported, so no reason will come.
            return self.end_reason(generation);
        }
        let end = Instant::now() + timeout;
        loop {
            if let Some(error) = self.end_reason(generation) {
                return Some(error);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
