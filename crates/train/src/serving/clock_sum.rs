//! The sum of all workers' updates for one clock, as they arrive in parts.
//!
//! In the order of ranks a part is added as soon as all earlier workers were added at its place, and held until then: so
//! the sum does not depend on who comes first. Along a reduction tree the terms of all workers are held until they are
//! complete: so it does not depend on the number of workers either.

use crate::envelope::Values;
use crate::known_bugs;
use std::collections::VecDeque;
use thalweg_cluster::ReductionTree;

/// In which order numbers are added.
#[derive(Clone, Debug, Default)]
pub enum Order {
    #[default]
    Ranks,
    /// The workers push terms of so many elements, one after the other. The last element of each is its loss.
    Tree(ReductionTree, usize),
}

/// The updates of the clock in progress.
#[derive(Debug, Default)]
pub struct ClockSum {
    order: Order,
    /// In the order of ranks.
    workers: Vec<Arrival>,
}

/// What has arrived of a worker's update.
#[derive(Debug, Default)]
struct Arrival {
    /// Its member id.
    member: usize,
    /// Elements of the update, those that have arrived, and those that were added: the first ones.
    length: usize,
    received: usize,
    added: usize,
    /// Parts that were not added, each with its first element.
    held: VecDeque<(usize, Vec<u8>)>,
}

impl ClockSum {
    /// Of updates of `length` elements, in the order of ranks.
    pub fn in_order_of_ranks(members: impl IntoIterator<Item = usize>, length: usize) -> ClockSum {
        let arrival = |member| Arrival { member, length, ..Arrival::default() };
        ClockSum { order: Order::Ranks, workers: members.into_iter().map(arrival).collect() }
    }

    /// Of the terms of a tree, which names workers by their number; each has `length` elements and its loss.
    pub fn along(tree: ReductionTree, members: impl IntoIterator<Item = usize>, length: usize) -> ClockSum {
        let arrival = |(number, member)| {
            let terms = tree.terms().iter().filter(|term| term.rank == number).count();
            Arrival { member, length: terms * (length + 1), ..Arrival::default() }
        };
        let workers = members.into_iter().enumerate().map(arrival).collect();
        ClockSum { order: Order::Tree(tree, length + 1), workers }
    }

