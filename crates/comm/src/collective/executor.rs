//! Runs a schedule on a transport, in place, to completion.

use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::partition::Partition;
use super::schedule::Schedule;
use crate::transport::{MatchMode, Tag, Transport, TransportError, WaitState};
use std::time::Duration;

/// Runs schedules; reuses its memory, so that only the first run allocates.
#[derive(Default)]
pub struct Executor {
    operation: Operation,
}

impl Executor {
    pub fn new() -> Executor {
        Executor::default()
    }

    /// Runs `schedule` over `buffer` within `deadline`. All ranks must call it with schedules of the same collective, the
    /// same tag and the same buffer length (a different length is a protocol error).
    ///
    /// After an error the buffer's contents are unspecified.
    pub fn run<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &mut dyn Transport,
        tag: Tag,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), TransportError> {
        self.operation.start::<T>(schedule, transport, tag, buffer.len())?;
        self.finish(transport, buffer, operator, deadline)
    }

    /// As [`Executor::run`], for chunks of any lengths.
    pub(super) fn run_ragged<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &mut dyn Transport,
        tag: Tag,
        (buffer, partition): (&mut [T], Partition<'_>),
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), TransportError> {
        self.operation.start_ragged::<T>(schedule, transport, tag, partition)?;
        self.finish(transport, buffer, operator, deadline)
    }

    fn finish<T: Element>(
        &mut self,
        transport: &mut dyn Transport,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), TransportError> {
        let mut wait_state = WaitState::new(transport.now(), deadline);
        loop {
            let progress = self.operation.progress(transport, buffer, operator, MatchMode::Exact)?;
            if progress == Progress::Done {
                return Ok(());
            }
            transport.wait(&mut wait_state, self.operation.wanted(), progress == Progress::Moved)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::schedule::{Action, Chunks, ReceiveChunks, SendChunks, Step};
    use super::super::{Sum, pairwise};
    use super::*;
    use crate::transport::{Cause, mesh};

    const TAG: Tag = Tag { generation: 0, operation: 0, group: 0, tensor: 0 };

    fn refusal(schedule: &Schedule, buffer: &mut [f32]) {
        let mut ranks = mesh(2);
        let run = Executor::new().run(schedule, &mut ranks[0], TAG, buffer, &Sum, Duration::ZERO);
        assert!(
            matches!(run, Err(TransportError { peer: Some(0), cause: Cause::Protocol(_), .. })),
            "{run:?}"
        );
    }

    #[test]
    fn invalid_schedules_are_refused() {
        let copy = |chunk| ReceiveChunks::new(1, Chunks::one(chunk), Action::Copy);
        let send = |chunk| SendChunks { to: 1, chunks: Chunks::one(chunk) };
        let overwritten = Step { sends: vec![send(0)], receives: vec![copy(0)] };
        let twice = Step { sends: vec![], receives: vec![copy(0), copy(0)] };
        let unknown = Step { sends: vec![send(7)], receives: vec![] };
        for step in [overwritten, twice, unknown] {
            refusal(&Schedule { chunks: 2, steps: vec![step] }, &mut [0.0; 8]);
        }
        // Exchanged chunks must have the same length.
        refusal(&pairwise::all_to_all(0, 2), &mut [0.0; 7]);
    }

    #[test]
    fn additions_follow_the_order_of_the_list() {
        // Two large numbers cancel; the small one survives only if it is added last.
        let receive = |from| ReceiveChunks::new(from, Chunks::one(0), Action::Reduce);
        let steps = |rank, order: [usize; 2]| match rank {
            0 => Step { sends: vec![], receives: order.map(receive).to_vec() },
            _ => Step::sending(0, Chunks::one(0)),
        };
        for (order, sum) in [([1, 2], 1.0), ([2, 1], 0.0)] {
            std::thread::scope(|scope| {
                for (rank, mut transport) in mesh(3).into_iter().enumerate() {
                    let schedule = Schedule { chunks: 1, steps: vec![steps(rank, order)] };
                    scope.spawn(move || {
                        let mut buffer = [[-1e8f32, 1e8, 1.0][rank]];
                        let deadline = Duration::from_secs(60);
                        Executor::new()
                            .run(&schedule, &mut transport, TAG, &mut buffer, &Sum, deadline)
                            .expect("a run");
                        assert!(rank > 0 || buffer == [sum]);
                        transport.close();
                    });
                }
            });
        }
    }
}
