//! Update rules against their formulas in double precision, in parts, and with corrected gradients.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_core::Layout;
use thalweg_core::model::{Density, Role};
use thalweg_core::spec::optimizer::Rule;
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::Correction;

/// Epsilons are large: near 0 the quotient of a gradient and its own length tells rounding errors apart, not formulas.
const RULES: [Rule; 9] = [
    Rule::Sgd { lr: 0.1 },
    Rule::Momentum { lr: 0.1, momentum: 0.9 },
    Rule::Nesterov { lr: 0.1, momentum: 0.8 },
    Rule::Adagrad { lr: 0.1, epsilon: 0.01 },
    Rule::Rmsprop { lr: 0.01, beta2: 0.9, epsilon: 0.01 },
    Rule::Adam { lr: 0.1, beta1: 0.8, beta2: 0.95, epsilon: 0.05 },
    Rule::Adamw { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 0.01, weight_decay: 0.1 },
    Rule::Lars { lr: 0.5, momentum: 0.9, weight_decay: 0.01, trust: 0.02 },
    Rule::Lamb { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 0.01, weight_decay: 0.1 },
];

fn corrections() -> [Correction; 6] {
    let none = Correction::default();
    [
        none,
        Correction { weight_decay: 0.1, ..none },
        Correction { l1: 0.05, l2: 0.1, ..none },
        Correction { clip_value: Some(0.3), ..none },
        Correction { clip_norm: Some(1.5), ..none },
        Correction { l1: 0.01, l2: 0.02, clip_value: Some(0.5), clip_norm: Some(1.0), weight_decay: 0.03 },
    ]
}

/// A bias, statistics that nobody may touch, and two matrices; the last is 0 at first.
fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("bias", &[7], Role::Trainable, Density::Dense);
    layout.push("mean", &[3], Role::Statistic, Density::Dense);
    layout.push("weight", &[23, 50], Role::Trainable, Density::Dense);
    layout.push("zeros", &[3, 3], Role::Trainable, Density::Dense);
    layout
}

/// Multiples of 1/64.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 37 + i * 53) % 97) as f32 / 64.0 - 0.75).collect()
}

fn first_parameters() -> Vec<f32> {
    let layout = layout();
    let mut parameters = numbers(layout.len(), 100);
    parameters[layout.tensors()[3].range()].fill(0.0);
    parameters
}

fn walk(rule: Rule, correction: &Correction, steps: std::ops::RangeInclusive<usize>) -> Vec<f32> {
    let mut optimizer = Optimizer::for_layout(rule, &layout());
    let mut parameters = first_parameters();
    for step in steps {
        optimizer.step(rule.lr(), correction, &mut parameters, &numbers(layout().len(), step));
    }
    parameters
}

