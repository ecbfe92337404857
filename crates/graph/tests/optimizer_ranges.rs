//! Updates of ranges of the buffers: the same bits as the update of all elements.

mod training_state;
mod update_rules;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_graph::optimizer::Scope;
use thalweg_graph::{Moment, Optimizer};
use training_state::TrainingState;
use update_rules::{RULES, first_parameters, layout, numbers, transforms};

#[test]
fn ranges_outside_of_the_parameters_and_rules_with_a_wider_scope_are_refused() {
    let is_accepted = |optimizer: &Optimizer, start: usize| {
        let from = TrainingState::new(optimizer.rule(), vec![0.0; 2]).columns;
        let mut to = from.clone();
        let apply = || {
            let from = from.each_ref().map(|values| &values[..]);
            let to = to.each_mut().map(|values| &mut values[..]);
            optimizer.apply_range(Moment { updates: 0, rate: 0.1 }, start..start + 2, from, to, &[1.0; 2]);
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(apply)).is_ok()
    };
    for rule in RULES {
        for transform in transforms() {
            let optimizer = Optimizer::new(rule, 4).with_transform(transform);
            let is_elementwise = optimizer.scope() == Scope::Element;
            assert_eq!(is_accepted(&optimizer, 2), is_elementwise, "{rule:?} {transform:?}");
            assert!(!is_accepted(&optimizer, 3), "{rule:?} {transform:?}");
        }
    }
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config(64))]

    /// Allows parameter servers and ranks to hold a shard each.
    #[test]
    fn shards_update_to_the_same_bits(len in 0..300usize, cut in 0.0..1.0f64, seed in 0..50usize) {
        let middle = (len as f64 * cut) as usize;
        for rule in RULES.into_iter().filter(UpdateRule::is_elementwise) {
            for transform in transforms().into_iter().filter(|transform| transform.clip_norm.is_none()) {
                let parameters = numbers(len, 100 + seed);
                let optimizers =
                    [len, middle, len - middle].map(|len| Optimizer::new(rule, len).with_transform(transform));
                let mut whole = TrainingState::new(rule, parameters.clone());
                let mut left = TrainingState::new(rule, parameters[..middle].to_vec());
                let mut right = TrainingState::new(rule, parameters[middle..].to_vec());
                for step in 1..=5 {
                    let gradient = numbers(len, step + seed);
                    whole.update(&optimizers[0], 0.1, &gradient);
                    left.update(&optimizers[1], 0.1, &gradient[..middle]);
                    right.update(&optimizers[2], 0.1, &gradient[middle..]);
                }
                for (column, whole) in whole.columns.iter().enumerate() {
                    let parts = [&left.columns[column][..], &right.columns[column]].concat();
                    prop_assert_eq!(whole, &parts, "{:?}", rule);
                }
            }
        }
    }

    /// Servers hold whole tensors for the rules that need them.
    #[test]
    fn parts_that_cut_no_tensor_update_to_the_bits_of_the_whole(cut in 0..10usize) {
        let layout = layout();
        let starts: Vec<usize> = layout.tensors().iter().map(|tensor| tensor.offset).collect();
        let middle = starts[cut % starts.len()];
        for rule in RULES {
            for transform in transforms() {
                let optimizer = Optimizer::for_layout(rule, &layout).with_transform(transform);
                if optimizer.scope() == Scope::Gradient {
                    continue;
                }
                let mut whole = TrainingState::new(rule, first_parameters());
                let ranges = [0..middle, middle..layout.len()];
                let mut parts: Vec<(Optimizer, TrainingState)> = ranges
                    .iter()
                    .map(|range| {
                        let own = whole.columns[0][range.clone()].to_vec();
                        (optimizer.part(range), TrainingState::new(rule, own))
                    })
                    .collect();
                for step in 1..=3 {
                    let gradient = numbers(layout.len(), step);
                    whole.update(&optimizer, 0.1, &gradient);
                    for ((optimizer, part), range) in parts.iter_mut().zip(&ranges) {
                        part.update(optimizer, 0.1, &gradient[range.clone()]);
                    }
                }
                for (column, whole) in whole.columns.iter().enumerate() {
                    let parts = [&parts[0].1.columns[column][..], &parts[1].1.columns[column]].concat();
                    prop_assert_eq!(whole, &parts, "{:?} {:?}", rule, transform);
                }
            }
        }
    }

    /// All ranges of an update get its moment: how many there are does not matter.
    #[test]
    fn ranges_update_to_the_bits_of_the_whole(mut cuts in proptest::collection::vec(0..=1169usize, 0..6)) {
        let layout = layout();
        prop_assert_eq!(layout.len(), 1169);
        cuts.extend([0, layout.len()]);
        cuts.sort_unstable();
        for rule in RULES {
            for transform in transforms() {
                let optimizer = Optimizer::for_layout(rule, &layout).with_transform(transform);
                if optimizer.scope() != Scope::Element {
                    continue;
                }
                let mut whole = TrainingState::new(rule, first_parameters());
                let mut parts = whole.clone();
                for step in 1..=3 {
                    let gradient = numbers(layout.len(), step);
                    let (moment, from) = (Moment { updates: parts.updates, rate: 0.1 }, parts.columns.clone());
                    for (start, end) in cuts.iter().zip(&cuts[1..]) {
                        let within = |values: &Vec<f32>| if values.is_empty() { 0..0 } else { *start..*end };
                        optimizer.apply_range(
                            moment,
                            *start..*end,
                            from.each_ref().map(|values| &values[within(values)]),
                            parts.columns.each_mut().map(|values| {
                                let range = within(values);
                                &mut values[range]
                            }),
                            &gradient[*start..*end],
                        );
                    }
                    parts.updates += 1;
                    whole.update(&optimizer, 0.1, &gradient);
                    prop_assert_eq!(&parts, &whole, "{:?} {:?} {:?}", rule, transform, cuts);
                }
            }
        }
    }
}
