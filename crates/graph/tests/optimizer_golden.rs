//! Ten steps of every rule against PyTorch 2.15 (`golden/optimizers.py` prints `golden/optimizers.txt`).

mod training_state;

use thalweg_core::model::{Density, TensorRole};
use thalweg_core::spec::JobLayers;
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::spec::schedule::LearningRateSchedule;
use thalweg_core::{Job, Layout};
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::GradientTransform;
use training_state::TrainingState;

const SGD: UpdateRule = UpdateRule::Sgd { lr: 0.1 };
const MOMENTUM: UpdateRule = UpdateRule::Momentum { lr: 0.1, momentum: 0.9 };
const NESTEROV: UpdateRule = UpdateRule::Nesterov { lr: 0.1, momentum: 0.9 };
const ADAGRAD: UpdateRule = UpdateRule::Adagrad { lr: 0.1, epsilon: 1e-10 };
const RMSPROP: UpdateRule = UpdateRule::Rmsprop { lr: 0.01, beta2: 0.99, epsilon: 1e-8 };
const ADAM: UpdateRule = UpdateRule::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const ADAMW: UpdateRule =
    UpdateRule::Adamw { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
const LARS: UpdateRule = UpdateRule::Lars { lr: 0.5, momentum: 0.9, weight_decay: 0.01, trust: 0.02 };
const LAMB: UpdateRule =
    UpdateRule::Lamb { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.1 };

const NONE: GradientTransform =
    GradientTransform { l1: 0.0, l2: 0.0, clip_value: None, clip_norm: None, weight_decay: 0.0 };
const DECAY: GradientTransform = GradientTransform { weight_decay: 0.1, ..NONE };

/// A bias and a matrix, 17 elements.
fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("bias", &[5], TensorRole::Trainable, Density::Dense);
    layout.push("weight", &[3, 4], TensorRole::Trainable, Density::Dense);
    layout
}

/// A line of the script's output.
fn golden(name: &str) -> Vec<f64> {
    let lines = include_str!("golden/optimizers.txt").lines();
    let mut found = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.next().unwrap().split(' ').map(|number| number.parse().unwrap()).collect()
}

/// Multiples of 1/64, the same as in the script.
fn numbers(seed: usize) -> Vec<f32> {
    (0..17).map(|i| ((seed * 37 + i * 53) % 97) as f32 / 64.0 - 0.75).collect()
}

fn assert_ten_steps(name: &str, rule: UpdateRule, transform: GradientTransform, rate: impl Fn(u64) -> f32) {
    let expected = golden(name);
    let optimizer = Optimizer::for_layout(rule, &layout()).with_transform(transform);
    let mut state = TrainingState::new(rule, numbers(100));
    for step in 0..10 {
        state.update(&optimizer, rate(step), &numbers(step as usize + 1));
    }
    let [parameters, ..] = state.columns;
    assert_eq!((parameters.len(), state.updates), (expected.len(), 10), "{name}");
    for (got, expected) in parameters.iter().zip(expected) {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= 5e-7 * expected.abs().max(1.0), "{name}: {got}, expected {expected}");
    }
}

#[test]
fn ten_steps_match_pytorch() {
    let larger = UpdateRule::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let by_value = GradientTransform { clip_value: Some(0.3), ..DECAY };
    let by_norm = GradientTransform { clip_norm: Some(1.0), ..DECAY };
    let penalized = GradientTransform { l1: 0.05, l2: 0.1, clip_norm: Some(1.0), ..NONE };
    for (name, rule, transform) in [
        ("sgd", SGD, NONE),
        ("momentum", MOMENTUM, NONE),
        ("nesterov", NESTEROV, NONE),
        ("adagrad", ADAGRAD, NONE),
        ("rmsprop", RMSPROP, NONE),
        ("adam", ADAM, NONE),
        ("adamw", ADAMW, NONE),
        ("lars", LARS, NONE),
        ("lamb", LAMB, NONE),
        ("sgd, decay", SGD, DECAY),
        ("nesterov, decay", NESTEROV, DECAY),
        ("adagrad, decay", ADAGRAD, DECAY),
        ("rmsprop, decay", RMSPROP, DECAY),
        ("adam, decay", larger, DECAY),
        ("momentum, clipped by value", MOMENTUM, by_value),
        ("momentum, clipped by norm", MOMENTUM, by_norm),
        ("momentum, penalized and clipped", MOMENTUM, penalized),
    ] {
        assert_ten_steps(name, rule, transform, |_| rule.lr());
    }
}

#[test]
fn ten_steps_with_a_schedule_match_pytorch() {
    let mut layers = JobLayers::default();
    layers.add_assignment("train.optimizer={kind='adamw', lr=0.1, weight_decay=0.1}").unwrap();
    layers.add_assignment("train.schedule={kind='cosine', final_lr=0.01}").unwrap();
    let job = Job::parse(layers).unwrap().spec;
    let schedule = LearningRateSchedule::new(&job, 10);
    let rule = job.optimizer.rule();
    assert_ten_steps("adamw, cosine", rule, GradientTransform::of(&job), |step| schedule.rate(step));
}