/// The gradient as the documentation of a correction writes it.
fn corrected(correction: &Correction, layout: &Layout, w: &[f64], g: &[f64]) -> Vec<f64> {
    let bound = correction.clip_value.map_or(f64::INFINITY, f64::from);
    let sign = |w: f64| if w == 0.0 { 0.0 } else { w.signum() };
    let penalty = |w: f64| f64::from(correction.l1) * sign(w) + f64::from(correction.l2) * w;
    let mut all: Vec<f64> = g.iter().zip(w).map(|(g, w)| (g + penalty(*w)).clamp(-bound, bound)).collect();
    for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Statistic) {
        all[tensor.range()].fill(0.0);
    }
    let length = all.iter().map(|g| g * g).sum::<f64>().sqrt();
    let scale = correction.clip_norm.map_or(1.0, |most| (f64::from(most) / length).min(1.0));
    all.iter().zip(w).map(|(g, w)| g * scale + f64::from(correction.weight_decay) * w).collect()
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// One step of one tensor, as the papers write it.
fn plain_step(rule: Rule, t: i32, is_vector: bool, w: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64]) {
    let d = f64::from;
    let mean = |beta: f32, old: f64, new: f64| d(beta) * old + (1.0 - d(beta)) * new;
    let adam = |m: f64, v: f64, beta1: f32, beta2: f32, epsilon: f32| {
        (m / (1.0 - d(beta1).powi(t))) / ((v / (1.0 - d(beta2).powi(t))).sqrt() + d(epsilon))
    };
    let whole = (length(w), length(g));
    let ratio = |from: f64, to: f64| if is_vector || from == 0.0 || to == 0.0 { 1.0 } else { from / to };
    for i in 0..w.len() {
        match rule {
            Rule::Sgd { lr } => w[i] -= d(lr) * g[i],
            Rule::Momentum { lr, momentum } => {
                m[i] = d(momentum) * m[i] + g[i];
                w[i] -= d(lr) * m[i];
            }
            Rule::Nesterov { lr, momentum } => {
                m[i] = d(momentum) * m[i] + g[i];
                w[i] -= d(lr) * (g[i] + d(momentum) * m[i]);
            }
            Rule::Adagrad { lr, epsilon } => {
                v[i] += g[i] * g[i];
                w[i] -= d(lr) * g[i] / (v[i].sqrt() + d(epsilon));
            }
            Rule::Rmsprop { lr, beta2, epsilon } => {
                v[i] = mean(beta2, v[i], g[i] * g[i]);
                w[i] -= d(lr) * g[i] / (v[i].sqrt() + d(epsilon));
            }
            Rule::Adam { beta1, beta2, .. }
            | Rule::Adamw { beta1, beta2, .. }
            | Rule::Lamb { beta1, beta2, .. } => {
                m[i] = mean(beta1, m[i], g[i]);
                v[i] = mean(beta2, v[i], g[i] * g[i]);
            }
            Rule::Lars { lr, momentum, weight_decay, trust } => {
                let decay = if is_vector { 0.0 } else { d(weight_decay) };
                let rate = match ratio(whole.0, whole.1 + decay * whole.0) {
                    _ if is_vector || whole.0 == 0.0 => d(lr),
                    ratio => d(lr) * d(trust) * ratio,
                };
                m[i] = d(momentum) * m[i] + rate * (g[i] + decay * w[i]);
                w[i] -= m[i];
            }
        }
    }
    match rule {
        Rule::Adam { lr, beta1, beta2, epsilon } => {
            (0..w.len()).for_each(|i| w[i] -= d(lr) * adam(m[i], v[i], beta1, beta2, epsilon));
        }
        Rule::Adamw { lr, beta1, beta2, epsilon, weight_decay } => {
            let step = |i: usize, w: f64| adam(m[i], v[i], beta1, beta2, epsilon) + d(weight_decay) * w;
            (0..w.len()).for_each(|i| w[i] -= d(lr) * step(i, w[i]));
        }
        Rule::Lamb { lr, beta1, beta2, epsilon, weight_decay } => {
            let decay = if is_vector { 0.0 } else { d(weight_decay) };
            let r: Vec<f64> =
                (0..w.len()).map(|i| adam(m[i], v[i], beta1, beta2, epsilon) + decay * w[i]).collect();
            let ratio = ratio(whole.0, length(&r));
            (0..w.len()).for_each(|i| w[i] -= d(lr) * ratio * r[i]);
        }
        _ => {}
    }
}

fn plain_walk(rule: Rule, correction: &Correction) -> Vec<f64> {
    let layout = layout();
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let mut w = wide(first_parameters());
    let (mut m, mut v) = (vec![0.0; w.len()], vec![0.0; w.len()]);
    for t in 1..=10 {
        let g = corrected(correction, &layout, &w, &wide(numbers(w.len(), t)));
        for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Trainable) {
            let at = tensor.range();
            let (w, g) = (&mut w[at.clone()], &g[at.clone()]);
            plain_step(rule, t as i32, tensor.shape.len() == 1, w, g, &mut m[at.clone()], &mut v[at]);
        }
    }
    w
}

#[test]
fn ten_steps_are_those_of_the_formula_however_gradients_are_corrected() {
    for rule in RULES {
        for correction in corrections() {
            let (got, expected) = (walk(rule, &correction, 1..=10), plain_walk(rule, &correction));
            for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
                let error = (f64::from(*got) - expected).abs();
                let what = format!("{rule:?} {correction:?} element {index}");
                assert!(error <= 2e-6 * expected.abs().max(1.0), "{what}: {got}, expected {expected}");
            }
        }
    }
}

#[test]
fn statistics_are_left_alone() {
    let mean = layout().tensors()[1].range();
    for rule in RULES {
        for correction in corrections() {
            assert_eq!(walk(rule, &correction, 1..=10)[mean.clone()], first_parameters()[mean.clone()]);
        }
    }
}

#[test]
fn a_state_that_moves_goes_on_with_the_same_bits() {
    for rule in RULES {
        let correction = corrections()[5];
        let (len, mut parameters) = (layout().len(), first_parameters());
        let mut before = Optimizer::for_layout(rule, &layout());
        (1..=4).for_each(|step| before.step(0.01, &correction, &mut parameters, &numbers(len, step)));
        let mut whole = (before.clone(), parameters.clone());

        let mut after = Optimizer::for_layout(rule, &layout());
        after.set_steps(before.steps());
        for ((name, to), (same_name, from)) in after.slots_mut().into_iter().zip(before.slots()) {
            assert_eq!(name, same_name);
            to.copy_from_slice(from);
        }
        for step in 5..=10 {
            after.step(0.02, &correction, &mut parameters, &numbers(len, step));
            whole.0.step(0.02, &correction, &mut whole.1, &numbers(len, step));
        }
        assert_eq!(parameters, whole.1, "{rule:?}");
    }
}

