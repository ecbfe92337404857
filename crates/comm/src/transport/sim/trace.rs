//! The events of a simulation, in order.

use super::SimulatedFaultKind;
use std::fmt;
use std::time::Duration;

/// All events of a run. Two runs are identical if their traces are equal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In the order of virtual time, then of execution.
    pub entries: Vec<TraceEntry>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TraceEntry {
    /// Virtual time.
    pub time: Duration,
    pub event: TraceEvent,
}

#[derive(Clone, Debug, PartialEq)]
pub enum TraceEvent {
    /// The rank is scheduled.
    Run(usize),
    Sent {
        from: usize,
        to: usize,
        bytes: usize,
        checksum: u32,
    },
    /// The rank `from` ends its stream to `to`.
    Closed {
        from: usize,
        to: usize,
    },
    Fault(SimulatedFaultKind),
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14.6} ms  ", self.time.as_secs_f64() * 1e3)?;
        match &self.event {
            TraceEvent::Run(rank) => write!(f, "rank {rank} runs"),
            TraceEvent::Sent { from, to, bytes, checksum } => {
                write!(f, "{from} -> {to}  {bytes} bytes {checksum:08x}")
            }
            TraceEvent::Closed { from, to } => write!(f, "{from} -> {to}  closed"),
            TraceEvent::Fault(kind) => write!(f, "{kind:?}"),
        }
    }
}