    /// Takes the next part of a worker's update, and shows `add` what can be added now.
    pub fn receive(
        &mut self,
        member: usize,
        start: usize,
        values: Values<'_>,
        mut add: impl FnMut(usize, Values<'_>),
    ) -> Result<(), String> {
        let Some(index) = self.workers.iter().position(|worker| worker.member == member) else {
            return Err("pushed an update that no worker owes".into());
        };
        let limit = match (&self.order, index) {
            (Order::Tree(..), _) => 0,
            (Order::Ranks, 0) => usize::MAX,
            (Order::Ranks, _) => self.workers[index - 1].added,
        };
        let worker = &mut self.workers[index];
        let end = start.saturating_add(values.len());
        if start != worker.received || end > worker.length {
            let Arrival { received, length, .. } = worker;
            return Err(format!("pushed elements {start} to {end}, after {received} of {length}"));
        }
        worker.received = end;
        if worker.added == start && end <= limit {
            add(start, values);
            worker.added = end;
        } else {
            worker.held.push_back((start, values.as_bytes().to_vec()));
        }
        if let Order::Ranks = self.order {
            self.add_held(add);
        }
        Ok(())
    }

    /// Adds what was held for an earlier worker.
    fn add_held(&mut self, mut add: impl FnMut(usize, Values<'_>)) {
        let mut limit = usize::MAX;
        for worker in &mut self.workers {
            while let Some((start, bytes)) = worker.held.front() {
                let (start, values) = (*start, Values::of_bytes(bytes));
                let end = (start + values.len()).min(limit);
                if end <= worker.added {
                    break;
                }
                if !known_bugs::drops_held() {
                    add(worker.added, values.slice(worker.added - start..end - start));
                }
                worker.added = end;
                if end < start + values.len() {
                    break;
                }
                worker.held.pop_front();
            }
            limit = worker.added;
        }
    }

    /// Whether all of a worker's update has arrived.
    pub fn has_all_of(&self, member: usize) -> bool {
        self.workers.iter().any(|worker| worker.member == member && worker.received == worker.length)
    }

    /// All updates have arrived: adds what is held. Along a tree, returns the sum of the losses.
    pub fn finish(&mut self, mut add: impl FnMut(usize, Values<'_>)) -> Option<f64> {
        let Order::Tree(tree, length) = &self.order else { return None };
        let floats = |worker: &Arrival| -> Vec<f32> {
            worker
                .held
                .iter()
                .flat_map(|(_, bytes)| Values::of_bytes(bytes).iter().collect::<Vec<f32>>())
                .collect()
        };
        let held: Vec<Vec<f32>> = self.workers.iter().map(floats).collect();
        let term = |rank: usize, slot: usize| &held[rank][slot * length..(slot + 1) * length];
        let terms: Vec<&[f32]> = tree.terms().iter().map(|at| term(at.rank, at.slot)).collect();
        let mut sum = vec![0.0; *length];
        if !terms.is_empty() {
            tree.evaluate(&mut sum, &terms);
        }
        let (loss, sum) = sum.split_last()?;
        add(0, Values::of(sum));
        Some(f64::from(*loss))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_cluster::Term;

    /// Numbers whose sum depends on the order.
    fn update(worker: usize, length: usize) -> Vec<f32> {
        (0..length).map(|index| (0.1 + index as f32).powi(worker as i32 % 7 - 3)).collect()
    }

    proptest! {
        /// Whatever the order in which parts arrive, and however updates are cut: the same bits.
        #[test]
        fn workers_are_added_in_the_order_of_ranks(
            workers in 1usize..5, length in 0usize..40, choices in prop::collection::vec((0usize..5, 1usize..20), 0..60),
        ) {
            let updates: Vec<Vec<f32>> = (0..workers).map(|worker| update(worker, length)).collect();
            let mut clock = ClockSum::in_order_of_ranks((0..workers).map(|worker| 10 + worker), length);
            let (mut sum, mut sent) = (vec![-0.0; length], vec![0; workers]);
            // At last what the choices have left.
            let rest = (0..workers).map(|worker| (worker, length));
            for (choice, part) in choices.into_iter().chain(rest) {
                let worker = choice % workers;
                let part = sent[worker]..(sent[worker] + part).min(length);
                sent[worker] = part.end;
                let values = Values::of(&updates[worker][part.clone()]);
                clock.receive(10 + worker, part.start, values, |start, values| {
                    values.add_to(&mut sum[start..start + values.len()]);
                }).unwrap();
                prop_assert_eq!(clock.has_all_of(10 + worker), part.end == length);
            }
            prop_assert_eq!(clock.finish(|_, _| unreachable!()), None);
            let expected: Vec<u32> = (0..length)
                .map(|index| updates.iter().map(|update| update[index]).fold(-0.0, |sum: f32, value| sum + value).to_bits())
                .collect();
            prop_assert_eq!(sum.iter().map(|value| value.to_bits()).collect::<Vec<u32>>(), expected);
        }
    }

    #[test]
    fn terms_of_a_tree_are_added_along_it() {
        // t0 + (t1 + t2): worker 0 has the first two.
        let mut tree = ReductionTree::default();
        [(0, 0), (0, 1), (1, 0)].into_iter().for_each(|(rank, slot)| tree.push(Term { rank, slot }));
        tree.add();
        tree.add();
        let terms: Vec<Vec<f32>> = (0..3).map(|term| update(term, 3)).collect();
        let mut clock = ClockSum::along(tree, [4, 6], 2);
        let nothing = |_: usize, _: Values<'_>| unreachable!("before all have arrived");
        clock.receive(6, 0, Values::of(&terms[2]), nothing).unwrap();
        clock.receive(4, 0, Values::of(&terms[0]), nothing).unwrap();
        assert!(clock.has_all_of(6) && !clock.has_all_of(4));
        clock.receive(4, 3, Values::of(&terms[1]), nothing).unwrap();
        let mut sum = vec![-0.0; 2];
        let loss = clock.finish(|start, values| values.add_to(&mut sum[start..]));
        let along = |index: usize| terms[0][index] + (terms[1][index] + terms[2][index]);
        assert_eq!((sum, loss), (vec![along(0), along(1)], Some(f64::from(along(2)))));
    }

    #[test]
    fn parts_that_make_no_sense_are_refused() {
        let mut clock = ClockSum::in_order_of_ranks([3, 4], 2);
        let mut refused = |member: usize, start: usize, length: usize| {
            clock.receive(member, start, Values::of(&vec![1.0; length]), |_, _| ()).unwrap_err()
        };
        assert!(refused(5, 0, 1).contains("no worker owes"));
        assert!(refused(4, 1, 1).contains("elements 1 to 2, after 0 of 2"));
        assert!(refused(4, 0, 3).contains("elements 0 to 3"));
        assert!(refused(4, usize::MAX, 1).contains("after 0"));
    }
}
