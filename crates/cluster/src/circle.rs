//! Groups of some of the ranks: circles, in which a program operates as it does among all.
//!
//! The members form a circle together; from then on it counts operations of its own. Those of several circles and of all
//! ranks can be under way at once ([`Rank::start`], [`Within::start`]): each rank may start them in an order of its own, as
//! long as those of one circle are in the same order on all its members. What is waited for on the spot moves everything
//! that is under way. Errors name ranks by their numbers in the job, and the circle by its name.
//!
//! A circle belongs to the generation in which it was formed: a loss ends it as it ends the generation, whoever was lost.

use crate::collectives::{Means, elements};
use crate::rank::Rank;
use std::time::Duration;
use thalweg_comm::collective::operator::Number;
use thalweg_comm::collective::{self, Element, Goal, Operator, Sum, Ticket, chunk_range};
use thalweg_comm::transport::{Fault, Tag, Transport};
use thalweg_comm::wire::tensor;
use thalweg_core::{Error, Kind, Result};

/// A group of some ranks, as one of them has it.
pub struct Circle {
    name: String,
    generation: u32,
    /// Operations so far.
    operation: u64,
    means: Means,
}

/// An operation that was started and is not waited for yet.
#[must_use = "its result comes with Rank::finish"]
pub struct Pending<T> {
    ticket: Ticket<T>,
    generation: u32,
    kind: &'static str,
    name: String,
}

/// A rank in one of its circles.
pub struct Within<'a> {
    rank: &'a mut Rank,
    circle: &'a mut Circle,
}

impl Circle {
    /// The ranks in it, by their places among all, in ascending order.
    pub fn ranks(&self) -> &[usize] {
        self.means.circle.ranks()
    }

    /// This rank's place in it.
    pub fn place(&self) -> usize {
        self.means.circle.place()
    }

    /// How many they are.
    pub fn size(&self) -> usize {
        self.means.circle.size()
    }

    /// What is called so happens here.
    fn called(&self, name: &str) -> String {
        format!("{name} among {}", self.name)
    }

    fn next_tag(&mut self, kind: &str, name: &str) -> Tag {
        self.operation += 1;
        let (generation, operation) = (self.generation, self.operation);
        let tensor = tensor(&format!("{kind} of {name}"));
        Tag { generation, operation, group: self.means.circle.number(), tensor }
    }
}

impl Rank {
    /// Forms a circle of these ranks, given by their places among all. All of them must do so, with the same name and the
    /// same ranks; a rank gives every name once.
    pub fn form_circle(&mut self, name: &str, ranks: &[usize]) -> Result<Circle> {
        let refused =
            |what: String| Error::new(Kind::Internal, format!("cannot form circle {name:?}: {what}"));
        if let Some(unknown) = ranks.iter().find(|rank| **rank >= self.world()) {
            return Err(refused(format!("there is no rank in place {unknown} of {}", self.world())));
        }
        let circle = collective::Circle::new(name, ranks, self.index())
            .ok_or_else(|| refused(format!("rank {} is not one of {ranks:?}", self.number())))?;
        if let Some((_, other)) = self.circles.iter().find(|(number, _)| *number == circle.number()) {
            return Err(refused(format!("{other:?} has its place")).hint("give it another name"));
        }
        self.circles.push((circle.number(), name.to_owned()));
        self.parts.transport.admit_groups();
        let means = Means::among(circle.on(self.host_numbers()));
        let mut circle = Circle { name: name.to_owned(), generation: self.generation(), operation: 0, means };
        let members: Vec<u8> = circle.ranks().iter().flat_map(|rank| (*rank as u64).to_le_bytes()).collect();
        let mine = [&members[..], name.as_bytes()].concat();
        let all = self.within(&mut circle).all_gather("the members", &mine)?;
        match all.iter().position(|theirs| *theirs != mine) {
            None => Ok(circle),
            Some(place) => {
                let number = self.number_at(circle.ranks()[place]);
                Err(refused(format!("rank {number} means other ranks by it")))
            }
        }
    }

    /// This rank as a member of a circle.
    pub fn within<'a>(&'a mut self, circle: &'a mut Circle) -> Within<'a> {
        Within { rank: self, circle }
    }

