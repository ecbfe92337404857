//! What a rank is doing, where other threads can see it; and what others want of it.
//!
//! The program writes, the pulse thread reads. The other way round, the control threads leave a verdict or a wish to
//! stop here, and the program meets it at its next operation at the latest.

use crate::interruption::GRACE;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thalweg_comm::transport::{Abort, Activity, Transport};
use thalweg_core::event::{Phase, Pulse};
use thalweg_core::spec::inject::{Fault, Mischief};
use thalweg_core::{Error, progress};

/// Shared between a rank's program and the threads that speak for it.
#[derive(Default)]
pub struct Beacon {
    doing: Mutex<Option<(Pulse, Instant)>>,
    /// Work that the program has done by itself, and what transports of earlier generations have moved.
    work: Arc<AtomicU64>,
    /// What the transport of this generation moves.
    activity: Mutex<Activity>,
    stop: AtomicBool,
    /// Whether SIGTERM asked for the stop, of this rank or of another.
    terminated: AtomicBool,
    leave: AtomicBool,
    pause: AtomicBool,
    finish: AtomicBool,
    checkpoint: AtomicBool,
    /// When a checkpoint that was asked for was taken last.
    checkpoint_taken: Mutex<Option<Instant>>,
    faults: Mutex<Vec<Fault>>,
    verdict: Mutex<Option<Error>>,
    /// The newest generation that is over, and why.
    over: Mutex<Option<(u32, Error)>>,
    abort: Mutex<Option<Abort>>,
    witness: Mutex<Option<Witness>>,
}

/// Hears at once what the program met, before the program knows the whole reason.
pub type Witness = Box<dyn Fn(&Error, &Pulse, Option<usize>) + Send>;

