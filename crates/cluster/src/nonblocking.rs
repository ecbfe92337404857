//! Nonblocking collectives.
//!
//! Operations of several groups may be in flight at once: ranks may start them in different orders, as long as those of
//! one group are started in the same order on all its members. A blocking operation also progresses all operations in
//! flight.

use crate::group::Group;
use crate::rank::Rank;
use thalweg_comm::collective::{Collective, Element, OperationId, Operator};
use thalweg_comm::transport::Transport;
use thalweg_core::{Error, Kind, Result};

/// A nonblocking operation in flight.
#[must_use = "Rank::finish returns its result"]
pub struct PendingOperation<T> {
    id: OperationId<T>,
    generation: u32,
    /// Its name in errors.
    title: String,
}

impl Group<'_> {
    /// Starts a nonblocking collective of the members; [`Rank::finish`] waits for it.
    pub fn start<T: Element>(
        &mut self,
        collective: Collective,
        name: &str,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<PendingOperation<T>> {
        self.check()?;
        self.check_root(collective)?;
        self.rank.check()?;
        let group = self.state_mut();
        let schedule = group.schedule(collective, size_of_val(&buffer[..]));
        let (tag, title) = group.next_operation(collective.name(), name);
        let transport = &mut self.rank.parts.transport;
        // Its frames may arrive before those of operations that a peer starts earlier.
        transport.admit_groups();
        let id = transport
            .start(&schedule, tag, buffer, operator)
            .map_err(|fault| self.rank.explain(&fault, &title))?;
        Ok(PendingOperation { id, generation: tag.generation, title })
    }
}

impl Rank {
    /// Progresses all operations in flight between two pieces of computation, without waiting.
    pub fn progress_operations(&mut self) -> Result<()> {
        let moved = self.parts.transport.advance();
        moved.map(drop).map_err(|fault| self.explain(&fault, "operations in flight"))
    }

    /// Waits for a started collective of any group, and returns its buffer.
    pub fn finish<T: Element>(&mut self, pending: PendingOperation<T>) -> Result<Vec<T>> {
        let PendingOperation { id, generation, title } = pending;
        let mut buffer = None;
        if generation == self.generation() {
            (buffer, _) =
                self.await_operation(&title, |rank, deadline| rank.parts.transport.finish(id, deadline))?;
        }
        buffer.ok_or_else(|| {
            let message = format!("{title} belongs to generation {generation}, which has ended");
            Error::new(Kind::Internal, message).hint("start it again after the group has changed")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulated::simulate;
    use crate::engine::threads::{self, simulated_links};
    use crate::membership_policy::MembershipConfig;
    use crate::process_group::ProcessGroup;
    use std::time::Duration;
    use thalweg_comm::collective::{Max, Sum};
    use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};

    /// Two groups with two ranks in common, and the world: operations of all three in flight at once.
    fn program(rank: &mut Rank) -> Result<()> {
        let (index, left, right) = (rank.index(), [0, 1, 2], [1, 2, 3]);
        let mut groups = Vec::new();
        for (name, members) in [("left", left), ("right", right)] {
            if members.contains(&index) {
                groups.push(rank.new_group(name, &members)?);
            }
        }
        let sum = |group: &ProcessGroup| group.ranks().iter().sum::<usize>() as f32;
        if index % 2 == 0 {
            groups.reverse();
        }
        let mut pending = Vec::new();
        let start_world =
            |rank: &mut Rank| rank.world().start(Collective::AllReduce, "largest", vec![index as f32], Max);
        let early = (index < 2).then(|| start_world(rank));
        for group in &mut groups {
            let expected = sum(group);
            let mut group = rank.group(group);
            let started = group.start(Collective::AllReduce, "sums", vec![index as f32; 3000], Sum)?;
            pending.push((expected, started));
        }
        let world = match early {
            Some(early) => early?,
            None => start_world(rank)?,
        };
        // A blocking operation in between progresses the others.
        rank.world().barrier("the middle")?;
        for (expected, started) in pending {
            assert_eq!(rank.finish(started)?, vec![expected; 3000]);
        }
        assert_eq!(rank.finish(world)?, [rank.size() as f32 - 1.0]);
        Ok(())
    }

    #[test]
    fn operations_of_groups_and_the_world_are_in_flight_at_once() {
        for ended in threads::run(4, 0, program) {
            assert_eq!(ended.result, Ok(()));
        }
        let network = Network::ordinary(4, 1);
        for ended in simulate(network, &[], &MembershipConfig::fixed(Duration::from_secs(30)), program).0 {
            assert_eq!(ended.result, Ok(()));
        }
    }

    #[test]
    fn a_death_names_rank_group_and_operation() {
        let kill = SimulatedFault::at(Duration::from_millis(40), SimulatedFaultKind::Kill { rank: 3 });
        let network = Network::ordinary(4, 1);
        let ended = simulated_links::run(network, &[kill], Duration::from_secs(5), |rank| {
            rank.begin_step(7);
            if rank.index() % 2 == 0 {
                return rank.world().barrier("the end").map(|_| ());
            }
            let mut group = rank.new_group("odd", &[1, 3])?;
            loop {
                let mut group = rank.group(&mut group);
                let pending = group.start(Collective::AllReduce, "means", vec![1.0f32; 10], Sum)?;
                rank.finish(pending)?;
                rank.sleep(Duration::from_millis(1));
            }
        });
        let operations = ["barrier of the end", "all-reduce of means among odd", "barrier of the end"];
        for (survivor, operation) in operations.into_iter().enumerate() {
            let error = ended[survivor].as_ref().unwrap_err();
            let culprit = error.culprit.as_ref().unwrap();
            assert_eq!((culprit.rank, culprit.step), (3, Some(7)), "{error}");
            assert_eq!(culprit.operation.as_deref(), Some(operation), "{error}");
        }
    }
}
