//! A group of some of the ranks, who operate among themselves.
//!
//! It has a number of its own, which its frames carry, so its operations pass over the same connections as those of all
//! ranks and of other circles without being taken for each other's. Within a schedule a member is its place in the circle;
//! on the wire, and in every fault, it is the rank that it is for all.

use super::goal::Goal;
use super::schedule::Schedule;
use crate::wire::checksum;
use std::collections::BTreeSet;

/// Some ranks, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    number: u32,
    ranks: Vec<usize>,
    place: usize,
    /// On which host each member is, by any number.
    hosts: Vec<usize>,
}

/// The number of the circle of all ranks.
const EVERYBODY: u32 = 0;

impl Circle {
    /// All ranks, as one of them.
    pub fn everybody(rank: usize, world: usize) -> Circle {
        let each: Vec<usize> = (0..world).collect();
        Circle { number: EVERYBODY, ranks: each.clone(), place: rank, hosts: each }
    }

    /// These ranks, as one of them, under a name; `None` if `rank` is not among them. All who give the same name and
    /// ranks, in any order, have the same circle; who gives other ranks still has the same number, so that the two meet
    /// and can find out.
    pub fn new(name: &str, ranks: &[usize], rank: usize) -> Option<Circle> {
        let ranks: Vec<usize> = BTreeSet::from_iter(ranks.iter().copied()).into_iter().collect();
        let place = ranks.iter().position(|&member| member == rank)?;
        let hosts = (0..ranks.len()).collect();
        Some(Circle { number: checksum(0, name.as_bytes()).max(EVERYBODY + 1), ranks, place, hosts })
    }

    /// The same circle, whose members are on these hosts: `hosts[r]` is that of rank r among all. Where nobody says, each is
    /// taken to be on one of its own.
    pub fn on(mut self, hosts: &[usize]) -> Circle {
        self.hosts = self.ranks.iter().map(|rank| hosts[*rank]).collect();
        self
    }

    /// On which host each member is, by any number.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// What its frames carry. Two circles may have the same, by name or by chance: nobody may be in both at once.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its members.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Where this rank stands among them.
    pub fn place(&self) -> usize {
        self.place
    }

    /// How many they are.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// What this member does towards a goal with a buffer of so many bytes, where nobody chooses.
    pub fn schedule(&self, goal: Goal, bytes: usize) -> Schedule {
        self.carry(goal.schedule(self.place, &self.hosts, bytes))
    }

    /// A schedule among places in the circle becomes one among ranks.
    pub fn carry(&self, schedule: Schedule) -> Schedule {
        match self.number {
            EVERYBODY => schedule,
            _ => schedule.among(&self.ranks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring;
    use super::*;

    #[test]
    fn members_agree_on_it_whatever_the_order_they_are_named_in() {
        let (one, other) = (Circle::new("a", &[5, 2, 2], 2).unwrap(), Circle::new("a", &[2, 5], 5).unwrap());
        assert_eq!((one.number(), one.ranks(), one.place()), (other.number(), other.ranks(), 0));
        assert_eq!((other.place(), other.size()), (1, 2));
        assert_eq!(Circle::new("a", &[2, 5], 3), None);
    }

    #[test]
    fn other_names_have_other_numbers() {
        let number = |name: &str| Circle::new(name, &[0], 0).unwrap().number();
        assert_eq!(BTreeSet::from([number("a"), number("b"), number(""), EVERYBODY]).len(), 4);
    }

    #[test]
    fn schedules_name_ranks() {
        let circle = Circle::new("odd", &[1, 3, 5], 3).unwrap();
        let schedule = circle.carry(ring::all_reduce(circle.place(), circle.size()));
        let partners: BTreeSet<usize> =
            schedule.steps.iter().flat_map(|step| step.sends.iter().map(|send| send.to)).collect();
        assert_eq!((partners, schedule.chunks), (BTreeSet::from([5]), 3));
    }
}
