//! What goes wrong, who comes and goes, and when: data, so that a seed can draw it and a test can name it.

use super::Forgery;
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
    /// A rank stops progressing in its next wait for others. Its process lives, and its heartbeat goes on, until somebody
    /// [kills](super::Seat::kill) it.
    Livelock {
        /// Which.
        rank: usize,
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
    /// Nothing gets from one rank to another any more, and neither is told; the other direction still works, though no new
    /// connection can be made over it.
    CutOneWay {
        /// Whose bytes are lost.
        from: usize,
        /// Who does not get them.
        to: usize,
    },
    /// Bytes that nobody sent arrive at a rank, apparently from another.
    Garbage {
        /// The apparent sender.
        from: usize,
        /// The receiver.
        to: usize,
    },
    /// A rank sends another a frame that is whole and wrong.
    Forge {
        /// The liar.
        from: usize,
        /// The receiver.
        to: usize,
        /// What is wrong about it.
        forgery: Forgery,
    },
    /// A rank tells whoever leads the group what cannot be true.
    Lie {
        /// Which.
        rank: usize,
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
