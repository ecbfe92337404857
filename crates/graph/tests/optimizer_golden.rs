//! Ten steps of every rule against numbers made with PyTorch 2.15 (`golden/optimizers.py` printed `golden/optimizers.txt`).

use thalweg_core::model::{Density, Role};
use thalweg_core::spec::Layers;
use thalweg_core::spec::optimizer::Rule;
use thalweg_core::spec::schedule::Schedule;
use thalweg_core::{Job, Layout};
use thalweg_graph::Optimizer;
use thalweg_graph::optimizer::Correction;

const SGD: Rule = Rule::Sgd { lr: 0.1 };
const MOMENTUM: Rule = Rule::Momentum { lr: 0.1, momentum: 0.9 };
const NESTEROV: Rule = Rule::Nesterov { lr: 0.1, momentum: 0.9 };
const ADAGRAD: Rule = Rule::Adagrad { lr: 0.1, epsilon: 1e-10 };
const RMSPROP: Rule = Rule::Rmsprop { lr: 0.01, beta2: 0.99, epsilon: 1e-8 };
const ADAM: Rule = Rule::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
const ADAMW: Rule = Rule::Adamw { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 };
const LARS: Rule = Rule::Lars { lr: 0.5, momentum: 0.9, weight_decay: 0.01, trust: 0.02 };
const LAMB: Rule = Rule::Lamb { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.1 };

const NONE: Correction =
    Correction { l1: 0.0, l2: 0.0, clip_value: None, clip_norm: None, weight_decay: 0.0 };
const DECAY: Correction = Correction { weight_decay: 0.1, ..NONE };

/// A bias and a matrix, 17 numbers.
fn layout() -> Layout {
    let mut layout = Layout::default();
    layout.push("bias", &[5], Role::Trainable, Density::Dense);
    layout.push("weight", &[3, 4], Role::Trainable, Density::Dense);
    layout
}

/// A line of the script's answer.
fn golden(name: &str) -> Vec<f64> {
    let lines = include_str!("golden/optimizers.txt").lines();
    let mut found = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.next().unwrap().split(' ').map(|number| number.parse().unwrap()).collect()
}

/// Multiples of 1/64, the same as in the script.
fn numbers(seed: usize) -> Vec<f32> {
    (0..17).map(|i| ((seed * 37 + i * 53) % 97) as f32 / 64.0 - 0.75).collect()
}

fn assert_ten_steps(name: &str, rule: Rule, correction: Correction, rate: impl Fn(u64) -> f32) {
    let expected = golden(name);
    let mut parameters = numbers(100);
    let mut optimizer = Optimizer::for_layout(rule, &layout());
    for step in 0..10 {
        optimizer.step(rate(step), &correction, &mut parameters, &numbers(step as usize + 1));
    }
    assert_eq!((parameters.len(), optimizer.steps()), (expected.len(), 10), "{name}");
    for (got, expected) in parameters.iter().zip(expected) {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= 5e-7 * expected.abs().max(1.0), "{name}: {got}, expected {expected}");
    }
}

#[test]
fn ten_steps_are_those_of_pytorch() {
    let larger = Rule::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let by_value = Correction { clip_value: Some(0.3), ..DECAY };
    let by_norm = Correction { clip_norm: Some(1.0), ..DECAY };
    let penalized = Correction { l1: 0.05, l2: 0.1, clip_norm: Some(1.0), ..NONE };
    for (name, rule, correction) in [
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
        assert_ten_steps(name, rule, correction, |_| rule.lr());
    }
}

#[test]
fn ten_steps_along_a_schedule_are_those_of_pytorch() {
    let mut said = Layers::default();
    said.add_assignment("train.optimizer={kind='adamw', lr=0.1, weight_decay=0.1}").unwrap();
    said.add_assignment("train.schedule={kind='cosine', final_lr=0.01}").unwrap();
    let job = Job::resolve(said).unwrap().spec;
    let schedule = Schedule::new(&job, 10);
    let rule = job.optimizer.rule();
    assert_ten_steps("adamw, cosine", rule, Correction::of(&job), |step| schedule.rate(step));
}