#[test]
fn a_tensor_of_zeros_leaves_zero_and_a_gradient_of_zeros_does_no_harm() {
    let zeros = layout().tensors()[3].range();
    for rule in RULES {
        let moved = &walk(rule, &Correction::default(), 1..=1)[zeros.clone()];
        assert!(moved.iter().all(|value| *value != 0.0), "{rule:?}");
        for clip_norm in [None, Some(1.0)] {
            let mut parameters = numbers(40, 3);
            let correction = Correction { clip_norm, ..Correction::default() };
            Optimizer::new(rule, 40).step(0.1, &correction, &mut parameters, &[0.0; 40]);
            assert!(parameters.iter().all(|value| value.is_finite()), "{rule:?}");
        }
    }
}

#[test]
fn lars_changes_a_tensor_by_its_share_of_trust() {
    let rule = Rule::Lars { lr: 0.5, momentum: 0.9, weight_decay: 0.0, trust: 0.02 };
    let (before, mut after) = (numbers(1000, 1), numbers(1000, 1));
    let huge: Vec<f32> = numbers(1000, 2).iter().map(|value| value * 1e6).collect();
    Optimizer::new(rule, 1000).update(&mut after, &huge);
    let moved: Vec<f64> = before.iter().zip(&after).map(|(a, b)| f64::from(a - b)).collect();
    let before: Vec<f64> = before.into_iter().map(f64::from).collect();
    assert!((length(&moved) / length(&before) - 0.01).abs() < 1e-6, "{}", length(&moved) / length(&before));
}

#[test]
fn what_is_not_a_number_is_not_clipped_away() {
    for correction in corrections() {
        let mut parameters = [1.0, 1.0];
        Optimizer::new(RULES[0], 2).step(0.1, &correction, &mut parameters, &[f32::NAN, 0.0]);
        assert!(parameters[0].is_nan());
    }
}

#[test]
fn slices_of_another_length_are_a_bug() {
    let update = || Optimizer::new(RULES[0], 3).update(&mut [0.0; 3], &[0.0; 2]);
    assert!(std::panic::catch_unwind(update).is_err());
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config(64))]

    /// What lets servers and neighbours hold a share each. The length of the gradient is the shares' sum.
    #[test]
    fn shares_of_a_buffer_update_to_the_same_bits(len in 0..300usize, cut in 0.0..1.0f64, seed in 0..50usize) {
        let middle = (len as f64 * cut) as usize;
        for rule in RULES.into_iter().filter(Rule::is_elementwise) {
            for correction in corrections().into_iter().filter(|correction| correction.clip_norm.is_none()) {
                let (mut whole, mut parts) = (numbers(len, 100 + seed), numbers(len, 100 + seed));
                let (left, right) = parts.split_at_mut(middle);
                let mut optimizer = Optimizer::new(rule, len);
                let mut optimizers = [Optimizer::new(rule, middle), Optimizer::new(rule, len - middle)];
                for step in 1..=5 {
                    let gradient = numbers(len, step + seed);
                    optimizer.step(0.1, &correction, &mut whole, &gradient);
                    optimizers[0].step(0.1, &correction, left, &gradient[..middle]);
                    optimizers[1].step(0.1, &correction, right, &gradient[middle..]);
                }
                prop_assert_eq!(&whole, &parts, "{:?}", rule);
            }
        }
    }

    /// Whatever comes in, what the rule sees is as long as the bound, or as it was.
    #[test]
    fn a_clipped_gradient_has_the_length_of_the_bound(
        gradient in proptest::collection::vec(-1e3..1e3f32, 1..3000),
        bound in 1e-3..1e5f32,
    ) {
        let correction = Correction { clip_norm: Some(bound), ..Correction::default() };
        let mut parameters = vec![0.0; gradient.len()];
        Optimizer::new(Rule::Sgd { lr: 1.0 }, gradient.len()).step(1.0, &correction, &mut parameters, &gradient);
        let wide = |values: &[f32]| length(&values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
        let (before, after) = (wide(&gradient), wide(&parameters));
        if before <= f64::from(bound) {
            prop_assert!(parameters.iter().zip(&gradient).all(|(w, g)| *w == -*g));
        } else {
            prop_assert!((after / f64::from(bound) - 1.0).abs() < 1e-6, "{} {}", after, bound);
        }
    }
}
