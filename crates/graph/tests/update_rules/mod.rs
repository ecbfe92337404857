//! Update rules, gradient transformations and tensors on which they are tested.

use thalweg_core::Layout;
use thalweg_core::model::{Density, TensorRole};
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_graph::optimizer::GradientTransform;

/// Epsilons are large: near 0 the quotient of a gradient and its own norm amplifies rounding errors.
pub const RULES: [UpdateRule; 9] = [
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

pub fn transforms() -> [GradientTransform; 6] {
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

/// A bias, statistics to which no rule may apply, and two matrices; the last is 0 at first.
pub fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("bias", &[7], TensorRole::Trainable, Density::Dense);
    layout.push("mean", &[3], TensorRole::Statistic, Density::Dense);
    layout.push("weight", &[23, 50], TensorRole::Trainable, Density::Dense);
    layout.push("zeros", &[3, 3], TensorRole::Trainable, Density::Dense);
    layout
}

/// Multiples of 1/64.
pub fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 37 + i * 53) % 97) as f32 / 64.0 - 0.75).collect()
}

pub fn first_parameters() -> Vec<f32> {
    let layout = layout();
    let mut parameters = numbers(layout.len(), 100);
    parameters[layout.tensors()[3].range()].fill(0.0);
    parameters
}
