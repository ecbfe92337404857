//! Where the ranks of one host meet: what each says of itself at the head of its arena, and how the others wait for it.

use crate::host::Segment;
use crate::protocol::{Counter, Phases};
use crate::transport::{Cause, Fault, Interest, Tag, Transport, Vigil};
use crate::wait::is_crowded;
use std::time::Duration;

/// What a rank says of itself, all in one line of a cache: phases it has ended, and the operation it is in.
const PHASES: usize = 0;
const OPERATION: usize = 8;
const COUNT: usize = 16;
const TENSOR: usize = 24;

/// Glances at the others between two looks at deadlines, deaths and orders to stop: most meetings are over before the
/// first. Where ranks are more than cores, each glance costs a switch to another one.
const GLANCES: usize = 24;
const CROWDED_GLANCES: usize = 4;

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
        let phase = Phases { mine: arenas[self.rank].word(PHASES) }.end();
        wait.transport.nudge();
        let mut missing = 0;
        let mut all_here = || {
            while missing < arenas.len() && Phases::has_ended(arenas[missing].word(PHASES), phase) {
                missing += 1;
            }
            missing == arenas.len()
        };
        loop {
            for _ in 0..if self.crowded { CROWDED_GLANCES } else { GLANCES } {
                if all_here() {
                    wait.met();
                    return Ok(());
                }
                if self.crowded { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
            for (arena, wanted) in arenas.iter().zip(&mut self.wanted) {
                wanted.read = !Phases::has_ended(arena.word(PHASES), phase);
            }
            wait.attend(&self.wanted)?;
        }
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
