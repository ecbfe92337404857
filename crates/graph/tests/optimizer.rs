//! Update rules against their formulas in double precision, on shards, and with transformed gradients.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_core::Layout;
use thalweg_core::model::{Density, TensorRole};
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::GradientTransform;

/// Epsilons are large: near 0 the quotient of a gradient and its own norm amplifies rounding errors.
const RULES: [UpdateRule; 9] = [
    UpdateRule::Sgd { lr: 0.1 },
    UpdateRule::Momentum { lr: 0.1, momentum: 0.9 },
    UpdateRule::Nesterov { lr: 0.1, momentum: 0.8 },
    UpdateRule::Adagrad { lr: 0.1, epsilon: 0.01 },
    UpdateRule::Rmsprop { lr: 0.01, beta2: 0.9, epsilon: 0.01 },
    UpdateRule::Adam { lr: 0.1, beta1: 0.8, beta2: 0.95, epsilon: 0.05 },
    UpdateRule::Adamw { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 0.01, weight_decay: 0.1 },
    UpdateRule::Lars { lr: 0.5, momentum: 0.9, weight_decay: 0.01, trust: 0.02 },
    UpdateRule::Lamb { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 0.01, weight_decay: 0.1 },
];

fn transforms() -> [GradientTransform; 6] {
    let none = GradientTransform::default();
    [
        none,
        GradientTransform { weight_decay: 0.1, ..none },
        GradientTransform { l1: 0.05, l2: 0.1, ..none },
        GradientTransform { clip_value: Some(0.3), ..none },
        GradientTransform { clip_norm: Some(1.5), ..none },
        GradientTransform {
            l1: 0.01,
            l2: 0.02,
            clip_value: Some(0.5),
            clip_norm: Some(1.0),
            weight_decay: 0.03,
        },
    ]
}

/// A bias, statistics that no rule may update, and two matrices; the last is 0 at first.
fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("bias", &[7], TensorRole::Trainable, Density::Dense);
    layout.push("mean", &[3], TensorRole::Statistic, Density::Dense);
    layout.push("weight", &[23, 50], TensorRole::Trainable, Density::Dense);
    layout.push("zeros", &[3, 3], TensorRole::Trainable, Density::Dense);
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

fn run(rule: UpdateRule, transform: &GradientTransform, steps: std::ops::RangeInclusive<usize>) -> Vec<f32> {
    let mut optimizer = Optimizer::for_layout(rule, &layout());
    let mut parameters = first_parameters();
    for step in steps {
        optimizer.step(rule.lr(), transform, &mut parameters, &numbers(layout().len(), step));
    }
    parameters
}

/// The transformed gradient, as the documentation defines it.
fn transformed(transform: &GradientTransform, layout: &Layout, w: &[f64], g: &[f64]) -> Vec<f64> {
    let bound = transform.clip_value.map_or(f64::INFINITY, f64::from);
    let sign = |w: f64| if w == 0.0 { 0.0 } else { w.signum() };
    let penalty = |w: f64| f64::from(transform.l1) * sign(w) + f64::from(transform.l2) * w;
    let mut all: Vec<f64> = g.iter().zip(w).map(|(g, w)| (g + penalty(*w)).clamp(-bound, bound)).collect();
    for tensor in layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Statistic) {
        all[tensor.range()].fill(0.0);
    }
    let norm = all.iter().map(|g| g * g).sum::<f64>().sqrt();
    let scale = transform.clip_norm.map_or(1.0, |most| (f64::from(most) / norm).min(1.0));
    all.iter().zip(w).map(|(g, w)| g * scale + f64::from(transform.weight_decay) * w).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// One step of one tensor, as in the papers.
