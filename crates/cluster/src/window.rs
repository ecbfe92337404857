//! Windows: shared memory of the ranks of one host that its owner rewrites at any time and the others read.
//!
//! Its owner publishes through the [`Window`] itself; reads are here, as they may wait for an owner that is writing. Windows
//! are those of the world: on a smaller group these operations fail. Where two ranks share no memory (on different hosts, on
//! tcp and mpi, in simulation), they send messages instead.

use crate::group::{Group, Operation};
use std::ops::Range;
use std::time::Duration;
use thalweg_comm::arena::{OperationContext, Versions, Window, WindowRead};
use thalweg_comm::transport::TransportError;
use thalweg_core::{Error, Result};

/// What [`Group::require_world`] names in its error.
const WINDOW: &str = "a window";

impl Group<'_> {
    /// Allocates `length` elements of shared memory for this rank, which the others of its host may read, and maps theirs;
    /// lengths may differ. All ranks must call it, whatever they share. The inner error says why this rank shares memory with
    /// no other.
    pub fn open_window(&mut self, name: &str, length: usize) -> Result<Result<Window, String>> {
        self.require_world(WINDOW)?;
        let (opened, _) = self.operate("opening", name, |operation| {
            let Operation { parts, tag, deadline, .. } = operation;
            let context = OperationContext { transport: parts.transport.as_mut(), tag, deadline };
            Window::open(&parts.local_peers, length, context)
        })?;
        if let Ok(window) = &opened {
            self.rank.window_traffic.push(window.traffic());
        }
        Ok(opened)
    }

    /// Copies elements of another rank's region, from `start` on. Only this rank takes part.
    pub fn read_window(
        &mut self,
        name: &str,
        window: &mut Window,
        from: usize,
        start: usize,
        into: &mut [f32],
    ) -> Result<Versions> {
        let range = start..start + into.len();
        self.run_on_window("reading", name, window, from, &range, |window, context| {
            window.read(from, start, into, context.transport, context.deadline)
        })
    }

    /// Adds elements of another rank's region, from `start` on, to a sum.
    pub fn add_window(
        &mut self,
        name: &str,
        window: &mut Window,
        from: usize,
        start: usize,
        sum: &mut [f32],
    ) -> Result<Versions> {
        let range = start..start + sum.len();
        self.run_on_window("adding", name, window, from, &range, |window, context| {
            let add = |piece: Range<usize>, values: &[f32], _| {
                let sum = &mut sum[piece.start - start..piece.end - start];
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            };
            window.visit(from, range.clone(), add, context.transport, context.deadline)
        })
    }

    /// Shows each block of another rank's region to `visit`: its range, its values, which are in the cache, and its version.
    /// The time of the visits is booked as computing.
    pub fn visit_window(
        &mut self,
        name: &str,
        window: &mut Window,
        from: usize,
        range: Range<usize>,
        mut visit: impl FnMut(Range<usize>, &[f32], u64),
    ) -> Result<Versions> {
        let (clock, mut worked) = (std::sync::Arc::clone(&self.rank.parts.clock), Duration::ZERO);
        let versions = self.run_on_window("reading", name, window, from, &range, |window, context| {
            let timed = |piece: Range<usize>, values: &[f32], version| {
                let begun = clock.now();
                visit(piece, values, version);
                worked += clock.now() - begun;
            };
            window.visit(from, range.clone(), timed, context.transport, context.deadline)
        })?;
        self.rank.book_work(worked);
        Ok(versions)
    }

    /// Whether this rank may share memory with another one.
    pub fn has_local_peers(&self) -> bool {
        self.rank.parts.local_peers.iter().any(Option::is_some)
    }

    fn run_on_window(
        &mut self,
        kind: &str,
        name: &str,
        window: &mut Window,
        from: usize,
        range: &Range<usize>,
        run: impl FnOnce(&mut Window, OperationContext<'_>) -> Result<Versions, TransportError>,
    ) -> Result<Versions> {
        self.check()?;
        let title = format!("{kind} of {name}");
        let member = self.rank.member_id_at(from);
        let refused = |what: String| Err(Error::internal(format!("{title} of rank {member}: {what}")));
        if window.generation() != self.rank.generation() {
            return refused(format!("it belongs to generation {}, which has ended", window.generation()));
        }
        match window.length_of(from).filter(|_| window.shares_with(from)) {
            None => return refused("it shares no memory with this rank".into()),
            Some(length) if range.end > length => {
                return refused(format!("elements {range:?} are not among its {length}"));
            }
            Some(_) => {}
        }
        let (versions, _) = self.rank.await_operation(&title, |rank, deadline| {
            let tag = Default::default();
            run(window, OperationContext { transport: rank.parts.transport.as_mut(), tag, deadline })
        })?;
        Ok(versions)
    }
}

