//! Prediction, loss, gradient and ten steps of every layer against PyTorch (`golden/layers.py` writes
//! `golden/layers.txt`).

use thalweg_core::model::TensorRole;
use thalweg_core::{Batch, Features, Model, NoHooks, Targets, Task};
use thalweg_graph::{Input, Network, Team};

const ROWS: usize = 3;

/// Multiples of 1/128, the same as in the script.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((seed * 37 + i * 53) % 97) as f32 / 128.0 - 0.375).collect()
}

fn batch(input: Input, classes: usize) -> Batch {
    let features = match input {
        Input::Symbols { window, vocabulary } => {
            let symbols = (0..ROWS * window).map(|i| ((5 * i + i / 3) % vocabulary) as u32).collect();
            Features::Tokens { symbols, window, vocabulary }
        }
        input => Features::Dense(numbers(ROWS * input.width(), 10)),
    };
    let targets = Targets::Classes((0..ROWS).map(|row| (row % classes) as u32).collect());
    Batch { epoch: 0, rows: (0..ROWS as u64).collect(), width: input.width(), features, targets }
}

/// Compares two slices; `label` names an element.
fn assert_close(got: &[f32], expected: &str, tolerance: f32, label: impl Fn(usize) -> String) {
    let expected: Vec<f32> = expected.split(' ').map(|number| number.parse().unwrap()).collect();
    assert_eq!(got.len(), expected.len(), "{}", label(0));
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let close = (got - expected).abs() <= 0.1 * tolerance + tolerance * expected.abs();
        assert!(close, "{}: {got} instead of {expected}", label(index));
    }
}

#[test]
fn predictions_losses_gradients_and_steps_match_pytorch() {
    let lines: Vec<&str> = include_str!("golden/layers.txt").lines().collect();
    assert!(lines.len() >= 27 * 7);
    for case in lines.chunks(7) {
        let &[name, layers, input, prediction, loss, gradient, trained] = case else {
            panic!("seven lines per case")
        };
        let layers: Vec<String> = layers.split(" ; ").map(String::from).collect();
        let sizes: Vec<usize> = input.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
        let (input, classes) = match *sizes.as_slice() {
            [window, vocabulary] => (Input::Symbols { window, vocabulary }, vocabulary),
            [height, width, channels] => (Input::Image([height, width, channels]), 3),
            _ => panic!("{input}"),
        };
        let network = Network::build_for(&layers, input, classes, Task::Classification).unwrap();
        for threads in [1, 2] {
            let mut network = network.clone().with_team(Team::eager(threads));
            let layout = network.layout().clone();
            let tensor_name = |index: usize| format!("{name}: {}", layout.at(index).unwrap().name);
            let mut parameters = numbers(layout.len(), 20);
            for tensor in layout.tensors().iter().filter(|tensor| tensor.name.ends_with("running_var")) {
                parameters[tensor.range()].iter_mut().for_each(|variance| *variance += 1.0);
            }
            let batch = batch(input, classes);
            let mut predictions = Vec::new();
            network.predict(&parameters, &batch, &mut predictions).unwrap();
            assert_close(&predictions, prediction, 1e-5, |index| format!("{name}: prediction {index}"));
            let mut got = vec![f32::NAN; parameters.len()];
            let tally = network.gradient(&parameters, &batch, 1.0, &mut got, &mut NoHooks).unwrap();
            let loss: f64 = loss.parse().unwrap();
            assert!((tally.loss - loss).abs() < 1e-5 * loss, "{name}: {} instead of {loss}", tally.loss);
            assert_close(&got, gradient, 1e-4, tensor_name);
            for _ in 0..10 {
                network.gradient(&parameters, &batch, 1.0 / ROWS as f32, &mut got, &mut NoHooks).unwrap();
                for tensor in layout.tensors() {
                    // The gradient of a running statistic is its complete update.
                    let rate = if tensor.role == TensorRole::Statistic { 1.0 } else { 0.1 };
                    let pairs = parameters[tensor.range()].iter_mut().zip(&got[tensor.range()]);
                    pairs.for_each(|(parameter, gradient)| *parameter -= rate * gradient);
                }
            }
            assert_close(&parameters, trained, 1e-4, tensor_name);
        }
    }
}
