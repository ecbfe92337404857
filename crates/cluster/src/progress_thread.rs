//! A progress thread: moves a rank's messages and nonblocking operations while its program computes without a call.
//!
//! The rank lends its connections to the thread for a computation and takes them back, so nothing else takes a lock:
//!
//! ```text
//! program    lend ......... computes ......... take back | all calls as without the thread
//! thread          advance, sleep, advance, ...           | sleeps
//! ```
//!
//! It polls, as there is no event for "the program wants its connections back": with messages that move it runs on, else it
//! sleeps between two attempts.

use crate::rank::Rank;
use crate::rendezvous::shm_setup::ConnectedTransport;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thalweg_comm::collective::NonblockingTransport;
use thalweg_core::{Error, Result};

/// Time between two attempts if nothing moves.
const INTERVAL: Duration = Duration::from_micros(200);

/// Dropped with the connections of a rank, it closes them.
pub(crate) struct ProgressThread {
    shared: Arc<Shared>,
    /// In the place of what is lent: a group of this rank alone.
    alone: Option<NonblockingTransport>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the program waits for its connections.
    wanted: AtomicBool,
}

#[derive(Default)]
struct State {
    lent: Option<NonblockingTransport>,
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.ended {
            let lent = state.lent.as_mut().filter(|_| !self.wanted.load(Ordering::Acquire));
            state = match lent.map(NonblockingTransport::advance) {
                Some(Ok(true)) => state,
                Some(Ok(false)) => {
                    let waited = self.changed.wait_timeout(state, INTERVAL);
                    waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
                }
                // The transport keeps its error: the program's next call fails with it.
                Some(Err(_)) | None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl ProgressThread {
    fn start() -> Result<ProgressThread> {
        let shared = Arc::new(Shared::default());
        let run = {
            let shared = Arc::clone(&shared);
            move || shared.run()
        };
        let thread = std::thread::Builder::new().name("progress".into()).spawn(run);
        let thread = thread.map_err(|error| Error::io("cannot start the progress thread", &error))?;
        let alone = Some(ConnectedTransport::alone().transport.into());
        Ok(ProgressThread { shared, alone, thread: Some(thread) })
    }

    fn lend(&mut self, transport: &mut NonblockingTransport) {
        let Some(alone) = self.alone.take() else { return };
        let mut state = self.shared.lock();
        self.shared.wanted.store(false, Ordering::Release);
        state.lent = Some(std::mem::replace(transport, alone));
        self.shared.changed.notify_one();
    }

    fn take_back(&mut self, transport: &mut NonblockingTransport) {
        self.shared.wanted.store(true, Ordering::Release);
        if let Some(lent) = self.shared.lock().lent.take() {
            self.alone = Some(std::mem::replace(transport, lent));
        }
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.shared.wanted.store(true, Ordering::Release);
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
        // It has nothing to say, and a panic in it has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Rank {
    /// Starts a thread that moves messages and nonblocking operations during [`Rank::lend_connections`]. Not on simulated
    /// ranks: one of them runs at a time.
    pub fn start_progress_thread(&mut self) -> Result<()> {
        if self.progress_thread.is_none() {
            self.progress_thread = Some(ProgressThread::start()?);
        }
        Ok(())
    }

    /// Lends the connections to the progress thread, if there is one and something to move. Until
    /// [`Rank::take_connections_back`] this rank must not communicate, and is a group of one.
    pub fn lend_connections(&mut self) {
        if let Some(thread) = self.progress_thread.as_mut().filter(|_| self.parts.transport.has_background())
        {
            thread.lend(&mut self.parts.transport);
        }
    }

    pub fn take_connections_back(&mut self) {
        if let Some(thread) = &mut self.progress_thread {
            thread.take_back(&mut self.parts.transport);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::threads;
    use crate::{MessageTag, SendOutcome};
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);
    const NUMBERS: MessageTag = MessageTag { number: 1, name: "numbers" };

    /// Rank 0 computes until rank 1 has got its message and it has rank 1's. Both are longer than a link holds.
    #[test]
    fn messages_move_while_a_program_makes_no_call() {
        let (delivered, is_delivered) = mpsc::channel();
        let (delivered, is_delivered) = (Mutex::new(delivered), Mutex::new(is_delivered));
        let length = 3 << 20;
        let ended = threads::run(2, 0, |rank| {
            rank.open_messages(4 << 20);
            rank.start_progress_thread()?;
            let peer = 1 - rank.index();
            let message = vec![rank.index() as u8; length];
            for _ in 0..3 {
                if rank.index() == 0 {
                    assert_eq!(rank.world().send(peer, NUMBERS, message.clone())?, SendOutcome::Queued);
                    rank.lend_connections();
                    let waited = is_delivered.lock().unwrap().recv_timeout(LONG);
                    rank.take_connections_back();
                    waited.expect("the messages have moved");
                    assert_eq!(
                        rank.world().try_receive(1, NUMBERS)?.map(|message| message.bytes),
                        Some(vec![1; length])
                    );
                } else {
                    assert_eq!(rank.world().receive(0, NUMBERS)?.bytes, vec![0; length]);
                    assert_eq!(rank.world().send(peer, NUMBERS, message.clone())?, SendOutcome::Queued);
                    rank.world().flush_messages()?;
                    delivered.lock().unwrap().send(()).unwrap();
                }
                assert_eq!((rank.size(), rank.index()), (2, 1 - peer));
                rank.world().barrier("the round")?;
            }
            Ok(())
        });
        assert!(
            ended.iter().all(|ended| ended.result == Ok(())),
            "{:?} {:?}",
            ended[0].result,
            ended[1].result
        );
    }

    /// A rank is lost while another computes: its next call fails, and names it.
    #[test]
    fn a_loss_during_a_computation_is_the_error_of_the_next_call() {
        let ended = threads::run(2, 0, |rank| {
            rank.open_messages(1000);
            rank.start_progress_thread()?;
            rank.world().barrier("the start")?;
            if rank.index() == 1 {
                return Err(thalweg_core::Error::internal("an end"));
            }
            rank.lend_connections();
            std::thread::yield_now();
            rank.take_connections_back();
            rank.world().receive(1, NUMBERS).map(drop)
        });
        let error = ended[0].result.as_ref().unwrap_err();
        assert_eq!(error.culprit.as_ref().map(|culprit| culprit.rank), Some(1), "{error}");
    }
}
