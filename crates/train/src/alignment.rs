//! Where workers with models of their own go on after some of them were lost.
//!
//! No exchange of all keeps such workers in step: when a generation ends, some are steps ahead of others. Each keeps its
//! model, with all updates in it. What counts of the others is what reached a model that is left:
//!
//! ```text
//! s_i          steps of worker i, if it stays
//! k_ij         steps of worker i that are in the model of worker j after its s_j
//! K_i          = max over all j that stay of k_ij:          rows of i of earlier steps are in another model
//! counted_i    = max(s_i, K_i) if it stays, else K_i:       rows of i of earlier steps count
//! next         = min counted_i:                             the job goes on from there
//! ```
//!
//! Of the steps from `next` on, the rows that do not count are divided anew. So every row of a lost worker that reached a
//! model which is left counts, and all others are computed again. Rows that count but may be in no model any more, as
//! they were only in one that is gone, are at risk: those of a worker that left in good order, of an epoch that was
//! closed, and of an earlier generation.

use std::ops::Range;

/// How the generation ended for one of its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It goes on, after that many steps.
    Stays(u64),
    /// It left in good order, together with the others.
    Left,
    Lost,
}

impl End {
    /// The steps of a worker that stays; every one had the first ones when the generation began.
    pub(crate) fn steps(self, first: u64) -> Option<u64> {
        match self {
            End::Stays(steps) => Some(steps.max(first)),
            End::Left | End::Lost => None,
        }
    }
}

/// What counts of a generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// By worker: its rows of earlier steps count.
    pub(crate) counted: Vec<u64>,
    /// By worker: its rows of these steps count, and may be in no model but its own.
    pub(crate) unspread: Vec<Range<u64>>,
    /// By worker: whether that holds for what it had computed before the generation, too.
    pub(crate) is_unspread: Vec<bool>,
    /// The job goes on after that many steps.
    pub(crate) next: u64,
}

/// Aligns the workers of a generation that began after `first` steps, or closed an epoch there. `arrived` gives the steps of
/// one worker that are in the model of another, which stays.
pub(crate) fn align(ends: &[End], first: u64, arrived: impl Fn(usize, usize) -> Option<u64>) -> Alignment {
    let stays = |worker: usize| ends[worker].steps(first);
    let workers = 0..ends.len();
    let together = workers.clone().filter_map(stays).min().unwrap_or(first);
    let known = |worker: usize| {
        let others = workers.clone().filter(|other| *other != worker);
        let reached = others.filter_map(|other| arrived(worker, other));
        reached.max().unwrap_or(0)
    };
    let counted = |worker: usize| match ends[worker] {
        End::Stays(steps) => steps.max(known(worker)).max(first),
        End::Left => together,
        End::Lost => known(worker).max(first),
    };
    let counted: Vec<u64> = workers.clone().map(counted).collect();
    Alignment {
        next: counted.iter().copied().min().unwrap_or(first),
        unspread: workers.clone().map(|worker| known(worker).max(first)..counted[worker]).collect(),
        is_unspread: workers.clone().map(|worker| known(worker) <= first).collect(),
        counted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decentralized::mixing::MixingMatrix;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use thalweg_core::spec::neighbours::Graph;

    const FIRST: u64 = 5;

    /// In a ring of four that averages before the step, worker 2 is lost.
    #[test]
    fn the_rows_of_a_lost_worker_count_if_a_neighbour_has_them() {
        let ring = |one: usize, other: usize| Some([0, 1, 2, 1][(one + 4 - other) % 4]);
        let align = |ends: &[End], first| {
            align(ends, first, |one, other| ends[other].steps(first)?.checked_sub(ring(one, other)?))
        };
        let ends = [End::Stays(8), End::Stays(9), End::Lost, End::Stays(9)];
        let aligned = align(&ends, FIRST);
        // Its neighbours have done step 8: they had its model of that step, with the rows of step 7.
        assert_eq!((aligned.next, &aligned.counted[..]), (8, &[8, 9, 8, 9][..]));
        let apart = [End::Stays(7), End::Stays(8), End::Lost, End::Lost];
        assert_eq!(align(&apart, FIRST).counted, [7, 8, 7, 6]);
        let left = [End::Stays(8), End::Stays(8), End::Left, End::Stays(8)];
        let aligned = align(&left, FIRST);
        assert_eq!((aligned.next, aligned.unspread[2].clone()), (8, 7..8));
        let at_once = [End::Stays(5), End::Stays(5), End::Lost, End::Stays(5)];
        let aligned = align(&at_once, FIRST);
        assert_eq!((aligned.next, aligned.unspread[2].clone(), aligned.is_unspread[2]), (5, 5..5, true));
    }

    /// A run of D-PSGD that keeps, instead of models, the rows (worker, step) in them.
    fn run(matrix: &MixingMatrix, turns: &[usize], before: bool) -> (Vec<u64>, Vec<BTreeSet<(usize, u64)>>) {
        let workers = matrix.workers();
        let mut steps = vec![FIRST; workers];
        let mut models: Vec<BTreeSet<(usize, u64)>> = vec![BTreeSet::new(); workers];
        // What each worker has sent, by step.
        let mut sent: Vec<Vec<BTreeSet<(usize, u64)>>> = vec![Vec::new(); workers];
        for turn in turns {
            let worker = turn % workers;
            let (step, own) = (steps[worker], (worker, steps[worker]));
            if sent[worker].len() as u64 == step - FIRST {
                let mut message = models[worker].clone();
                message.extend((!before).then_some(own));
                sent[worker].push(message);
            }
            let at = (step - FIRST) as usize;
            if matrix.neighbours(worker).all(|(other, _)| sent[other].len() > at) {
                for (other, _) in matrix.neighbours(worker) {
                    models[worker].extend(sent[other][at].iter());
                }
                models[worker].insert(own);
                steps[worker] += 1;
            }
        }
        (steps, models)
    }

    proptest! {
        #[test]
        fn rows_count_once_and_those_of_the_lost_are_in_a_model(
            graph in prop::sample::select(vec![Graph::Ring, Graph::Torus, Graph::Exponential, Graph::Complete]),
            workers in 2usize..9,
            turns in prop::collection::vec(any::<usize>(), 0..400),
            lost in prop::collection::vec(any::<bool>(), 8),
            before: bool,
        ) {
            let all: Vec<usize> = (0..workers).collect();
            let matrix = MixingMatrix::of_members(&graph, workers, &all);
            let (steps, models) = run(&matrix, &turns, before);
            // The last one stays.
            let is_lost = |worker: usize| worker + 1 < workers && lost[worker];
            let ends: Vec<End> = (0..workers)
                .map(|worker| if is_lost(worker) { End::Lost } else { End::Stays(steps[worker]) })
                .collect();
            let aligned = align(&ends, FIRST, |one, other| {
                let edges = matrix.distances(one)[other]? as u64;
                ends[other].steps(FIRST)?.checked_sub(edges - u64::from(!before))
            });
            prop_assert!(aligned.next >= FIRST);
            let left: BTreeSet<(usize, u64)> =
                (0..workers).filter(|worker| !is_lost(*worker)).flat_map(|worker| models[worker].iter().copied()).collect();
            for worker in 0..workers {
                prop_assert!(aligned.next <= aligned.counted[worker]);
                // What counts is in a model that is left, and what is not counted is in none.
                for step in FIRST..FIRST + 100 {
                    prop_assert_eq!(step < aligned.counted[worker], left.contains(&(worker, step)));
                }
                prop_assert!(!is_lost(worker) || aligned.unspread[worker].is_empty());
            }
        }
    }
}