/// A panicking thread must not silence the others: the data behind these locks is always whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Beacon {
    /// A new one.
    pub fn new() -> Arc<Beacon> {
        Arc::new(Beacon::default())
    }

    /// The program begins something.
    pub fn enter(&self, step: u64, phase: Phase, operation: u64, name: &str) {
        self.advance();
        let mut doing = lock(&self.doing);
        match doing.as_mut() {
            Some((pulse, began)) => {
                (pulse.step, pulse.phase, pulse.operation) = (step, phase, operation);
                pulse.name.clear();
                pulse.name.push_str(name);
                *began = Instant::now();
            }
            None => {
                *doing = Some((
                    Pulse { step, phase, operation, name: name.into(), ..Pulse::default() },
                    Instant::now(),
                ))
            }
        }
    }

    /// What the rank is doing now.
    pub fn pulse(&self) -> Pulse {
        let activity = lock(&self.activity).clone();
        let (progress, looks) = (self.work.load(Ordering::Relaxed) + activity.moved(), activity.looks());
        match lock(&self.doing).as_ref() {
            Some((pulse, began)) => {
                Pulse { since: began.elapsed().as_secs_f64(), progress, looks, ..pulse.clone() }
            }
            None => Pulse { name: "starting".into(), progress, looks, ..Pulse::default() },
        }
    }

    /// A unit of work is done.
    pub fn advance(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
    }

    /// What this thread reads and computes is this rank's progress.
    pub fn count_this_thread(&self) {
        progress::count_into(Arc::clone(&self.work));
    }

    /// The group has come so far: as long as it goes on, a wait of this rank is no sign of a failure.
    pub fn tell_group(&self, progress: u64) {
        lock(&self.activity).tell_group(progress);
    }

    /// Asks the job to stop after this step.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Asks the job to stop after this step, as the scheduler or a user wants it ended.
    pub fn request_termination(&self) {
        self.terminated.store(true, Ordering::Relaxed);
        self.request_stop();
    }

    /// The stop that all ranks have heard of was asked for by SIGTERM.
    pub fn note_termination(&self) {
        self.terminated.store(true, Ordering::Relaxed);
    }

    /// Whether SIGTERM asked for the stop.
    pub fn is_terminated(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
    }

    /// Whether the job was asked to stop.
    pub fn stop_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Asks this rank, and no other, to leave after this step.
    pub fn request_leave(&self) {
        self.leave.store(true, Ordering::Relaxed);
    }

    /// Whether this rank was asked to leave.
    pub fn leave_requested(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }

    /// Asks for a new group after this step, because a worker waits to join; `wanted` is false when none does any more.
    pub fn request_pause(&self, wanted: bool) {
        self.pause.store(wanted, Ordering::Relaxed);
    }

    /// Whether a new group was asked for.
    pub fn pause_requested(&self) -> bool {
        self.pause.load(Ordering::Relaxed)
    }

    /// Asks the job to end with the current epoch.
    pub fn request_finish(&self) {
        self.finish.store(true, Ordering::Relaxed);
    }

    /// Whether the job was asked to end with the current epoch.
    pub fn finish_requested(&self) -> bool {
        self.finish.load(Ordering::Relaxed)
    }

    /// Asks for a checkpoint after this step. Where all ranks are asked, the signals come one by one: one that comes
    /// right after the checkpoint asks for what has been done.
    pub fn request_checkpoint(&self) {
        if lock(&self.checkpoint_taken).is_none_or(|taken| taken.elapsed() >= GRACE) {
            self.checkpoint.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a checkpoint was asked for.
    pub fn checkpoint_requested(&self) -> bool {
        self.checkpoint.load(Ordering::Relaxed)
    }

    /// A checkpoint of this moment is taken, because one was `asked` for here or elsewhere, or because it was due.
    pub fn checkpoint_taken(&self, asked: bool) {
        if self.checkpoint.swap(false, Ordering::Relaxed) || asked {
            *lock(&self.checkpoint_taken) = Some(Instant::now());
        }
    }

    /// This is to happen to this rank.
    pub fn inject(&self, fault: Fault) {
        lock(&self.faults).push(fault);
    }

    /// What is to happen to this rank as it begins this step; each fault once.
    pub fn take_fault(&self, step: u64) -> Option<Fault> {
        let mut faults = lock(&self.faults);
        let due = faults.iter().position(|fault| fault.step <= step)?;
        Some(faults.swap_remove(due))
    }

    /// Whether this is to happen to this rank before its first step; once.
    pub fn take_early_fault(&self, kind: Mischief) -> bool {
        let mut faults = lock(&self.faults);
        let due = faults.iter().position(|fault| fault.kind == kind && fault.step == 0);
        due.map(|due| faults.swap_remove(due)).is_some()
    }

    /// The transport of this generation: what it moves is progress, and a verdict ends its transfers.
    pub fn attach(&self, transport: &dyn Transport, generation: u32) {
        let before = std::mem::replace(&mut *lock(&self.activity), transport.activity().clone());
        self.work.fetch_add(before.moved(), Ordering::Relaxed);
        *lock(&self.abort) = Some(transport.abort_handle());
        if self.verdict().is_some() || self.interruption(generation).is_some() {
            self.wake();
        }
    }

    /// Who hears at once what the program meets.
    pub fn call_witness(&self, witness: Witness) {
        *lock(&self.witness) = Some(witness);
    }

    /// The program met a failure in an operation with others; what it is told about the reason comes later.
    pub fn testify(&self, error: &Error) {
        self.testify_for(error, None);
    }

    /// The same, if this rank has it from another one.
    pub fn testify_for(&self, error: &Error, source: Option<usize>) {
        if let Some(witness) = lock(&self.witness).as_ref() {
            witness(error, &self.pulse(), source);
        }
    }

    /// The job cannot go on, and why. The first verdict stands.
    pub fn condemn(&self, error: Error) {
        lock(&self.verdict).get_or_insert(error);
        self.wake();
    }

    /// A generation of the group is over, and why; the job is not.
    pub fn interrupt(&self, generation: u32, why: Error) {
        let mut over = lock(&self.over);
        if over.as_ref().is_none_or(|(known, _)| *known < generation) {
            *over = Some((generation, why));
        }
        drop(over);
        self.wake();
    }

    /// Why this generation is over, if it is.
    pub fn interruption(&self, generation: u32) -> Option<Error> {
        lock(&self.over).as_ref().filter(|(over, _)| *over >= generation).map(|(_, why)| why.clone())
    }

    fn wake(&self) {
        if let Some(abort) = lock(&self.abort).as_ref() {
            abort.abort();
        }
    }

    /// The verdict, if there is one.
    pub fn verdict(&self) -> Option<Error> {
        lock(&self.verdict).clone()
    }

    /// The verdict on the job or, failing that, on this generation of the group.
    pub fn ending(&self, generation: u32) -> Option<Error> {
        self.verdict().or_else(|| self.interruption(generation))
    }

    /// The same, waiting a little for it: whoever sees a neighbour vanish learns the reason a moment later.
    pub fn await_ending(&self, generation: u32, patience: Duration) -> Option<Error> {
        if lock(&self.witness).is_none() {
            // Nobody heard of it, so nobody will say more.
            return self.ending(generation);
        }
        let end = Instant::now() + patience;
        loop {
            if let Some(error) = self.ending(generation) {
                return Some(error);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
