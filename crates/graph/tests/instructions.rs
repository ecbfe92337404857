//! Training gives the same result with every vector instruction set of this CPU.

mod training_state;

use std::process::Command;
use thalweg_core::spec::optimizer::UpdateRule;
use thalweg_core::{Batch, Features, Model, NoHooks, Rng, Targets, Task};
use thalweg_graph::instruction_set::{InstructionSet, VARIABLE};
use thalweg_graph::{Input, Network, Optimizer};
use training_state::TrainingState;

/// Marks a child process of this test.
const CHILD: &str = "THALWEG_TEST_CHILD";

/// The parameters after a few steps of a network with convolutions, pooling and dense layers of odd sizes.
fn trained() -> Vec<f32> {
    let layers =
        ["conv 7 3x3 relu", "pool max 2x2", "conv 33 3x3 tanh", "flatten", "dense 19 sigmoid", "dense auto"];
    let input = Input::Image([12, 12, 3]);
    let mut network = Network::build_for(&layers.map(String::from), input, 5, Task::Classification).unwrap();
    let mut rng = Rng::keyed(3, "instructions", &[]);
    let batch = Batch {
        epoch: 0,
        rows: (0..13).collect(),
        width: 432,
        features: Features::Dense((0..13 * 432).map(|_| rng.normal()).collect()),
        targets: Targets::Classes((0..13).map(|row| row % 5).collect()),
    };
    let len = network.layout().len();
    let (mut parameters, mut gradient) = (vec![0.0; len], vec![0.0; len]);
    let rule = UpdateRule::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let optimizer = Optimizer::new(rule, len);
    network.initialize(7, &mut parameters);
    let mut state = TrainingState::new(rule, parameters);
    for _ in 0..5 {
        network.gradient(&state.columns[0], &batch, 1.0 / 13.0, &mut gradient, &mut NoHooks).unwrap();
        state.update(&optimizer, rule.lr(), &gradient);
    }
    let [parameters, ..] = state.columns;
    parameters
}

/// The same in a child process with the given instruction set.
fn trained_with(instructions: InstructionSet) -> Vec<f32> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "all_instruction_sets_train_to_the_same_parameters", "--nocapture"]);
    let output = child.env(CHILD, "1").env(VARIABLE, instructions.name()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("bits: ")).expect("output of the child").1;
    line.split(' ').map(|bits| f32::from_bits(bits.parse().unwrap())).collect()
}

#[test]
fn all_instruction_sets_train_to_the_same_parameters() {
    if std::env::var_os(CHILD).is_some() {
        let bits: Vec<String> = trained().iter().map(|value| value.to_bits().to_string()).collect();
        println!("bits: {}", bits.join(" "));
        return;
    }
    let best = InstructionSet::best();
    let expected = trained_with(best);
    if best > InstructionSet::Avx2 {
        assert_eq!(trained_with(InstructionSet::Avx2), expected, "the same bits");
    }
    for (one, other) in trained_with(InstructionSet::Portable).iter().zip(&expected) {
        assert!((one - other).abs() < 1e-4, "{one} {other}");
    }
}
