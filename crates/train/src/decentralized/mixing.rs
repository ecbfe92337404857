//! Mixing matrices: which workers average their models, and by which weights.
//!
//! ```text
//! W_ij = 1 / (1 + max(degree_i, degree_j))   for neighbours i and j (Metropolis weights)
//! W_ii = 1 - the rest of the row
//! ```
//!
//! W is symmetric and its rows add up to 1, so the mean of all models stays what it is and the graph alone decides how
//! fast they agree: a difference between models shrinks by |lambda2|, the second largest absolute eigenvalue, with every
//! step (Xiao and Boyd 2004). It is below 1 only if the graph is connected.

use std::collections::{BTreeMap, BTreeSet};
use thalweg_core::Rng;
use thalweg_core::spec::neighbours::Graph;

/// A symmetric, doubly stochastic matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MixingMatrix {
    /// The positive entries of each row, by column.
    rows: Vec<BTreeMap<usize, f64>>,
    /// Whether the graph looks the same from every worker.
    uniform: bool,
}

/// The edges of a graph of that many workers.
pub(super) fn edges(graph: &Graph, workers: usize) -> Vec<(usize, usize)> {
    let at_distance = |distance: usize| (0..workers).map(move |one| (one, (one + distance) % workers));
    match graph {
        Graph::Ring => at_distance(1).collect(),
        Graph::Exponential => {
            let distances =
                (0..usize::BITS).map(|power| 1 << power).take_while(|distance| *distance < workers);
            distances.flat_map(at_distance).collect()
        }
        Graph::Complete => (1..workers).flat_map(at_distance).collect(),
        Graph::Torus => {
            let divides = |height: &usize| height * height <= workers && workers.is_multiple_of(*height);
            let height = (1..=workers).filter(divides).max().unwrap_or(1);
            let width = workers / height;
            let number = |row: usize, column: usize| row % height * width + column % width;
            (0..workers)
                .map(|one| (one, one / width, one % width))
                .flat_map(|(one, row, column)| {
                    [(one, number(row, column + 1)), (one, number(row + 1, column))]
                })
                .collect()
        }
        Graph::Edges(edges) => edges.clone(),
    }
}

impl MixingMatrix {
    /// The Metropolis weights of a graph.
    pub fn metropolis(workers: usize, edges: &[(usize, usize)]) -> MixingMatrix {
        let mut neighbours = vec![BTreeSet::new(); workers];
        for &(one, other) in edges.iter().filter(|(one, other)| one != other) {
            neighbours[one].insert(other);
            neighbours[other].insert(one);
        }
        let degree = |worker: usize| neighbours[worker].len();
        let row = |worker: usize| {
            let weight = |other: &usize| 1.0 / (1 + degree(worker).max(degree(*other))) as f64;
            let mut row: BTreeMap<usize, f64> =
                neighbours[worker].iter().map(|other| (*other, weight(other))).collect();
            row.insert(worker, 1.0 - row.values().sum::<f64>());
            row
        };
        MixingMatrix { rows: (0..workers).map(row).collect(), uniform: false }
    }

    /// The matrix of the members with these ids, of a job that began with `workers` of them.
    ///
    /// A named graph is built anew for as many as there are: a ring closes where a member was lost. Edges that the job
    /// gives stay with the members it gives them for ([`MixingMatrix::without`] those that are lost); a new member is a
    /// neighbour of one of the first ones.
    pub fn of_members(graph: &Graph, workers: usize, members: &[usize]) -> MixingMatrix {
        let Graph::Edges(given) = graph else {
            let matrix = MixingMatrix::metropolis(members.len(), &edges(graph, members.len()));
            return MixingMatrix { uniform: true, ..matrix };
        };
        let all = members.iter().map(|id| id + 1).fold(workers, usize::max);
        let mut given = given.clone();
        given.extend((workers..all).map(|new| (new % workers, new)));
        let mut matrix = MixingMatrix::metropolis(all, &given);
        for id in (0..all).rev().filter(|id| !members.contains(id)) {
            matrix = matrix.without(id);
        }
        matrix
    }

