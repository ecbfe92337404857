//! Training of small networks to convergence.

mod training_state;

use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::{Batch, Features, Model, NoHooks, Rng, Targets};
use thalweg_graph::{Activation, Network, Optimizer};
use training_state::TrainingState;

const ADAM: UpdateRule = UpdateRule::Adam { lr: 1e-2, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };

fn train(network: &mut Network, batch: &Batch, rule: UpdateRule, steps: usize) -> Vec<f32> {
    let mut parameters = vec![0.0; network.layout().len()];
    let mut gradient = parameters.clone();
    let optimizer = Optimizer::new(rule, parameters.len());
    network.initialize(7, &mut parameters);
    let mut state = TrainingState::new(rule, parameters);
    for _ in 0..steps {
        let scale = 1.0 / batch.len() as f32;
        network.gradient(&state.columns[0], batch, scale, &mut gradient, &mut NoHooks).unwrap();
        state.update(&optimizer, rule.lr(), &gradient);
    }
    let [parameters, ..] = state.columns;
    parameters
}

#[test]
fn every_rule_learns_exclusive_or() {
    let batch = Batch {
        epoch: 0,
        rows: (0..4).collect(),
        width: 2,
        features: Features::Dense(vec![0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]),
        targets: Targets::Classes(vec![0, 1, 1, 0]),
    };
    for rule in [UpdateRule::Sgd { lr: 0.5 }, UpdateRule::Momentum { lr: 0.1, momentum: 0.9 }, ADAM] {
        let mut network = Network::with_inputs(2)
            .dense(8, Activation::Tanh)
            .dense(2, Activation::None)
            .classification()
            .unwrap();
        let parameters = train(&mut network, &batch, rule, 500);
        assert_eq!(network.evaluate(&parameters, &batch).unwrap().accuracy(), 1.0, "{rule:?}");
    }
}

#[test]
fn two_spirals_are_classified() {
    let (mut values, mut classes) = (Vec::new(), Vec::new());
    for index in 0..120u32 {
        let (class, turn) = (index % 2, (index / 2) as f32 / 60.0);
        let angle = turn * 5.0 + class as f32 * std::f32::consts::PI;
        let radius = 0.2 + turn;
        values.extend([radius * angle.cos(), radius * angle.sin()]);
        classes.push(class);
    }
    let batch = Batch {
        epoch: 0,
        rows: (0..120).collect(),
        width: 2,
        features: Features::Dense(values),
        targets: Targets::Classes(classes),
    };
    let layers = ["dense 32 tanh", "dense 32 relu", "dense auto"].map(String::from);
    let mut network = Network::build(&layers, 2, 2, thalweg_core::Task::Classification).unwrap();
    let parameters = train(&mut network, &batch, ADAM, 600);
    assert_eq!(network.evaluate(&parameters, &batch).unwrap().accuracy(), 1.0);
}

#[test]
fn a_line_is_fitted() {
    let mut rng = Rng::keyed(1, "line", &[]);
    let values: Vec<f32> = (0..64).map(|_| rng.normal()).collect();
    let targets = values.iter().map(|x| 3.0 * x - 1.0).collect();
    let batch = Batch {
        epoch: 0,
        rows: (0..64).collect(),
        width: 1,
        features: Features::Dense(values),
        targets: Targets::Values(targets),
    };
    let mut network = Network::with_inputs(1).dense(1, Activation::None).regression().unwrap();
    let parameters = train(&mut network, &batch, UpdateRule::Sgd { lr: 0.2 }, 100);
    assert!(network.evaluate(&parameters, &batch).unwrap().mean_loss() < 1e-8);
    assert!((parameters[0] + 1.0).abs() < 1e-4 && (parameters[1] - 3.0).abs() < 1e-4, "{parameters:?}");
}

#[test]
fn initial_parameters_are_a_function_of_the_seed() {
    let build = || {
        let first = Network::with_inputs(30).dense(20, Activation::Relu);
        first.dense(20, Activation::Relu).dense(20, Activation::None).classification().unwrap()
    };
    let draw = |network: &Network, seed: u64| {
        let mut parameters = vec![f32::NAN; network.layout().len()];
        network.initialize(seed, &mut parameters);
        parameters
    };
    let network = build();
    let parameters = draw(&network, 7);
    assert_eq!(parameters, draw(&build(), 7));
    assert_ne!(parameters, draw(&network, 8));
    for tensor in network.layout().tensors() {
        let values = &parameters[tensor.range()];
        if tensor.name.ends_with("bias") {
            assert!(values.iter().all(|value| *value == 0.0));
            continue;
        }
        let limit = (6.0 / (tensor.shape[0] + tensor.shape[1]) as f32).sqrt();
        let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
        assert!(largest <= limit && largest > 0.95 * limit, "{} {largest} {limit}", tensor.name);
    }
    let of = |name: &str| {
        let tensor = network.layout().tensors().iter().find(|tensor| tensor.name == name).unwrap();
        parameters[tensor.range()].to_vec()
    };
    assert_ne!(of("layers.1.weight"), of("layers.2.weight"), "layers of one shape differ");
}
