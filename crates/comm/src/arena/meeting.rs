//! Where the ranks of one host meet: what each says of itself at the head of its arena, and how the others wait for it.

use crate::host::Segment;
use crate::linux::current_core;
use crate::protocol::{Counter, Phases};
use crate::transport::{Cause, Fault, Interest, Tag, Transport, Vigil};
use crate::wait::is_crowded;
use std::time::Duration;

/// What a rank says of itself, all in one line of a cache: phases it has ended, the operation it is in, and on which core
/// it runs if there are more ranks than cores.
const PHASES: usize = 0;
const OPERATION: usize = 8;
const COUNT: usize = 16;
const TENSOR: usize = 24;
const CORE: usize = 32;

/// Glances at the others without a pause, a few microseconds of them.
const GLANCES: usize = 100;

/// How often the core is offered to other ranks, where they are more than cores, between two looks at deadlines, deaths
/// and orders to stop: most meetings are over before the first.
const OFFERS: usize = 4;

/// The waiting of one operation, with as many meetings as it needs: all of them together have its deadline.
pub(super) struct Wait<'a> {
    transport: &'a mut dyn Transport,
    deadline: Duration,
    /// Begun by the first meeting that the others do not come to at once.
    vigil: Option<Vigil>,
    /// How long it had lasted when all had last met, if they have: whoever is missing after that has come, and is slow.
    met: Option<Duration>,
}

impl<'a> Wait<'a> {
    /// Of an operation that begins now.
    pub(super) fn new(transport: &'a mut dyn Transport, deadline: Duration) -> Wait<'a> {
        Wait { transport, deadline, vigil: None, met: None }
    }

    /// Until another look makes sense; ends with a fault like any wait of the transport.
    fn attend(&mut self, wanted: &[Interest]) -> Result<(), Fault> {
        let vigil = self.vigil.get_or_insert_with(|| Vigil::new(self.transport.now(), self.deadline));
        let attended = self.transport.attend(vigil, wanted, false);
        attended.map_err(|fault| self.met.map_or(fault.clone(), |met| fault.after_entering(met)))
    }

    /// All have met.
    fn met(&mut self) {
        self.transport.activity().advance();
        self.met = Some(self.vigil.as_ref().map_or(Duration::ZERO, Vigil::waited));
    }
}

/// How one rank meets the others.
pub(super) struct Meeting {
    rank: usize,
    /// By rank: whether it has yet to come.
    wanted: Vec<Interest>,
    /// Whether there are more ranks than cores.
    crowded: bool,
}

impl Meeting {
    /// For a rank of a host with so many.
    pub(super) fn of(rank: usize, world: usize) -> Meeting {
        Meeting { rank, wanted: vec![Interest::default(); world], crowded: is_crowded(world) }
    }

    /// The first meeting of an operation: all must mean the same one.
    pub(super) fn open(
        &mut self,
        arenas: &[Segment],
        tag: Tag,
        count: usize,
        wait: &mut Wait<'_>,
    ) -> Result<(), Fault> {
        let mine = &arenas[self.rank];
        mine.word(OPERATION).release(tag.operation);
        mine.word(COUNT).release(count as u64);
        mine.word(TENSOR).release(u64::from(tag.tensor));
        self.hold(arenas, wait)?;
        compare(arenas, tag, count)
    }

    /// Ends a phase, and waits until all have.
    pub(super) fn hold(&mut self, arenas: &[Segment], wait: &mut Wait<'_>) -> Result<(), Fault> {
        let mine = &arenas[self.rank];
        let core = if self.crowded { current_core() } else { None };
        mine.word(CORE).release(core.unwrap_or(u64::MAX));
        let mut roll = Roll { arenas, phase: Phases { mine: mine.word(PHASES) }.end(), missing: 0 };
        wait.transport.nudge();
        loop {
            for _ in 0..if self.crowded { OFFERS } else { 1 } {
                // Who needs this very core does not come while it is kept.
                let glances = if core.is_some_and(|core| roll.lacks_one_on(core)) { 1 } else { GLANCES };
                for _ in 0..glances {
                    if roll.is_complete() {
                        wait.met();
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                if self.crowded {
                    std::thread::yield_now();
                }
            }
            for (peer, wanted) in self.wanted.iter_mut().enumerate() {
                wanted.read = !roll.has_come(peer);
            }
            wait.attend(&self.wanted)?;
        }
    }
}

/// Who has come to a meeting.
struct Roll<'a> {
    arenas: &'a [Segment],
    /// The phase that it ends.
    phase: u64,
    /// The first that had not come yet when it was last looked.
    missing: usize,
}

impl Roll<'_> {
    fn has_come(&self, rank: usize) -> bool {
        Phases::has_ended(self.arenas[rank].word(PHASES), self.phase)
    }

    fn is_complete(&mut self) -> bool {
        while self.missing < self.arenas.len() && self.has_come(self.missing) {
            self.missing += 1;
        }
        self.missing == self.arenas.len()
    }

    /// Whether one that has not come was on that core when it came to the meeting before.
    fn lacks_one_on(&self, core: u64) -> bool {
        (self.missing..self.arenas.len())
            .any(|rank| self.arenas[rank].word(CORE).value() == core && !self.has_come(rank))
    }
}

/// Whether all are in the same operation.
fn compare(arenas: &[Segment], tag: Tag, count: usize) -> Result<(), Fault> {
    for (peer, arena) in arenas.iter().enumerate() {
        let (theirs, length) = (arena.word(OPERATION).value(), arena.word(COUNT).value());
        let tensor = arena.word(TENSOR).value();
        if (theirs, tensor, length) != (tag.operation, u64::from(tag.tensor), count as u64) {
            let what = format!(
                "expected {count} elements in operation {}, tensor {:08x}; got {length} in operation {theirs}, tensor {tensor:08x}",
                tag.operation, tag.tensor
            );
            let same = (theirs, tensor) == (tag.operation, u64::from(tag.tensor));
            let cause = if same { Cause::Protocol(what) } else { Cause::Elsewhere(what) };
            return Err(Fault::of(peer, cause));
        }
    }
    Ok(())
}