fn reference_step(
    rule: UpdateRule,
    t: i32,
    is_vector: bool,
    w: &mut [f64],
    g: &[f64],
    m: &mut [f64],
    v: &mut [f64],
) {
    let d = f64::from;
    let mean = |beta: f32, old: f64, new: f64| d(beta) * old + (1.0 - d(beta)) * new;
    let adam = |m: f64, v: f64, beta1: f32, beta2: f32, epsilon: f32| {
        (m / (1.0 - d(beta1).powi(t))) / ((v / (1.0 - d(beta2).powi(t))).sqrt() + d(epsilon))
    };
    let whole = (norm(w), norm(g));
    let ratio = |from: f64, to: f64| if is_vector || from == 0.0 || to == 0.0 { 1.0 } else { from / to };
    for i in 0..w.len() {
        match rule {
            UpdateRule::Sgd { lr } => w[i] -= d(lr) * g[i],
            UpdateRule::Momentum { lr, momentum } => {
                m[i] = d(momentum) * m[i] + g[i];
                w[i] -= d(lr) * m[i];
            }
            UpdateRule::Nesterov { lr, momentum } => {
                m[i] = d(momentum) * m[i] + g[i];
                w[i] -= d(lr) * (g[i] + d(momentum) * m[i]);
            }
            UpdateRule::Adagrad { lr, epsilon } => {
                v[i] += g[i] * g[i];
                w[i] -= d(lr) * g[i] / (v[i].sqrt() + d(epsilon));
            }
            UpdateRule::Rmsprop { lr, beta2, epsilon } => {
                v[i] = mean(beta2, v[i], g[i] * g[i]);
                w[i] -= d(lr) * g[i] / (v[i].sqrt() + d(epsilon));
            }
            UpdateRule::Adam { beta1, beta2, .. }
            | UpdateRule::Adamw { beta1, beta2, .. }
            | UpdateRule::Lamb { beta1, beta2, .. } => {
                m[i] = mean(beta1, m[i], g[i]);
                v[i] = mean(beta2, v[i], g[i] * g[i]);
            }
            UpdateRule::Lars { lr, momentum, weight_decay, trust } => {
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
        UpdateRule::Adam { lr, beta1, beta2, epsilon } => {
            (0..w.len()).for_each(|i| w[i] -= d(lr) * adam(m[i], v[i], beta1, beta2, epsilon));
        }
        UpdateRule::Adamw { lr, beta1, beta2, epsilon, weight_decay } => {
            let step = |i: usize, w: f64| adam(m[i], v[i], beta1, beta2, epsilon) + d(weight_decay) * w;
            (0..w.len()).for_each(|i| w[i] -= d(lr) * step(i, w[i]));
        }
        UpdateRule::Lamb { lr, beta1, beta2, epsilon, weight_decay } => {
            let decay = if is_vector { 0.0 } else { d(weight_decay) };
            let r: Vec<f64> =
                (0..w.len()).map(|i| adam(m[i], v[i], beta1, beta2, epsilon) + decay * w[i]).collect();
            let ratio = ratio(whole.0, norm(&r));
            (0..w.len()).for_each(|i| w[i] -= d(lr) * ratio * r[i]);
        }
        _ => {}
    }
}

fn reference_run(rule: UpdateRule, transform: &GradientTransform) -> Vec<f64> {
    let layout = layout();
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let mut w = wide(first_parameters());
    let (mut m, mut v) = (vec![0.0; w.len()], vec![0.0; w.len()]);
    for t in 1..=10 {
        let g = transformed(transform, &layout, &w, &wide(numbers(w.len(), t)));
        for tensor in layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Trainable) {
            let at = tensor.range();
            let (w, g) = (&mut w[at.clone()], &g[at.clone()]);
            reference_step(rule, t as i32, tensor.shape.len() == 1, w, g, &mut m[at.clone()], &mut v[at]);
        }
    }
    w
}

#[test]
fn ten_steps_match_the_formula_for_every_gradient_transform() {
    for rule in RULES {
        for transform in transforms() {
            let (got, expected) = (run(rule, &transform, 1..=10), reference_run(rule, &transform));
            for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
                let error = (f64::from(*got) - expected).abs();
                let what = format!("{rule:?} {transform:?} element {index}");
                assert!(error <= 2e-6 * expected.abs().max(1.0), "{what}: {got}, expected {expected}");
            }
        }
    }
}

#[test]
fn statistics_are_left_alone() {
    let mean = layout().tensors()[1].range();
    for rule in RULES {
        for transform in transforms() {
            assert_eq!(run(rule, &transform, 1..=10)[mean.clone()], first_parameters()[mean.clone()]);
        }
    }
}

