//! Background tasks: work in a thread of its own while the rank's program continues.
//!
//! Programs start and await them through their rank. With a virtual clock a task runs at once, in the caller's thread
//! and in no time, so that simulations stay deterministic.

use crate::rank::{Emit, Rank};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;
use thalweg_core::clock::Clock;
use thalweg_core::event::Event;
use thalweg_core::{Error, Kind, Result};

/// How often a waiting rank checks whether the job was aborted.
const ABORT_CHECK: Duration = Duration::from_millis(20);

/// A running task and its result.
pub struct BackgroundTask<T> {
    name: String,
    result: Receiver<T>,
}

/// The parts of a rank that a background task may use.
pub struct TaskContext {
    clock: Arc<dyn Clock>,
    emit: Emit,
}

impl TaskContext {
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    pub fn emit(&self, event: Event) {
        (self.emit)(event);
    }
}

impl<T> BackgroundTask<T> {
    /// The result, if the task has ended.
    pub fn poll(&self) -> Result<Option<T>> {
        match self.result.try_recv() {
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.ended_without_result()),
        }
    }

    fn ended_without_result(&self) -> Error {
        Error::internal(format!("{} ended without a result", self.name))
    }
}

impl Rank {
    /// Starts a task; `name` is shown while the rank waits for it.
    pub fn start_background_task<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&TaskContext) -> T + Send + 'static,
    ) -> Result<BackgroundTask<T>> {
        let (sender, result) = sync_channel(1);
        let context =
            TaskContext { clock: Arc::clone(&self.parts.clock), emit: Arc::clone(&self.parts.emit) };
        // Fails if the task was dropped before it ended.
        let run = move || drop(sender.send(work(&context)));
        if self.parts.clock.is_virtual() {
            run();
        } else {
            let thread = std::thread::Builder::new().name("background".into()).spawn(run);
            thread.map_err(|error| Error::io(format!("no thread for {name}"), &error))?;
        }
        Ok(BackgroundTask { name: name.into(), result })
    }

    /// Waits for the result up to `prepare_deadline`, as long as peers would wait for this rank.
    pub fn await_background_task<T>(&mut self, task: &BackgroundTask<T>) -> Result<T> {
        self.begin_preparation(&task.name);
        let (start, timeout) = (self.now(), self.parts.prepare_deadline);
        loop {
            match task.result.recv_timeout(ABORT_CHECK) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(task.ended_without_result()),
                Err(RecvTimeoutError::Timeout) => self.check()?,
            }
            if self.now().saturating_sub(start) > timeout {
                let message = format!("rank {}: {} takes longer than {timeout:?}", self.index(), task.name);
                return Err(Error::new(Kind::Io, message).hint(
                    "is the disk stuck? choose another folder with --out, or raise fault.prepare_deadline",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::in_memory;

    #[test]
    fn the_result_comes_once_and_the_rank_continues_meanwhile() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        let (open, gate) = sync_channel::<()>(0);
        let task = rank.start_background_task("a test", move |_| gate.recv().is_ok()).unwrap();
        assert_eq!(task.poll().unwrap(), None);
        open.send(()).unwrap();
        assert!(rank.await_background_task(&task).unwrap());
    }

    #[test]
    fn a_stuck_task_is_named() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        rank.parts.prepare_deadline = Duration::from_millis(30);
        let (_open, gate) = sync_channel::<()>(0);
        let stuck = rank
            .start_background_task("writing the checkpoint of step 3", move |_| gate.recv().is_ok())
            .unwrap();
        let error = rank.await_background_task(&stuck).unwrap_err();
        assert!(
            error.message.starts_with("rank 0: writing the checkpoint of step 3 takes longer"),
            "{error}"
        );
        let lost = rank.start_background_task("a test", |_| std::panic::resume_unwind(Box::new(()))).unwrap();
        let error = rank.await_background_task::<()>(&lost).unwrap_err();
        assert!(error.message.contains("a test ended without a result"), "{error}");
    }

    #[test]
    fn an_abort_ends_the_wait() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        let (_open, gate) = sync_channel::<()>(0);
        let stuck = rank.start_background_task("a test", move |_| gate.recv().is_ok()).unwrap();
        rank.parts.rank_status.abort(Error::internal("rank 1 is gone"));
        assert_eq!(rank.await_background_task(&stuck).unwrap_err().message, "rank 1 is gone");
    }
}
