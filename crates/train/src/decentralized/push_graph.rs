//! Directed graphs: to which workers each pushes shares of its model, step by step.
//!
//! ```text
//! P_ji = 1 / (1 + successors of i)        for i itself and each successor j of i in this step
//! ```
//!
//! Every column adds up to 1, so the sum of all models, and that of all weights, stays what it is. Rows need not: what a
//! worker has received more of has more weight, and its model is divided by it. In the exponential graph a worker has one
//! successor in each step, at distances 1, 2, 4, ... in turn.

use super::mixing::edges;
use std::collections::BTreeSet;
use thalweg_core::JobSpec;
use thalweg_core::spec::neighbours::{Graph, Mix};

/// Successors of every worker, in phases that follow each other step by step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushGraph {
    phases: Vec<Vec<BTreeSet<usize>>>,
    /// Whether the graph looks the same from every worker.
    uniform: bool,
}

impl PushGraph {
    /// The graph of the members with these ids, of a job that began with `workers` of them.
    ///
    /// A named graph is built anew for as many as there are. Edges that the job gives stay with the members it gives them
    /// for: who pushed to a lost one pushes to its successors, and a new one joins one of the first in both directions.
    pub fn of_members(graph: &Graph, workers: usize, members: &[usize]) -> PushGraph {
        let count = members.len();
        let phase = |edges: Vec<(usize, usize)>| {
            let mut successors = vec![BTreeSet::new(); count];
            for (from, to) in edges.into_iter().filter(|(from, to)| from != to) {
                successors[from].insert(to);
            }
            successors
        };
        let at_distance = |distance: usize| (0..count).map(|one| (one, (one + distance) % count)).collect();
        match graph {
            Graph::Exponential => {
                let powers = (0..usize::BITS).map(|power| 1 << power);
                let distances = powers.take_while(|distance| *distance < count.max(2));
                let phases = distances.map(|distance| phase(at_distance(distance))).collect();
                PushGraph { phases, uniform: true }
            }
            Graph::Ring | Graph::Torus | Graph::Complete => {
                PushGraph { phases: vec![phase(edges(graph, count))], uniform: true }
            }
            Graph::Edges(given) => {
                let given = of_those_left(given, workers, members);
                let rank = |id: usize| members.iter().position(|member| *member == id);
                let known = given.into_iter().filter_map(|(from, to)| Some((rank(from)?, rank(to)?)));
                PushGraph { phases: vec![phase(known.collect())], uniform: false }
            }
        }
    }

    pub fn workers(&self) -> usize {
        self.phases.first().map_or(0, Vec::len)
    }

    fn phase(&self, step: u64) -> &[BTreeSet<usize>] {
        &self.phases[(step % self.phases.len() as u64) as usize]
    }

    /// To which workers one pushes in a step.
    pub fn successors(&self, worker: usize, step: u64) -> &BTreeSet<usize> {
        &self.phase(step)[worker]
    }

    /// Which workers push to one in a step, in order.
    pub fn predecessors(&self, worker: usize, step: u64) -> impl Iterator<Item = usize> {
        let successors = self.phase(step).iter().enumerate();
        successors.filter(move |(_, to)| to.contains(&worker)).map(|(from, _)| from)
    }

    /// Steps after which something of every worker has reached every other one, whatever the first step; None if it never
    /// does.
    pub fn diameter(&self) -> Option<usize> {
        let from = if self.uniform { self.workers().min(1) } else { self.workers() };
        let starts = (0..from).flat_map(|worker| (0..self.phases.len()).map(move |first| (worker, first)));
        starts
            .map(|(worker, first)| self.spread(worker, first))
            .try_fold(0, |most, steps| Some(most.max(steps?)))
    }

    /// Steps from `first` on until something of a worker is everywhere.
    fn spread(&self, worker: usize, first: usize) -> Option<usize> {
        let mut reached = BTreeSet::from([worker]);
        let most = self.workers() * self.phases.len();
        let mut steps = 0..=most;
        steps.find(|done| {
            if reached.len() == self.workers() {
                return true;
            }
            let step = (first + done) as u64;
            let next: Vec<usize> =
                reached.iter().flat_map(|from| self.successors(*from, step)).copied().collect();
            reached.extend(next);
            false
        })
    }

    /// How many steps of a worker are in the model of another one that has done `steps`. A model that is pushed after its
    /// update takes the rows of its step along: then `ahead` is 1.
    fn arrived(&self, worker: usize, other: usize, steps: u64, ahead: u64) -> Option<u64> {
        let mut reached = BTreeSet::from([other]);
        for back in 1..=(self.workers() * self.phases.len()) as u64 {
            let step = steps.checked_sub(back)?;
            let before: Vec<usize> = reached.iter().flat_map(|to| self.predecessors(*to, step)).collect();
            if before.contains(&worker) {
                return Some(step + ahead);
            }
            reached.extend(before);
        }
        None
    }

    /// Why models would not agree, if so.
    pub fn check(&self) -> Result<(), String> {
        let all = 0..self.workers();
        match all.clone().find(|worker| self.spread(*worker, 0).is_none()) {
            Some(worker) => Err(format!("what worker {worker} pushes does not reach all others")),
            None => Ok(()),
        }
    }
}

