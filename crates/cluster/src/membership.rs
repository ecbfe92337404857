//! Who belongs to the group, generation by generation: a pure state machine.
//!
//! It hears what happened (a member reported, was lost, left; somebody came) and answers with orders; whoever holds the
//! coordinator's role carries them out, on real connections or on simulated ones. A log of what it heard, replayed, gives
//! the same group: that is where a replicated coordinator finds its place.
//!
//! ```text
//!              all members have reported, and they are enough
//!    forming  ------------------------------------------------>  working
//!       ^                                                           |
//!       |   one was lost: `Interrupt` ends what the others do       |
//!       |   a member reports by itself, at a boundary of steps      |
//!       +-----------------------------------------------------------+
//! ```
//!
//! Members are known by numbers that stay theirs; their places in a generation are the order of these numbers.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How far a member's work has come. The larger one stands further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// Steps that are done.
    pub step: u64,
    /// What was done at that boundary: epochs that are closed, for instance.
    pub stage: u64,
}

/// What a member says of itself when it reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Where its work stands; nothing before it has any.
    pub position: Option<Position>,
    /// Whether it had begun the next step.
    pub begun: bool,
}

/// What the job asks of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Fewer members do not go on.
    pub least: usize,
    /// More are not let in.
    pub most: usize,
    /// How long to wait for enough members.
    pub patience: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Tell the members that this generation is over: they leave their operations and report.
    Interrupt(u32),
    /// Somebody waits to be let in: ask the members to report at the next boundary of steps.
    Pause,
    /// This member says what cannot be true: the others go on without it.
    Expel {
        /// Its number.
        number: usize,
        /// What it said, and what is true.
        why: String,
    },
    /// Tell these members that they are the group.
    Form(Formed),
    /// The job cannot go on: there are so many members, and nobody came.
    GiveUp {
        /// Members that are there.
        present: usize,
    },
}

/// How far beyond what it knows a coordinator that has just taken the role believes a member's generation: the one before it
/// may have formed groups that it never heard of.
const UNHEARD: u32 = 1 << 20;

/// A group, agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formed {
    /// Its generation.
    pub generation: u32,
    /// Its members and what they said of themselves, by their numbers.
    pub members: BTreeMap<usize, Standing>,
    /// Who was lost since the last one.
    pub lost: Vec<usize>,
    /// Who came since the last one.
    pub joined: Vec<usize>,
    /// Who left in good order since the last one.
    pub left: Vec<usize>,
}

/// The members of a job.
#[derive(Clone, Debug)]
pub struct Membership {
    limits: Limits,
    /// Of the group that works, or worked last; 0 before the first.
    generation: u32,
    /// Since when a group is being formed; nothing while one works.
    forming: Option<Duration>,
    /// The members of the group that works or worked last, and what each reported for the next.
    members: BTreeMap<usize, Option<Standing>>,
    /// Ready and waiting to be let in.
    newcomers: BTreeMap<usize, Standing>,
    /// Whether those who wait were announced.
    paused: bool,
    lost: Vec<usize>,
    left: Vec<usize>,
    /// Somebody has done all the work: whoever is left need not wait for others.
    done: bool,
    /// Whether another coordinator formed the groups so far, and members may know of more than this one does.
    inherited: bool,
    /// The step after which the group that works, or worked last, went on.
    resumed: u64,
}

impl Membership {
    /// A group of these members is to be formed, after this generation (0: there was none yet).
    pub fn new(
        expected: impl IntoIterator<Item = usize>,
        after: u32,
        limits: Limits,
        now: Duration,
    ) -> Membership {
        Membership {
            limits,
            generation: after,
            forming: Some(now),
            members: expected.into_iter().map(|number| (number, None)).collect(),
            newcomers: BTreeMap::new(),
            paused: false,
            lost: Vec::new(),
            left: Vec::new(),
            done: false,
            inherited: after > 0,
            resumed: 0,
        }
    }

    /// The generation that works, or worked last.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a group works.
    pub fn is_working(&self) -> bool {
        self.forming.is_none()
    }

    /// Since when one is being formed.
    pub fn forming_since(&self) -> Option<Duration> {
        self.forming
    }

    /// Whether this is a member of the group that works or is being formed.
    pub fn has(&self, number: usize) -> bool {
        self.members.contains_key(&number)
    }

    /// The members of the group that works or is being formed, in the order of their numbers.
    pub fn members(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.members.keys().copied()
    }

    /// How many belong to the group that works or is being formed.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether nobody is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The members that have not reported yet.
    pub fn missing(&self) -> Vec<usize> {
        self.members.iter().filter(|(_, said)| said.is_none()).map(|(number, _)| *number).collect()
    }

    /// Whether any member has reported for the next group.
    pub fn has_reports(&self) -> bool {
        self.members.values().any(Option::is_some)
    }

    /// How many more it takes.
    pub fn wanted(&self) -> usize {
        self.limits.least.saturating_sub(self.members.len() + self.newcomers.len())
    }

    /// The lowest number from there on that nobody has.
    pub fn free_number(&self, from: usize) -> usize {
        let taken: BTreeSet<usize> = self.members.keys().chain(self.newcomers.keys()).copied().collect();
        (from..).find(|number| !taken.contains(number)).unwrap_or(0)
    }

    /// Whether one more may come, beside so many that are on their way in.
    pub fn has_room(&self, coming: usize) -> bool {
        self.members.len() + self.newcomers.len() + coming < self.limits.most
    }

