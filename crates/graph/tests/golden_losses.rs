//! Every loss and its gradient against PyTorch (`golden/losses.py` writes `golden/losses.txt`).

use thalweg_core::{Batch, Features, Model, NoHooks, Targets, Task};
use thalweg_graph::{Input, Loss, Network, Options};

const ROWS: usize = 4;
const WIDTH: usize = 5;

/// Multiples of 1/64, the same as in the script.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((seed * 37 + i * 53) % 97) as f32 - 48.0) / 64.0).collect()
}

fn batch(task: Task) -> Batch {
    let targets = match task {
        Task::Classification => Targets::Classes((0..ROWS).map(|row| (row % 3) as u32).collect()),
        Task::Regression => Targets::Values(numbers(ROWS, 30)),
    };
    let features = Features::Dense(numbers(ROWS * WIDTH, 10));
    Batch { epoch: 0, rows: (0..ROWS as u64).collect(), width: WIDTH, features, targets }
}

#[test]
fn losses_match_pytorch() {
    let lines: Vec<&str> = include_str!("golden/losses.txt").lines().collect();
    let tested: Vec<&str> = lines.iter().step_by(4).copied().collect();
    assert_eq!(tested, Loss::NAMES);
    for case in lines.chunks(4) {
        let &[name, task, loss, gradient] = case else { panic!("four lines per case") };
        let task = if task == "regression" { Task::Regression } else { Task::Classification };
        let outputs = match (name, task) {
            ("reconstruction", _) => WIDTH,
            (_, Task::Classification) => 3,
            (_, Task::Regression) => 1,
        };
        let options = Options { loss: Loss::from_name(name), ..Options::default() };
        let layers = [format!("dense {outputs}")];
        let mut network = Network::build_with(&layers, Input::Flat(WIDTH), outputs, task, options).unwrap();
        let parameters = numbers(network.layout().len(), 20);
        let mut got = vec![f32::NAN; parameters.len()];
        let tally = network.gradient(&parameters, &batch(task), 1.0, &mut got, &mut NoHooks).unwrap();
        let loss: f64 = loss.parse().unwrap();
        assert!((tally.loss - loss).abs() < 1e-5 * loss, "{name}: {} instead of {loss}", tally.loss);
        let expected: Vec<f32> = gradient.split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(got.len(), expected.len(), "{name}");
        for (got, expected) in got.iter().zip(&expected) {
            let close = (got - expected).abs() <= 1e-5 + 1e-5 * expected.abs();
            assert!(close, "{name}: {got} instead of {expected}");
        }
    }
}