    /// The matrix of the others when a worker is lost: its weights go to the diagonal of both sides. Where that would
    /// separate the graph, half of the smaller weight goes to an edge between its neighbours instead.
    pub fn without(&self, lost: usize) -> MixingMatrix {
        let mut rest = MixingMatrix { uniform: false, ..self.clone() };
        let neighbours: Vec<(usize, f64)> =
            rest.rows.remove(lost).into_iter().filter(|(other, _)| *other != lost).collect();
        let renumber = |worker: usize| worker - usize::from(worker > lost);
        for row in &mut rest.rows {
            row.remove(&lost);
            *row =
                std::mem::take(row).into_iter().map(|(column, weight)| (renumber(column), weight)).collect();
        }
        let neighbours: Vec<(usize, f64)> =
            neighbours.into_iter().map(|(other, weight)| (renumber(other), weight)).collect();
        neighbours.iter().for_each(|(other, weight)| rest.add(*other, *other, *weight));
        for pair in neighbours.windows(2) {
            let [(one, first), (other, second)] = [pair[0], pair[1]];
            if rest.distances(one)[other].is_none() {
                let weight = first.min(second) / 2.0;
                rest.add(one, other, weight);
                rest.add(other, one, weight);
                rest.add(one, one, -weight);
                rest.add(other, other, -weight);
            }
        }
        rest
    }

    fn add(&mut self, row: usize, column: usize, weight: f64) {
        *self.rows[row].entry(column).or_insert(0.0) += weight;
    }

    pub fn workers(&self) -> usize {
        self.rows.len()
    }

    /// `W_ii`.
    pub fn own_weight(&self, worker: usize) -> f64 {
        self.rows[worker].get(&worker).copied().unwrap_or(0.0)
    }

    /// The neighbours `j` of a worker with their weights `W_ij`, in order.
    pub fn neighbours(&self, worker: usize) -> impl Iterator<Item = (usize, f64)> {
        self.rows[worker]
            .iter()
            .map(|(other, weight)| (*other, *weight))
            .filter(move |(other, _)| *other != worker)
    }

    /// Edges between a worker and every other; None where there is no path.
    pub fn distances(&self, from: usize) -> Vec<Option<usize>> {
        let mut distances = vec![None; self.workers()];
        distances[from] = Some(0);
        let (mut reached, mut length) = (vec![from], 0);
        while !reached.is_empty() {
            length += 1;
            let mut next = Vec::new();
            for other in reached.iter().flat_map(|worker| self.neighbours(*worker)).map(|(other, _)| other) {
                if distances[other].is_none() {
                    distances[other] = Some(length);
                    next.push(other);
                }
            }
            reached = next;
        }
        distances
    }

    /// The longest distance between two workers, if the graph is connected.
    pub fn diameter(&self) -> Option<usize> {
        let farthest =
            |from| self.distances(from).into_iter().try_fold(0, |most, length| Some(most.max(length?)));
        let from = if self.uniform { self.workers().min(1) } else { self.workers() };
        (0..from).try_fold(0, |most, from| Some(farthest(from)?.max(most)))
    }