/// The same for a window of an earlier generation, whose regions are not written any more: without waiting. False if `from`
/// shares no such range, or writes to it all the same.
pub fn visit_earlier_window(
    window: &mut Window,
    from: usize,
    range: Range<usize>,
    visit: impl FnMut(Range<usize>, &[f32], u64),
) -> bool {
    let is_there = window.length_of(from).is_some_and(|length| range.end <= length);
    is_there && window.shares_with(from) && window.try_visit(&mut WindowRead::new(from, range), visit)
}

#[cfg(test)]
mod tests {
    use super::visit_earlier_window;
    use crate::engine::threads;
    use thalweg_core::Result;

    #[test]
    fn members_read_add_and_visit_each_others_regions() {
        const LENGTH: usize = 100_000;
        let ended = threads::run(3, 0, |rank| {
            rank.begin_step(0);
            let index = rank.index();
            let mut window = rank.world().open_window("gradients", LENGTH)?.expect("memory");
            window.publish(0, &vec![1.0 + index as f32; LENGTH], 5);
            rank.world().barrier("published")?;
            let (mut sum, mut copy, mut visited) = (window.own().to_vec(), vec![0.0; 10], 0);
            for from in (0..3).filter(|from| *from != index) {
                let mut world = rank.world();
                let versions = [
                    world.add_window("gradients", &mut window, from, 0, &mut sum)?,
                    world.read_window("gradients", &mut window, from, LENGTH - 10, &mut copy)?,
                    world.visit_window("gradients", &mut window, from, 7..LENGTH, |_, values, _| {
                        visited += values.len();
                    })?,
                ];
                assert_eq!(versions.map(|versions| versions.agreed()), [Some(5); 3]);
                assert_eq!(copy, [1.0 + from as f32; 10]);
            }
            assert!(sum.iter().all(|sum| *sum == 6.0));
            assert_eq!(visited, 2 * (LENGTH - 7));
            rank.world().barrier("read")?;
            drop(window);
            let account = rank.account();
            let bytes = 2 * 4 * (LENGTH + 10 + LENGTH - 7) as u64;
            assert!(account.bytes_sent >= bytes && account.bytes_received >= bytes, "{account:?}");
            Ok(())
        });
        assert!(ended.iter().all(|ended| ended.result == Ok(())), "{:?}", ended[0].result);
    }

    #[test]
    fn reads_that_cannot_be_are_refused() {
        let ended = threads::run(2, 0, |rank| {
            let mut window = rank.world().open_window("parameters", 10)?.expect("memory");
            let peer = 1 - rank.index();
            let refusal = |outcome: Result<_>| outcome.map(|_: super::Versions| ()).unwrap_err().to_string();
            let mut into = [0.0; 8];
            let mut world = rank.world();
            let own = refusal(world.read_window("parameters", &mut window, 1 - peer, 0, &mut into));
            assert!(own.contains("it shares no memory with this rank"), "{own}");
            let far = refusal(world.read_window("parameters", &mut window, peer, 5, &mut into));
            assert!(far.contains("elements 5..13 are not among its 10"), "{far}");
            world.read_window("parameters", &mut window, peer, 2, &mut into)?;
            let mut seen = 0;
            let mut earlier = |from, range| {
                visit_earlier_window(&mut window, from, range, |_, values, _| seen += values.len())
            };
            assert!(earlier(peer, 2..10) && !earlier(peer, 2..11) && !earlier(1 - peer, 0..1));
            assert_eq!(seen, 8);
            rank.world().barrier("the end").map(drop)
        });
        assert!(ended.iter().all(|ended| ended.result == Ok(())), "{:?}", ended[0].result);
    }

    #[test]
    fn simulated_ranks_share_no_memory() {
        let network = thalweg_comm::transport::sim::Network::ordinary(2, 1);
        let deadline = std::time::Duration::from_secs(30);
        let ended = threads::simulated_links::run(network, &[], deadline, |rank| {
            let refused = rank.world().open_window("parameters", 10)?.err();
            assert_eq!(refused.as_deref(), Some("no two ranks share memory"));
            Ok(())
        });
        assert!(ended.iter().all(Result::is_ok));
    }
}