/// The edges between members, whose ids they name.
fn of_those_left(given: &[(usize, usize)], workers: usize, members: &[usize]) -> BTreeSet<(usize, usize)> {
    let all = members.iter().map(|id| id + 1).fold(workers, usize::max);
    let mut edges: BTreeSet<(usize, usize)> = given.iter().copied().collect();
    for new in workers..all {
        edges.extend([(new % workers, new), (new, new % workers)]);
    }
    for lost in (0..all).rev().filter(|id| !members.contains(id)) {
        let before: Vec<usize> = edges.iter().filter(|(_, to)| *to == lost).map(|(from, _)| *from).collect();
        let after: Vec<usize> = edges.iter().filter(|(from, _)| *from == lost).map(|(_, to)| *to).collect();
        edges.retain(|(from, to)| *from != lost && *to != lost);
        edges.extend(before.iter().flat_map(|from| after.iter().map(move |to| (*from, *to))));
    }
    edges
}

/// How many steps of a worker are in the model of each of the members with these ids, after so many of theirs.
pub fn arrived(job: &JobSpec, members: &[usize], worker: usize, steps: &[Option<u64>]) -> Vec<Option<u64>> {
    let graph = PushGraph::of_members(&job.neighbours.graph, job.engine.workers, members);
    let ahead = u64::from(job.neighbours.mix == Mix::After);
    let of = |(other, steps): (usize, &Option<u64>)| graph.arrived(worker, other, (*steps)?, ahead);
    steps.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(graph: &Graph, workers: usize) -> PushGraph {
        PushGraph::of_members(graph, workers, &(0..workers).collect::<Vec<_>>())
    }

    #[test]
    fn graphs_have_their_edges() {
        let at = |graph: &Graph, workers: usize, step: u64| -> Vec<usize> {
            of(graph, workers).successors(0, step).iter().copied().collect()
        };
        assert_eq!([0, 1, 2, 3].map(|step| at(&Graph::Exponential, 8, step)[0]), [1, 2, 4, 1]);
        assert_eq!((at(&Graph::Ring, 5, 3), at(&Graph::Complete, 4, 1)), (vec![1], vec![1, 2, 3]));
        assert_eq!(at(&Graph::Torus, 12, 0), [1, 4]);
        assert!(at(&Graph::Ring, 1, 0).is_empty() && at(&Graph::Exponential, 1, 0).is_empty());
        assert_eq!(of(&Graph::Ring, 5).predecessors(0, 0).collect::<Vec<_>>(), [4]);
        for (graph, known) in [(Graph::Ring, 15), (Graph::Exponential, 4), (Graph::Complete, 1)] {
            assert_eq!(of(&graph, 16).diameter(), Some(known), "{graph:?}");
        }
        assert_eq!(
            (of(&Graph::Exponential, 11).diameter(), of(&Graph::Ring, 1).diameter()),
            (Some(4), Some(0))
        );
    }

    #[test]
    fn what_does_not_reach_all_is_refused_and_a_lost_worker_is_bridged() {
        let line = of(&Graph::Edges(vec![(0, 1), (1, 2)]), 3);
        assert_eq!(line.check().unwrap_err(), "what worker 1 pushes does not reach all others");
        let circle = Graph::Edges(vec![(0, 1), (1, 2), (2, 3), (3, 0)]);
        let left = PushGraph::of_members(&circle, 4, &[0, 2, 3]);
        assert_eq!((left.successors(0, 0), left.check()), (&BTreeSet::from([1]), Ok(())));
        let joined = PushGraph::of_members(&circle, 4, &[0, 2, 3, 5]);
        assert_eq!((joined.workers(), joined.check()), (4, Ok(())));
    }

    proptest! {
        /// A run that keeps, instead of models, the rows (worker, step) in them.
        #[test]
        fn rows_arrive_when_the_graph_says(
            graph in prop::sample::select(vec![Graph::Ring, Graph::Torus, Graph::Exponential, Graph::Complete,
                Graph::Edges(vec![(0, 1), (1, 2), (2, 0), (2, 3), (3, 1), (1, 4), (4, 5), (5, 0)])]),
            workers in 6usize..12,
            present in prop::collection::vec(any::<bool>(), 12),
            steps in 1u64..9,
            after: bool,
        ) {
            let mut members: Vec<usize> = (0..workers).filter(|id| present[*id]).collect();
            members.push(workers);
            let graph = PushGraph::of_members(&graph, workers.min(6), &members);
            prop_assert_eq!(graph.check(), Ok(()));
            let count = members.len();
            let mut models: Vec<BTreeSet<(usize, u64)>> = vec![BTreeSet::new(); count];
            for step in 0..steps {
                let own = |worker: usize| (worker, step);
                let mut pushed = models.clone();
                if after {
                    pushed.iter_mut().enumerate().for_each(|(worker, rows)| rows.extend([own(worker)]));
                }
                for (worker, model) in models.iter_mut().enumerate() {
                    model.insert(own(worker));
                    for from in graph.predecessors(worker, step) {
                        model.extend(pushed[from].iter());
                    }
                }
            }
            for (worker, other) in (0..count).flat_map(|one| (0..count).map(move |other| (one, other))) {
                let has = models[other].iter().filter(|(of, _)| *of == worker).map(|(_, step)| step + 1).max();
                if worker != other {
                    let arrived = graph.arrived(worker, other, steps, u64::from(after)).filter(|steps| *steps > 0);
                    prop_assert_eq!(arrived, has);
                }
            }
        }
    }
}
