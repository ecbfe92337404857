//! Networks from layer lists and random batches for them.

use thalweg_core::{Batch, Features, Rng, Targets, Task};
use thalweg_graph::{Input, Network, Team};

/// A classifier from a layer list, on one to three threads depending on the seed.
pub fn network(layers: &[String], input: Input, classes: usize, seed: u64) -> Network {
    let team = Team::eager(1 + (seed % 3) as usize);
    Network::build_for(layers, input, classes, Task::Classification).unwrap().with_team(team)
}

pub fn texts(layers: &[&str]) -> Vec<String> {
    layers.iter().map(|text| text.to_string()).collect()
}

pub fn random_batch(rng: &mut Rng, input: Input, rows: usize, classes: usize) -> Batch {
    let features = match input {
        Input::Symbols { window, vocabulary } => Features::Tokens {
            symbols: (0..rows * window).map(|_| rng.below(vocabulary as u64) as u32).collect(),
            window,
            vocabulary,
        },
        input => Features::Dense((0..rows * input.width()).map(|_| rng.normal()).collect()),
    };
    let targets = Targets::Classes((0..rows).map(|_| rng.below(classes as u64) as u32).collect());
    Batch { epoch: 3, rows: (0..rows as u64).collect(), width: input.width(), features, targets }
}
