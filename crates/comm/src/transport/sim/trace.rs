//! What happened in a simulation, in order.

use super::Kind;
use std::fmt;
use std::time::Duration;

/// Everything that happened, in order. Two runs are the same if their traces are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In the order of virtual time, and of what one rank did after another at the same moment.
    pub entries: Vec<Entry>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When, in virtual time.
    pub time: Duration,
    /// What.
    pub happening: Happening,
}

/// The things that happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A rank goes on.
    Run(usize),
    /// Bytes leave a rank.
    Sent {
        /// Who sends.
        from: usize,
        /// Who will receive.
        to: usize,
        /// How many.
        bytes: usize,
        /// Their checksum.
        checksum: u32,
    },
    /// A rank ends its stream to another.
    Closed {
        /// Whose end.
        from: usize,
        /// Who will notice.
        to: usize,
    },
    /// Something goes wrong.
    Mishap(Kind),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14.6} ms  ", self.time.as_secs_f64() * 1e3)?;
        match &self.happening {
            Happening::Run(rank) => write!(f, "rank {rank} goes on"),
            Happening::Sent { from, to, bytes, checksum } => {
                write!(f, "{from} -> {to}  {bytes} bytes {checksum:08x}")
            }
            Happening::Closed { from, to } => write!(f, "{from} -> {to}  closed"),
            Happening::Mishap(kind) => write!(f, "{kind:?}"),
        }
    }
}
