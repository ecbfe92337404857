//! Loss and gradient of every layer against numbers made with PyTorch (`golden/layers.py` writes `golden/layers.txt`).

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

#[test]
fn losses_and_gradients_are_those_of_pytorch() {
    let lines: Vec<&str> = include_str!("golden/layers.txt").lines().collect();
    assert!(lines.len() >= 14 * 5);
    for case in lines.chunks(5) {
        let &[name, layers, input, loss, gradient] = case else { panic!("five lines per case") };
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
            let parameters = numbers(network.layout().len(), 20);
            let mut got = vec![f32::NAN; parameters.len()];
            let batch = batch(input, classes);
            let tally = network.gradient(&parameters, &batch, 1.0, &mut got, &mut NoHooks).unwrap();
            let loss: f64 = loss.parse().unwrap();
            assert!((tally.loss - loss).abs() < 1e-5 * loss, "{name}: {} instead of {loss}", tally.loss);
            let expected: Vec<f32> = gradient.split(' ').map(|word| word.parse().unwrap()).collect();
            assert_eq!(got.len(), expected.len(), "{name}");
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let tensor = &network.layout().at(index).unwrap().name;
                let close = (got - expected).abs() <= 1e-5 + 1e-4 * expected.abs();
                assert!(close, "{name}: {tensor}: {got} instead of {expected}");
            }
        }
    }
}
