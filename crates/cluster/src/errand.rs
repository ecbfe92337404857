//! Errands: what a rank has done on the side, by a thread of its own, while its program goes on.
//!
//! Programs start and await them through their rank, as they do everything that takes time. In simulated time nothing
//! happens on the side: the errand is done at once and takes none, so that a simulation stays the same on every repeat.

use crate::rank::{Emit, Rank};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;
use thalweg_core::clock::Clock;
use thalweg_core::event::Event;
use thalweg_core::{Error, Kind, Result};

/// How often somebody who waits looks whether the job is over.
const GLANCE: Duration = Duration::from_millis(20);

/// Something that is being done.
pub struct Errand<T> {
    name: String,
    answer: Receiver<T>,
}

/// What a rank lends to whoever runs its errand.
pub struct Aside {
    clock: Arc<dyn Clock>,
    emit: Emit,
}

impl Aside {
    /// The rank's time.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Tells the world, in the rank's name.
    pub fn emit(&self, event: Event) {
        (self.emit)(event);
    }
}

impl<T> Errand<T> {
    /// The answer, if it is there.
    pub fn look(&self) -> Result<Option<T>> {
        match self.answer.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(self.unanswered()),
        }
    }

    fn unanswered(&self) -> Error {
        Error::internal(format!("{} ended without an answer", self.name))
    }
}

impl Rank {
    /// Has something done on the side; `name` is for those who will wait for it.
    pub fn run_errand<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Aside) -> T + Send + 'static,
    ) -> Result<Errand<T>> {
        let (sender, answer) = sync_channel(1);
        let aside = Aside { clock: Arc::clone(&self.parts.clock), emit: Arc::clone(&self.parts.emit) };
        // Whoever does not want the answer any more has dropped the errand.
        let run = move || drop(sender.send(work(&aside)));
        if self.parts.clock.is_virtual() {
            run();
        } else {
            let thread = std::thread::Builder::new().name("errand".into()).spawn(run);
            thread.map_err(|error| Error::io(format!("no thread for {name}"), &error))?;
        }
        Ok(Errand { name: name.into(), answer })
    }

    /// The answer, waiting for it as long as others would wait for this rank: until `prepare_deadline`.
    pub fn await_errand<T>(&mut self, errand: &Errand<T>) -> Result<T> {
        self.begin_preparation(&errand.name);
        let (start, patience) = (self.now(), self.parts.prepare_deadline);
        loop {
            match errand.answer.recv_timeout(GLANCE) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(errand.unanswered()),
                Err(RecvTimeoutError::Timeout) => self.check()?,
            }
            if self.now().saturating_sub(start) > patience {
                let message =
                    format!("rank {}: {} takes longer than {patience:?}", self.index(), errand.name);
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
    fn the_answer_comes_once_and_the_rank_goes_on_meanwhile() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        let (open, gate) = sync_channel::<()>(0);
        let errand = rank.run_errand("a test", move |_| gate.recv().is_ok()).unwrap();
        assert_eq!(errand.look().unwrap(), None);
        open.send(()).unwrap();
        assert!(rank.await_errand(&errand).unwrap());
    }

    #[test]
    fn one_that_does_not_come_back_is_named() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        rank.parts.prepare_deadline = Duration::from_millis(30);
        let (_open, gate) = sync_channel::<()>(0);
        let stuck =
            rank.run_errand("writing the checkpoint of step 3", move |_| gate.recv().is_ok()).unwrap();
        let error = rank.await_errand(&stuck).unwrap_err();
        assert!(
            error.message.starts_with("rank 0: writing the checkpoint of step 3 takes longer"),
            "{error}"
        );
        let lost = rank.run_errand("a test", |_| std::panic::resume_unwind(Box::new(()))).unwrap();
        let error = rank.await_errand::<()>(&lost).unwrap_err();
        assert!(error.message.contains("a test ended without an answer"), "{error}");
    }

    #[test]
    fn a_verdict_ends_the_wait() {
        let mut rank = in_memory(1, Duration::from_secs(1)).remove(0);
        let (_open, gate) = sync_channel::<()>(0);
        let stuck = rank.run_errand("a test", move |_| gate.recv().is_ok()).unwrap();
        rank.parts.beacon.condemn(Error::internal("rank 1 is gone"));
        assert_eq!(rank.await_errand(&stuck).unwrap_err().message, "rank 1 is gone");
    }
}