    /// Why a report cannot be true, if it cannot.
    pub fn objection(&self, after: u32, standing: Standing) -> Option<String> {
        let known = self.generation.saturating_add(if self.inherited { UNHEARD } else { 0 });
        if after > known {
            return Some(format!("it reports generation {after}, and the last one was {}", self.generation));
        }
        // One that had not got the state of the step the group went on from may be one behind.
        let step = standing.position?.step;
        (step.saturating_add(1) < self.resumed)
            .then(|| format!("it reports step {step}, and its group went on from step {}", self.resumed))
    }

    /// A member has left its operations and says where it stands; `after` is the last generation it heard of. If a group
    /// works, it is at a boundary where all its members do the same. What cannot be true expels the member, and
    /// processes that are not members have no say.
    pub fn report(&mut self, number: usize, after: u32, standing: Standing, now: Duration) -> Vec<Order> {
        let objection = self.objection(after, standing);
        let Some(said) = self.members.get_mut(&number) else { return Vec::new() };
        if after < self.generation && self.forming.is_none() {
            // What it says is about a group that is over.
            return Vec::new();
        }
        if let Some(why) = objection {
            return vec![Order::Expel { number, why }];
        }
        // A coordinator before this one may have formed groups that it does not know of.
        self.generation = self.generation.max(after);
        *said = Some(standing);
        self.forming.get_or_insert(now);
        self.settle(now)
    }

    /// A member that had reported may have to come again: its connection closed before the group was formed.
    pub fn expect(&mut self, number: usize) {
        self.newcomers.remove(&number);
        if let Some(said) = self.members.get_mut(&number) {
            *said = None;
        }
    }

    /// Somebody new is ready to work.
    pub fn come(&mut self, number: usize, now: Duration) -> Vec<Order> {
        self.newcomers.insert(number, Standing::default());
        let mut orders = self.settle(now);
        if self.is_working() && !self.paused && !self.newcomers.is_empty() {
            self.paused = true;
            orders.push(Order::Pause);
        }
        orders
    }

    /// A member died, or was given up. If a group worked, it is over.
    pub fn lose(&mut self, number: usize, now: Duration) -> Vec<Order> {
        if self.newcomers.remove(&number).is_some() || self.members.remove(&number).is_none() {
            return Vec::new();
        }
        self.lost.push(number);
        self.break_up(now)
    }

    /// The members stay, but what connects them does not: the group is formed anew.
    pub fn break_up(&mut self, now: Duration) -> Vec<Order> {
        if self.forming.is_none() {
            self.forming = Some(now);
        }
        let mut orders = vec![Order::Interrupt(self.generation)];
        orders.extend(self.settle(now));
        orders
    }

    /// A member leaves in good order: because all is `done`, or because it was asked to.
    pub fn leave(&mut self, number: usize, done: bool, now: Duration) -> Vec<Order> {
        self.newcomers.remove(&number);
        self.done |= done;
        if self.members.remove(&number).is_none() {
            return Vec::new();
        }
        if !done {
            self.left.push(number);
            self.forming.get_or_insert(now);
        }
        self.settle(now)
    }

    /// Forms the group once all its members have reported; gives up if they are too few for too long.
    pub fn settle(&mut self, now: Duration) -> Vec<Order> {
        let Some(since) = self.forming else { return Vec::new() };
        // Those who come have nothing to go on from: without a member there is no group.
        if self.members.is_empty() || !self.missing().is_empty() {
            return Vec::new();
        }
        let count = self.members.len() + self.newcomers.len();
        if count < self.limits.least && !self.done {
            let late = now.saturating_sub(since) >= self.limits.patience;
            return if late { vec![Order::GiveUp { present: count }] } else { Vec::new() };
        }
        if let Some(order) = self.implausible() {
            return vec![order];
        }
        let joined: Vec<usize> = self.newcomers.keys().copied().collect();
        let stayed = std::mem::take(&mut self.members);
        let mut members: BTreeMap<usize, Standing> =
            stayed.into_iter().map(|(number, said)| (number, said.unwrap_or_default())).collect();
        members.append(&mut self.newcomers);
        self.generation += 1;
        self.inherited = false;
        let positions = members.values().filter_map(|standing| standing.position);
        self.resumed = positions.map(|position| position.step).max().unwrap_or(0);
        self.members = members.keys().map(|number| (*number, None)).collect();
        (self.forming, self.paused) = (None, false);
        vec![Order::Form(Formed {
            generation: self.generation,
            members,
            lost: std::mem::take(&mut self.lost),
            joined: if self.generation == 1 { Vec::new() } else { joined },
            left: std::mem::take(&mut self.left),
        })]
    }

    /// Members stand at one step or the next: one that claims to be further than that would be asked for a state that does
    /// not exist.
    fn implausible(&self) -> Option<Order> {
        let position = |said: &Option<Standing>| said.and_then(|standing| standing.position);
        let mut steps: Vec<u64> = self.members.values().filter_map(position).map(|at| at.step).collect();
        steps.sort_unstable();
        let median = *steps.get(steps.len().checked_sub(1)? / 2)?;
        let claims = |(number, said): (&usize, &Option<Standing>)| Some((*number, position(said)?.step));
        let (number, step) =
            self.members.iter().filter_map(claims).find(|(_, step)| *step > median.saturating_add(1))?;
        let why = format!("it reports step {step}, and the others are at step {median}");
        Some(Order::Expel { number, why })
    }
}