    /// Starts a collective of all ranks and goes on; [`Rank::finish`] waits for it.
    pub fn start<T: Element>(
        &mut self,
        goal: Goal,
        name: &str,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<Pending<T>> {
        self.check()?;
        let schedule = self.means.schedule(goal, size_of_val(&buffer[..]));
        let tag = self.next_tag(goal.name(), name);
        // Its frames can stand before those of operations that others come to first.
        self.parts.transport.admit_groups();
        let ticket = self.parts.transport.start(&schedule, tag, buffer, operator);
        self.pending(ticket, goal.name(), name.to_owned())
    }

    fn pending<T>(
        &self,
        ticket: std::result::Result<Ticket<T>, Fault>,
        kind: &'static str,
        name: String,
    ) -> Result<Pending<T>> {
        let ticket = ticket.map_err(|fault| self.explain(&fault, kind, &name))?;
        Ok(Pending { ticket, generation: self.generation(), kind, name })
    }

    /// Waits for what was started before, here or in a circle, and returns its buffer.
    pub fn finish<T: Element>(&mut self, pending: Pending<T>) -> Result<Vec<T>> {
        let Pending { ticket, generation, kind, name } = pending;
        let mut buffer = None;
        if generation == self.generation() {
            self.await_operation(kind, &name, |rank, deadline| {
                buffer = rank.parts.transport.finish(ticket, deadline)?;
                Ok(())
            })?;
        }
        buffer.ok_or_else(|| {
            let words =
                format!("{kind} of {name} belongs to generation {generation} of the group, which is over");
            Error::new(Kind::Internal, words).hint("start it again after the group has changed")
        })
    }
}

impl Within<'_> {
    fn operate(
        &mut self,
        kind: &str,
        name: &str,
        run: impl FnOnce(&mut Rank, &mut Means, Tag, Duration) -> Result<(), Fault>,
    ) -> Result<Duration> {
        self.check()?;
        let (name, tag) = (self.circle.called(name), self.circle.next_tag(kind, name));
        let means = &mut self.circle.means;
        self.rank.await_operation(kind, &name, |rank, deadline| run(rank, means, tag, deadline))
    }

    /// Whether the circle is still there.
    fn check(&self) -> Result<()> {
        let Circle { name, generation, .. } = &*self.circle;
        match *generation == self.rank.generation() {
            true => Ok(()),
            false => {
                let words =
                    format!("circle {name:?} belongs to generation {generation} of the group, which is over");
                Err(Error::new(Kind::Internal, words).hint("form it again after the group has changed"))
            }
        }
    }

    /// [`Rank::collective`] among the members. A root is a place in the circle.
    pub fn collective<T: Element>(
        &mut self,
        goal: Goal,
        name: &str,
        buffer: &mut [T],
        operator: &dyn Operator<T>,
    ) -> Result<Duration> {
        let schedule = self.circle.means.schedule(goal, size_of_val(buffer));
        self.operate(goal.name(), name, |rank, means, tag, deadline| {
            means.executor.run(&schedule, rank.parts.transport.as_mut(), tag, buffer, operator, deadline)
        })
    }

    /// Starts a collective of the members and goes on; [`Rank::finish`] waits for it.
    pub fn start<T: Element>(
        &mut self,
        goal: Goal,
        name: &str,
        buffer: Vec<T>,
        operator: impl Operator<T> + 'static,
    ) -> Result<Pending<T>> {
        self.check()?;
        self.rank.check()?;
        let schedule = self.circle.means.schedule(goal, size_of_val(&buffer[..]));
        let (name, tag) = (self.circle.called(name), self.circle.next_tag(goal.name(), name));
        let ticket = self.rank.parts.transport.start(&schedule, tag, buffer, operator);
        self.rank.pending(ticket, goal.name(), name)
    }

    /// The elements of a buffer that are this member's in a reduce-scatter and an all-gather.
    pub fn share(&self, length: usize) -> std::ops::Range<usize> {
        chunk_range(length, self.circle.size(), self.circle.place())
    }

    /// Adds up a buffer over the members, in place; every one of them gets the same bits.
    pub fn all_reduce<T: Number>(&mut self, name: &str, buffer: &mut [T]) -> Result<Duration> {
        self.collective(Goal::AllReduce, name, buffer, &Sum)
    }

    /// Returns when every member has come here.
    pub fn barrier(&mut self, name: &str) -> Result<Duration> {
        self.collective(Goal::Barrier, name, &mut [0u8], &Sum)
    }

    /// Collects a few bytes of every member on every member, by their places.
    pub fn all_gather(&mut self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        self.operate("all-gather", name, |rank, means, tag, deadline| {
            let transport = rank.parts.transport.as_mut();
            all = means.circle.all_gather(transport, tag, mine, deadline)?;
            Ok(())
        })?;
        Ok(all)
    }

    /// [`Rank::all_to_all`] among the members, by their places.
    pub fn all_to_all<T: Element>(&mut self, name: &str, pieces: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let mut arrived = Vec::new();
        self.operate(Goal::AllToAll.name(), name, |rank, means, tag, deadline| {
            let pieces: Vec<&[u8]> = pieces.iter().map(|piece| bytemuck::cast_slice(piece)).collect();
            let transport = rank.parts.transport.as_mut();
            let bytes = means.circle.all_to_all(transport, tag, &pieces, deadline)?;
            arrived = elements(&bytes, means.circle.ranks())?;
            Ok(())
        })?;
        Ok(arrived)
    }