#[test]
fn a_restored_state_continues_with_the_same_bits() {
    for rule in RULES {
        let transform = transforms()[5];
        let (len, mut parameters) = (layout().len(), first_parameters());
        let mut before = Optimizer::for_layout(rule, &layout());
        (1..=4).for_each(|step| before.step(0.01, &transform, &mut parameters, &numbers(len, step)));
        let mut whole = (before.clone(), parameters.clone());

        let mut after = Optimizer::for_layout(rule, &layout());
        after.set_steps(before.steps());
        for ((name, to), (same_name, from)) in after.slots_mut().into_iter().zip(before.slots()) {
            assert_eq!(name, same_name);
            to.copy_from_slice(from);
        }
        for step in 5..=10 {
            after.step(0.02, &transform, &mut parameters, &numbers(len, step));
            whole.0.step(0.02, &transform, &mut whole.1, &numbers(len, step));
        }
        assert_eq!(parameters, whole.1, "{rule:?}");
    }
}

#[test]
fn a_zero_tensor_is_updated_and_a_zero_gradient_stays_finite() {
    let zeros = layout().tensors()[3].range();
    for rule in RULES {
        let moved = &run(rule, &GradientTransform::default(), 1..=1)[zeros.clone()];
        assert!(moved.iter().all(|value| *value != 0.0), "{rule:?}");
        for clip_norm in [None, Some(1.0)] {
            let mut parameters = numbers(40, 3);
            let transform = GradientTransform { clip_norm, ..GradientTransform::default() };
            Optimizer::new(rule, 40).step(0.1, &transform, &mut parameters, &[0.0; 40]);
            assert!(parameters.iter().all(|value| value.is_finite()), "{rule:?}");
        }
    }
}

#[test]
fn lars_changes_a_tensor_by_the_trust_coefficient() {
    let rule = UpdateRule::Lars { lr: 0.5, momentum: 0.9, weight_decay: 0.0, trust: 0.02 };
    let (before, mut after) = (numbers(1000, 1), numbers(1000, 1));
    let huge: Vec<f32> = numbers(1000, 2).iter().map(|value| value * 1e6).collect();
    Optimizer::new(rule, 1000).update(&mut after, &huge);
    let moved: Vec<f64> = before.iter().zip(&after).map(|(a, b)| f64::from(a - b)).collect();
    let before: Vec<f64> = before.into_iter().map(f64::from).collect();
    assert!((norm(&moved) / norm(&before) - 0.01).abs() < 1e-6, "{}", norm(&moved) / norm(&before));
}

#[test]
fn clipping_keeps_nan() {
    for transform in transforms() {
        let mut parameters = [1.0, 1.0];
        Optimizer::new(RULES[0], 2).step(0.1, &transform, &mut parameters, &[f32::NAN, 0.0]);
        assert!(parameters[0].is_nan());
    }
}

#[test]
fn slices_of_another_length_panic() {
    let update = || Optimizer::new(RULES[0], 3).update(&mut [0.0; 3], &[0.0; 2]);
    assert!(std::panic::catch_unwind(update).is_err());
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
                let (mut whole, mut parts) = (numbers(len, 100 + seed), numbers(len, 100 + seed));
                let (left, right) = parts.split_at_mut(middle);
                let mut optimizer = Optimizer::new(rule, len);
                let mut optimizers = [Optimizer::new(rule, middle), Optimizer::new(rule, len - middle)];
                for step in 1..=5 {
                    let gradient = numbers(len, step + seed);
                    optimizer.step(0.1, &transform, &mut whole, &gradient);
                    optimizers[0].step(0.1, &transform, left, &gradient[..middle]);
                    optimizers[1].step(0.1, &transform, right, &gradient[middle..]);
                }
                prop_assert_eq!(&whole, &parts, "{:?}", rule);
            }
        }
    }

    /// The clipped gradient has the bound as its norm, or is unchanged.
    #[test]
    fn a_clipped_gradient_has_the_norm_of_the_bound(
        gradient in proptest::collection::vec(-1e3..1e3f32, 1..3000),
        bound in 1e-3..1e5f32,
    ) {
        let transform = GradientTransform { clip_norm: Some(bound), ..GradientTransform::default() };
        let mut parameters = vec![0.0; gradient.len()];
        Optimizer::new(UpdateRule::Sgd { lr: 1.0 }, gradient.len()).step(1.0, &transform, &mut parameters, &gradient);
        let wide = |values: &[f32]| norm(&values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>());
        let (before, after) = (wide(&gradient), wide(&parameters));
        if before <= f64::from(bound) {
            prop_assert!(parameters.iter().zip(&gradient).all(|(w, g)| *w == -*g));
        } else {
            prop_assert!((after / f64::from(bound) - 1.0).abs() < 1e-6, "{} {}", after, bound);
        }
    }
}
