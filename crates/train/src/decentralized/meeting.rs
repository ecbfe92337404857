//! When workers without an exchange of all meet on request.
//!
//! ```text
//! worker i, asked for something before its step t:   meet = min(meet, t + D - 1)
//! in every message of a step:                        meet
//! on every message of a step:                        meet = min(meet, that of the message)
//! after step meet:                                   all workers meet, and forget it
//! ```
//!
//! With D, the diameter of the graph, all workers know the step before its end: a wish of step t is in the messages of step
//! t, so workers at distance d know it when they have the messages of step t + d - 1. That holds whatever the order in which
//! messages arrive, as a step waits for those of all neighbours. No earlier step would do: a worker at distance D may be in
//! step t + D - 1 when the wish is made.

/// What a worker knows of the next meeting on request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Steps after that of a wish until its meeting.
    notice: u64,
    /// The step after which all meet.
    after: Option<u64>,
}

impl Meeting {
    /// For a graph of that diameter.
    pub fn new(diameter: usize) -> Meeting {
        Meeting { notice: diameter.saturating_sub(1) as u64, after: None }
    }

    /// This worker was asked for something before it began that step.
    pub fn request(&mut self, step: u64) {
        self.learn(step + self.notice);
    }

    /// A message says that all meet after that step.
    pub fn learn(&mut self, after: u64) {
        self.after = Some(self.after.map_or(after, |known| known.min(after)));
    }

    /// The step after which all meet, for messages.
    pub fn after(&self) -> Option<u64> {
        self.after
    }

    /// All have met: what was asked for is served.
    pub fn held(&mut self) {
        self.after = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decentralized::mixing::MixingMatrix;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use thalweg_core::spec::neighbours::Graph;

    /// One worker of a run without a network: it begins a step, and ends it when the messages of all neighbours are there.
    struct Worker {
        meeting: Meeting,
        step: u64,
        begun: bool,
        met: Vec<u64>,
    }

    /// Runs workers in the order of `turns` until `steps` steps are done; wishes are worker and step. Returns the steps
    /// after which each of them stopped to meet.
    fn run(
        graph: &Graph,
        workers: usize,
        wishes: &[(usize, u64)],
        turns: &[usize],
        steps: u64,
    ) -> Vec<Vec<u64>> {
        let all: Vec<usize> = (0..workers).collect();
        let matrix = MixingMatrix::of_members(graph, workers, &all);
        let notice = Meeting::new(matrix.diameter().unwrap());
        let worker = |_| Worker { meeting: notice, step: 0, begun: false, met: Vec::new() };
        let mut ranks: Vec<Worker> = (0..workers).map(worker).collect();
        let mut messages: BTreeMap<(usize, usize, u64), Option<u64>> = BTreeMap::new();
        let mut pending: Vec<(usize, u64)> = wishes.to_vec();
        let mut turns = turns.iter().cycle();
        for _ in 0..200 * workers as u64 * steps {
            let index = turns.next().unwrap() % workers;
            let others: Vec<usize> = matrix.neighbours(index).map(|(other, _)| other).collect();
            // Who has met waits there for all others.
            let meetings = ranks[index].met.len();
            if ranks.iter().any(|other| other.met.len() < meetings) || ranks[index].step >= steps {
                continue;
            }
            let rank = &mut ranks[index];
            let step = rank.step;
            if !rank.begun {
                if let Some(wish) =
                    pending.iter().position(|(worker, from)| *worker == index && *from <= step)
                {
                    pending.remove(wish);
                    rank.meeting.request(step);
                }
                messages.extend(others.iter().map(|to| ((index, *to, step), rank.meeting.after())));
                rank.begun = true;
            } else if others.iter().all(|from| messages.contains_key(&(*from, index, step))) {
                let heard = others.iter().filter_map(|from| messages[&(*from, index, step)]);
                heard.for_each(|after| rank.meeting.learn(after));
                assert!(rank.meeting.after().is_none_or(|after| after >= step), "heard too late");
                if rank.meeting.after() == Some(step) {
                    rank.met.push(step);
                    rank.meeting.held();
                }
                (rank.step, rank.begun) = (step + 1, false);
            }
        }
        assert!(ranks.iter().all(|rank| rank.step == steps), "a deadlock");
        ranks.into_iter().map(|rank| rank.met).collect()
    }

    proptest! {
        #[test]
        fn all_meet_after_the_same_steps_in_any_order_of_messages(
            graph in prop::sample::select(vec![Graph::Ring, Graph::Torus, Graph::Exponential, Graph::Complete]),
            workers in 1usize..9,
            wishes in prop::collection::vec((0usize..9, 0u64..20), 0..5),
            turns in prop::collection::vec(any::<usize>(), 1..60),
        ) {
            let wishes: Vec<(usize, u64)> = wishes.into_iter().map(|(worker, step)| (worker % workers, step)).collect();
            // Every worker has a turn now and then.
            let turns: Vec<usize> = turns.into_iter().chain(0..workers).collect();
            let met = run(&graph, workers, &wishes, &turns, 60);
            prop_assert!(met.iter().all(|steps| *steps == met[0]), "{:?}", met);
            prop_assert_eq!(met[0].is_empty(), wishes.is_empty());
            prop_assert!(met[0].len() <= wishes.len());
            // A wish is served in time, and as late as others of its worker before it.
            let all: Vec<usize> = (0..workers).collect();
            let diameter = MixingMatrix::of_members(&graph, workers, &all).diameter().unwrap();
            for (_, from) in &wishes {
                let latest = *from + (diameter.max(1) + wishes.len() - 2) as u64;
                prop_assert!(met[0].iter().any(|step| (*from..=latest).contains(step)), "{:?}", met);
            }
        }
    }
}
