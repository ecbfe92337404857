//! Runs a schedule on a transport, in place, to its end.

use super::operation::{Operation, Progress};
use super::operator::{Element, Operator};
use super::schedule::Schedule;
use crate::transport::{Company, Fault, Tag, Transport, Vigil};
use std::time::Duration;

/// Runs schedules; keeps its memory between runs, so that no run after the first allocates any.
#[derive(Default)]
pub struct Executor {
    operation: Operation,
}

impl Executor {
    /// An executor without memory; it grows with the first run.
    pub fn new() -> Executor {
        Executor::default()
    }

    /// Runs `schedule` over `buffer`, all of it within `deadline`; all ranks must call it with schedules of the same
    /// collective, the same tag and the same buffer length (a different length is a protocol fault).
    ///
    /// After a fault the buffer's contents are unspecified.
    pub fn run<T: Element>(
        &mut self,
        schedule: &Schedule,
        transport: &mut dyn Transport,
        tag: Tag,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
        deadline: Duration,
    ) -> Result<(), Fault> {
        let mut vigil = Vigil::new(transport.now(), deadline);
        self.operation.start::<T>(schedule, transport, tag, buffer.len())?;
        loop {
            let progress = self.operation.progress(transport, buffer, operator, Company::Alone)?;
            if progress == Progress::Done {
                return Ok(());
            }
            transport.attend(&mut vigil, self.operation.wanted(), progress == Progress::Moved)?;
        }
    }
}
