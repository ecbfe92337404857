//! What goes wrong, who comes and goes, and when: data, so that a seed can draw it and a test can name it.

use std::time::Duration;

/// Something that goes wrong at a moment of virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct Mishap {
    /// When.
    pub at: Duration,
    /// What.
    pub kind: Kind,
}

/// What can go wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A rank's process dies; its connections close.
    Kill {
        /// Whose.
        rank: usize,
    },
    /// A rank stands still for a while, its connections open.
    Stop {
        /// Which.
        rank: usize,
        /// How long.
        duration: Duration,
    },
    /// A rank computes slower from now on.
    Slow {
        /// Which.
        rank: usize,
        /// By what factor.
        factor: f64,
    },
    /// Nothing gets through between two ranks any more, and neither is told.
    Cut {
        /// One end.
        one: usize,
        /// The other.
        other: usize,
    },
    /// Bytes that nobody sent arrive at a rank, apparently from another.
    Garbage {
        /// The apparent sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// A rank that was not there comes and wants to work with the others.
    Join {
        /// Its number, beyond those of the beginning.
        rank: usize,
    },
    /// A rank is asked to leave in good order.
    Leave {
        /// Which.
        rank: usize,
    },
}

impl Mishap {
    /// A mishap at a moment.
    pub fn at(at: Duration, kind: Kind) -> Mishap {
        Mishap { at, kind }
    }
}