    /// Why models would not agree on their mean, if so.
    pub fn check(&self) -> Result<(), String> {
        for (worker, row) in self.rows.iter().enumerate() {
            let sum: f64 = row.values().sum();
            if (sum - 1.0).abs() > 1e-9 {
                return Err(format!("the weights of worker {worker} add up to {sum}, not to 1"));
            }
            for (&other, &weight) in row {
                let back = self.rows[other].get(&worker).copied().unwrap_or(0.0);
                if weight.is_nan() || weight < 0.0 || (weight - back).abs() > 1e-9 {
                    return Err(format!(
                        "the weight of worker {other} for worker {worker} is {weight}, and {back} the other way"
                    ));
                }
            }
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        match self.distances(0).iter().position(Option::is_none) {
            Some(other) => {
                Err(format!("the graph is not connected: no path leads from worker 0 to worker {other}"))
            }
            None => Ok(()),
        }
    }

    /// `|lambda2|`: the second largest absolute eigenvalue, by power iteration on vectors of sum 0.
    pub fn second_eigenvalue(&self) -> f64 {
        let workers = self.workers();
        let rows: Vec<Vec<(usize, f64)>> = self
            .rows
            .iter()
            .map(|row| row.iter().map(|(other, weight)| (*other, *weight)).collect())
            .collect();
        let entries: usize = rows.iter().map(Vec::len).sum();
        // In a ring the second and the third eigenvalue differ by about 30 / n^2.
        let iterations = (workers * workers).clamp(200, (1 << 27) / entries.max(1));
        let mut random = Rng::keyed(0, "eigenvector", &[]);
        let mut vector: Vec<f64> = (0..workers).map(|_| f64::from(random.uniform()) - 0.5).collect();
        let mut growth = 0.0;
        for _ in 0..iterations {
            let mean = vector.iter().sum::<f64>() / workers as f64;
            let norm = vector.iter().map(|value| (value - mean).powi(2)).sum::<f64>().sqrt();
            if norm < 1e-12 {
                return 0.0;
            }
            vector.iter_mut().for_each(|value| *value = (*value - mean) / norm);
            vector = rows
                .iter()
                .map(|row| row.iter().map(|(other, weight)| weight * vector[*other]).sum())
                .collect();
            growth = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        }
        growth
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(graph: &Graph, workers: usize) -> MixingMatrix {
        let all: Vec<usize> = (0..workers).collect();
        MixingMatrix::of_members(graph, workers, &all)
    }

    #[test]
    fn known_eigenvalues() {
        use std::f64::consts::PI;
        assert!((of(&Graph::Ring, 4).second_eigenvalue() - 1.0 / 3.0).abs() < 1e-9);
        assert!((of(&Graph::Ring, 64).second_eigenvalue() - 0.9968).abs() < 1e-4);
        for workers in [3, 5, 16, 50] {
            let known = (1.0 + 2.0 * (2.0 * PI / workers as f64).cos()) / 3.0;
            let found = of(&Graph::Ring, workers).second_eigenvalue();
            assert!((found - known.abs()).abs() < 1e-6, "{workers}: {found} and {known}");
        }
        // 16 in a closed grid of 4 by 4: (1 + 2 cos 0 + 2 cos 90) / 5.
        assert!((of(&Graph::Torus, 16).second_eigenvalue() - 0.6).abs() < 1e-9);
        assert!(of(&Graph::Complete, 7).second_eigenvalue() < 1e-9);
        assert!(of(&Graph::Exponential, 64).second_eigenvalue() < of(&Graph::Torus, 64).second_eigenvalue());
        let apart = MixingMatrix::metropolis(4, &[(0, 1), (2, 3)]);
        assert!((apart.second_eigenvalue() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn graphs_have_their_edges() {
        let neighbours = |graph: &Graph, workers: usize, worker: usize| -> Vec<usize> {
            of(graph, workers).neighbours(worker).map(|(other, _)| other).collect()
        };
        assert_eq!(neighbours(&Graph::Ring, 5, 0), [1, 4]);
        assert_eq!(neighbours(&Graph::Ring, 2, 0), [1]);
        assert!(neighbours(&Graph::Ring, 1, 0).is_empty());
        assert_eq!(neighbours(&Graph::Torus, 12, 0), [1, 3, 4, 8]);
        assert_eq!(neighbours(&Graph::Torus, 7, 0), [1, 6], "a prime number of workers is a ring");
        assert_eq!(neighbours(&Graph::Exponential, 9, 0), [1, 2, 4, 5, 7, 8]);
        assert_eq!(neighbours(&Graph::Complete, 4, 2), [0, 1, 3]);
        assert_eq!(neighbours(&Graph::Edges(vec![(0, 1), (2, 1), (1, 0)]), 3, 1), [0, 2]);
        let diameters: Vec<_> = [Graph::Ring, Graph::Torus, Graph::Exponential, Graph::Complete]
            .map(|graph| of(&graph, 16).diameter())
            .into();
        assert_eq!(diameters, [Some(8), Some(4), Some(2), Some(1)]);
        assert_eq!(of(&Graph::Ring, 1).diameter(), Some(0));
    }

    #[test]
    fn a_graph_in_two_parts_is_refused_with_the_reason() {
        let reason = of(&Graph::Edges(vec![(0, 1), (2, 3)]), 4).check().unwrap_err();
        assert_eq!(reason, "the graph is not connected: no path leads from worker 0 to worker 2");
        let mut wrong = of(&Graph::Ring, 4);
        wrong.add(0, 1, 0.1);
        assert!(wrong.check().unwrap_err().contains("add up to 1.1"));
        wrong.add(0, 0, -0.1);
        assert!(wrong.check().unwrap_err().contains("the other way"));
    }

    #[test]
    fn weights_of_a_lost_worker_go_to_both_diagonals_or_to_an_edge_that_holds_the_parts_together() {
        let ring = of(&Graph::Ring, 4).without(1);
        for (worker, thirds) in [2.0, 2.0, 1.0].into_iter().enumerate() {
            assert!((ring.own_weight(worker) - thirds / 3.0).abs() < 1e-12);
        }
        assert_eq!(ring.neighbours(0).map(|(other, _)| other).collect::<Vec<_>>(), [2]);
        let path = of(&Graph::Edges(vec![(0, 1), (1, 2)]), 3).without(1);
        assert_eq!((path.check(), path.diameter()), (Ok(()), Some(1)));
    }

    fn graphs() -> impl Strategy<Value = Graph> {
        let named =
            prop::sample::select(vec![Graph::Ring, Graph::Torus, Graph::Exponential, Graph::Complete]);
        // A random tree and some more edges.
        let parents = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 40);
        let given = parents.prop_map(|parents| {
            let edge = |(child, (parent, more)): (usize, &(prop::sample::Index, prop::sample::Index))| {
                [(parent.index(child + 1), child + 1), (more.index(child + 2), child + 1)]
            };
            Graph::Edges(parents.iter().enumerate().flat_map(edge).collect())
        });
        prop_oneof![named, given]
    }

    /// A graph of some workers: given edges are cut to them.
    fn cut(graph: Graph, workers: usize) -> Graph {
        match graph {
            Graph::Edges(edges) => {
                Graph::Edges(edges.into_iter().filter(|(one, other)| *one.max(other) < workers).collect())
            }
            named => named,
        }
    }

    proptest! {
        #[test]
        fn matrices_are_symmetric_doubly_stochastic_connected_and_contract(
            graph in graphs(), workers in 1usize..30, present in prop::collection::vec(any::<bool>(), 35),
        ) {
            let graph = cut(graph, workers);
            let matrix = of(&graph, workers);
            prop_assert_eq!((matrix.workers(), matrix.check()), (workers, Ok(())));
            prop_assert!(matrix.second_eigenvalue() < 1.0);
            // Some are lost, and some are new: whatever the graph, those who are left stay connected.
            let mut members: Vec<usize> = (0..35).filter(|id| present[*id]).collect();
            members.push(35);
            let matrix = MixingMatrix::of_members(&graph, workers, &members);
            prop_assert_eq!((matrix.workers(), matrix.check()), (members.len(), Ok(())));
            for (worker, row) in matrix.rows.iter().enumerate() {
                prop_assert!(row.values().all(|weight| *weight >= 0.0) && row[&worker] > 0.0, "{:?}", row);
            }
        }

        #[test]
        fn mixing_keeps_the_mean(graph in graphs(), values in prop::collection::vec(-1.0..1.0f64, 1..30)) {
            let matrix = of(&cut(graph, values.len()), values.len());
            let mixed: f64 = (0..values.len())
                .map(|one| matrix.own_weight(one) * values[one]
                    + matrix.neighbours(one).map(|(other, weight)| weight * values[other]).sum::<f64>())
                .sum();
            prop_assert!((mixed - values.iter().sum::<f64>()).abs() < 1e-9);
        }
    }
}