    /// Every member gets the bytes of the one in place `root`; the others' own are ignored.
    pub fn broadcast(&mut self, name: &str, root: usize, mine: Vec<u8>) -> Result<Vec<u8>> {
        let mut theirs = Vec::new();
        self.operate("broadcast", name, |rank, means, tag, deadline| {
            let transport = rank.parts.transport.as_mut();
            theirs = means.circle.broadcast(transport, tag, root, mine, deadline)?;
            Ok(())
        })?;
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::threads;
    use thalweg_comm::collective::Max;
    use thalweg_comm::transport::sim::{Kind as What, Mishap, Network};

    /// Two circles that share two ranks, and all ranks: everything blocking, then everything at once.
    fn program(rank: &mut Rank) -> Result<()> {
        let (index, left, right) = (rank.index(), [0, 1, 2], [1, 2, 3]);
        let mut circles = Vec::new();
        for (name, members) in [("left", left), ("right", right)] {
            if members.contains(&index) {
                circles.push(rank.form_circle(name, &members)?);
            }
        }
        let sum = |circle: &Circle| circle.ranks().iter().sum::<usize>() as f32;
        for circle in &mut circles {
            let (expected, first) = (sum(circle), circle.ranks()[0]);
            let mut values = [index as f32; 9];
            rank.within(circle).all_reduce("values", &mut values)?;
            assert_eq!(values, [expected; 9]);
            let mut shares = vec![0u32; 7];
            shares[rank.within(circle).share(7)].fill(index as u32);
            rank.within(circle).collective(Goal::AllGather, "shares", &mut shares, &Sum)?;
            assert!(shares.is_sorted() && shares[0] == first as u32);
            assert_eq!(rank.within(circle).broadcast("word", 1, vec![index as u8])?, [first as u8 + 1]);
            let pieces = [vec![index as f64], vec![], vec![0.5; index]];
            let arrived = rank.within(circle).all_to_all("pieces", &pieces)?;
            assert_eq!(arrived[circle.place()], pieces[circle.place()]);
            rank.within(circle).barrier("the end")?;
        }
        if index % 2 == 0 {
            circles.reverse();
        }
        let mut pending = Vec::new();
        let early = (index < 2).then(|| rank.start(Goal::AllReduce, "largest", vec![index as f32], Max));
        for circle in &mut circles {
            let started =
                rank.within(circle).start(Goal::AllReduce, "sums", vec![index as f32; 3000], Sum)?;
            pending.push((sum(circle), started));
        }
        let world = match early {
            Some(early) => early?,
            None => rank.start(Goal::AllReduce, "largest", vec![index as f32], Max)?,
        };
        // Something blocking in between moves what is under way.
        rank.barrier("the middle")?;
        for (expected, started) in pending {
            assert_eq!(rank.finish(started)?, vec![expected; 3000]);
        }
        assert_eq!(rank.finish(world)?, [rank.world() as f32 - 1.0]);
        Ok(())
    }

    #[test]
    fn circles_and_all_ranks_operate_at_once() {
        for ended in threads::run(4, 0, program) {
            assert_eq!(ended.result, Ok(()));
        }
        let network = Network::ordinary(4, 1);
        for ended in threads::simulate(network, &[], Duration::from_secs(30), program).0 {
            assert_eq!(ended.result, Ok(()));
        }
    }

    #[test]
    fn a_death_names_rank_circle_and_operation() {
        let kill = Mishap::at(Duration::from_millis(40), What::Kill { rank: 3 });
        let network = Network::ordinary(4, 1);
        let (ended, _) = threads::simulate(network, &[kill], Duration::from_secs(5), |rank| {
            rank.begin_step(7);
            if rank.index() % 2 == 0 {
                return rank.barrier("the end").map(|_| ());
            }
            let mut circle = rank.form_circle("odd", &[1, 3])?;
            loop {
                let mut within = rank.within(&mut circle);
                let pending = within.start(Goal::AllReduce, "means", vec![1.0f32; 10], Sum)?;
                rank.finish(pending)?;
                rank.sleep(Duration::from_millis(1));
            }
        });
        let operations = ["barrier of the end", "all-reduce of means among odd", "barrier of the end"];
        for (survivor, operation) in operations.into_iter().enumerate() {
            let error = ended[survivor].result.as_ref().unwrap_err();
            let culprit = error.culprit.as_ref().unwrap();
            assert_eq!((culprit.rank, culprit.step), (3, Some(7)), "{error}");
            assert_eq!(culprit.operation.as_deref(), Some(operation), "{error}");
        }
    }

    #[test]
    fn members_who_mean_different_ranks_are_told() {
        let ended = threads::run(3, 0, |rank| {
            let members: &[usize] = if rank.index() == 0 { &[0, 1] } else { &[0, 1, 2] };
            rank.form_circle("mine", members).map(|_| ())
        });
        let error = ended[0].result.as_ref().unwrap_err();
        assert!(error.to_string().contains("rank 1 means other ranks by it"), "{error}");
    }

    #[test]
    fn a_circle_is_of_ranks_that_are_there_and_has_a_name_of_its_own() {
        let ended = threads::run(2, 0, |rank| {
            let refusal = |error: Result<Circle>| error.map(|_| ()).unwrap_err().to_string();
            assert!(refusal(rank.form_circle("far", &[0, 1, 7])).contains("no rank in place 7"));
            assert!(refusal(rank.form_circle("other", &[1 - rank.index()])).contains("is not one of"));
            rank.form_circle("both", &[0, 1])?;
            assert!(refusal(rank.form_circle("both", &[0, 1])).contains("has its place"));
            Ok(())
        });
        assert!(ended.iter().all(|ended| ended.result == Ok(())));
    }
}
