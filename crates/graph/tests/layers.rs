//! Every layer's gradient against finite differences, and invariants between batches.

mod layer_batches;

use layer_batches::{network, random_batch, texts};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_core::{Batch, Features, Model, NoHooks, Rng, Targets, Task};
use thalweg_graph::{Input, Network, Team};

/// Compares the directional derivative of the loss along a random direction of each tensor with the gradient. The
/// forward pass is in single precision, so that the differences need large steps.
fn check_gradient(
    layers: &[String],
    input: Input,
    classes: usize,
    rows: usize,
    seed: u64,
) -> Result<(), TestCaseError> {
    let mut network = network(layers, input, classes, seed);
    let mut rng = Rng::keyed(seed, "layers", &[]);
    let batch = random_batch(&mut rng, input, rows, classes);
    let layout = network.layout().clone();
    let mut parameters = vec![0.0; layout.len()];
    network.initialize(seed, &mut parameters);
    parameters.iter_mut().for_each(|value| *value += 0.4 * rng.normal());
    let mut gradient = vec![f32::NAN; layout.len()];
    let mut gradient_at = |parameters: &[f32], gradient: &mut [f32]| {
        network.gradient(parameters, &batch, 1.0, gradient, &mut NoHooks).unwrap()
    };
    gradient_at(&parameters, &mut gradient);
    let mut unused = gradient.clone();
    for tensor in layout.tensors() {
        if tensor.name.contains("running") {
            continue;
        }
        let direction: Vec<f32> = tensor.range().map(|_| rng.normal()).collect();
        let length = direction.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-6);
        let mut loss_at = |step: f32| {
            let mut moved = parameters.clone();
            for (value, direction) in moved[tensor.range()].iter_mut().zip(&direction) {
                *value += step * direction / length;
            }
            gradient_at(&moved, &mut unused).loss
        };
        let mut central = |step: f32| (loss_at(step) - loss_at(-step)) / (2.0 * f64::from(step));
        // Richardson extrapolation of two step sizes cancels the leading error term.
        let mut difference = |step: f32| (4.0 * central(step / 2.0) - central(step)) / 3.0;
        let own = gradient[tensor.range()].iter().zip(&direction);
        let expected: f64 = own.map(|(g, d)| f64::from(*g) * f64::from(*d / length)).sum();
        let size: f64 = gradient[tensor.range()].iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        // The maximum of a pooling window may change within a step; then a smaller step matches.
        let differences: Vec<f64> = [1e-2, 3e-3, 1e-3].into_iter().map(&mut difference).collect();
        prop_assert!(
            differences.iter().any(|difference| (difference - expected).abs() <= 1e-2 * (0.1 + size)),
            "{layers:?} {}: finite differences {differences:?}, gradient {expected}",
            tensor.name
        );
    }
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Default::default() }
}

/// Random layer sizes: filters and units, sides of filters and windows, heads or groups.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    few: usize,
    more: usize,
    side: usize,
    parts: usize,
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let drawn = || prop::sample::select(vec![1usize, 2, 3, 5]);
    (drawn(), drawn(), drawn(), drawn()).prop_map(|(few, more, side, parts)| Sizes { few, more, side, parts })
}

const TYPICAL: Sizes = Sizes { few: 3, more: 4, side: 3, parts: 2 };

/// Layers over images; mostly smooth activations, for finite differences.
fn image_layers(sizes: Sizes, channels: usize) -> Vec<Vec<String>> {
    let Sizes { few, more, side, parts } = sizes;
    let (pad, odd) = (side / 2, side | 1);
    let (around, many) = (odd / 2, more * parts);
    let all = format!(
        "conv {more} {side}x{side} pad {pad} tanh; dense auto
         conv {more} 1x1; dense auto
         conv {more} {side}x2 stride 2 pad {side} gelu; flatten; dense auto
         conv {more} 2x{side} dilation 2 pad {side} tanh; dense auto
         conv {few} {side} pad {pad} gelu-erf; dense auto
         conv {many} {side} pad {pad}; conv {many} {side} pad {side} groups {parts} tanh; dense auto
         pool mean 2; dense auto
         conv {few} {side} pad {pad}; pool max 2; dense auto
         conv {few} {side} pad {pad} gelu-erf; pool max 2; dense auto
         conv {few} {side} pad {pad}; pool max {side} stride 1 pad {pad}; tanh; dense auto
         conv {few} {side} pad {pad}; pool mean {side} stride 2 pad {pad}; tanh; dense auto
         conv {few} {side} pad {pad} tanh; pool global; dense auto
         conv {few} {side} pad {pad}; batchnorm; tanh; dense auto
         conv {few} {side} pad {pad}; layernorm; tanh; dense auto
         residual conv {channels} {odd} pad {around} tanh | conv {channels} {odd} pad {around}; dense auto
         residual conv {more} {odd} pad {around} stride 2 tanh | conv {more} {odd} pad {around}; dense auto
         conv {few} {side} stride 2 pad {side} tanh; upsample {parts}; dense auto
         concat conv {few} 1x1 tanh | conv {more} {odd} pad {around} & gelu | pool mean {odd} stride 1 pad {around}; dense auto
         flatten; dropout 0.3; dense {more} elu; dropout 0.5; dense auto
         dense {more} leaky-relu; batchnorm; dense auto
         dense {many}; reshape {parts}x{more}; tanh; transpose; reshape {more}x{parts}x1; conv {few} 1x1 tanh; dense auto
         dense {more} sigmoid; layernorm; softmax; dense auto"
    );
    lists(&all)
}

fn sequence_layers(sizes: Sizes) -> Vec<Vec<String>> {
    let Sizes { few, more, side, parts } = sizes;
    let wide = more * parts;
    let all = format!(
        "embedding {more}; dense auto
         embedding {more} positions; layernorm; dense auto
         embedding {more}; transpose; layernorm; transpose; dense auto
         embedding {more}; lstm {few}; dense auto
         lstm {few}; lstm {side}; last; dense auto
         embedding {more}; gru {few}; dense auto
         gru {few}; rnn {side}; last; dense auto
         embedding {few}; rnn {more}; dense auto
         embedding {wide}; attention {parts}; dense auto
         embedding {wide} positions; attention {parts} causal; last; dense auto
         embedding {wide} positions; residual layernorm | attention {parts} causal; residual layernorm | dense {side} gelu | dense {wide}; layernorm; dense auto"
    );
    lists(&all)
}

/// One layer list per line.
fn lists(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split(';').map(|layer| layer.trim().to_string()).collect()).collect()
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn image_gradients_match_finite_differences(
        which: prop::sample::Index, sizes in sizes(), channels in prop::sample::select(vec![1usize, 2, 3, 5]),
        height in 4usize..8, width in 4usize..8, rows in 0usize..6, seed: u64,
    ) {
        let all = image_layers(sizes, channels);
        check_gradient(&all[which.index(all.len())], Input::Image([height, width, channels]), 3, rows, seed)?;
    }

    #[test]
    fn sequence_gradients_match_finite_differences(
        which: prop::sample::Index, sizes in sizes(), vocabulary in prop::sample::select(vec![1usize, 2, 3, 5]),
        window in 1usize..7, rows in 0usize..5, seed: u64,
    ) {
        let all = sequence_layers(sizes);
        check_gradient(&all[which.index(all.len())], Input::Symbols { window, vocabulary }, vocabulary, rows, seed)?;
    }

    #[test]
    fn gradients_of_batch_parts_sum_to_the_whole(
        images in prop::sample::select(image_layers(TYPICAL, 2)),
        sequences in prop::sample::select(sequence_layers(TYPICAL)),
        sequence: bool, rows in 0usize..9, cut in 0.0..1.0f64, seed: u64,
    ) {
        let (layers, input, classes) = match sequence {
            true => (sequences, Input::Symbols { window: 5, vocabulary: 5 }, 5),
            false => (images, Input::Image([6, 6, 2]), 3),
        };
        prop_assume!(!layers.iter().any(|layer| layer.starts_with("batchnorm")));
        let mut network = network(&layers, input, classes, seed);
        let mut rng = Rng::keyed(seed, "parts", &[]);
        let whole = random_batch(&mut rng, input, rows, classes);
        let mut parameters = vec![0.0; network.layout().len()];
        network.initialize(seed, &mut parameters);
        let mut gradient_of = |rows: std::ops::Range<usize>| {
            let batch = part(&whole, rows);
            let mut gradient = vec![f32::NAN; parameters.len()];
            let tally = network.gradient(&parameters, &batch, 0.5, &mut gradient, &mut NoHooks).unwrap();
            (tally, gradient)
        };
        let middle = (rows as f64 * cut) as usize;
        let (tally, all) = gradient_of(0..rows);
        let (first, left) = gradient_of(0..middle);
        let (second, right) = gradient_of(middle..rows);
        prop_assert!((tally.loss - first.loss - second.loss).abs() < 1e-4 * (1.0 + tally.loss));
        let largest = all.iter().fold(1.0f32, |max, value| max.max(value.abs()));
        for ((all, left), right) in all.iter().zip(left).zip(right) {
            prop_assert!((all - left - right).abs() <= 1e-5 * largest, "{all} {left} {right}");
        }
    }
}

#[test]
fn single_pixels_and_lines_are_valid_images() {
    for layers in [
        &["conv 4 1x1 tanh", "dense auto"][..],
        &["conv 4 3x3 pad 1 tanh", "dense auto"],
        &["conv 4 3x3 pad 1 stride 2 gelu", "conv 4 3x3 pad 2 dilation 2 groups 2", "dense auto"],
        &["conv 3 1x1", "pool max 3 stride 1 pad 1", "tanh", "dense auto"],
        &["conv 3 1x1", "pool mean 1", "tanh", "pool global", "dense auto"],
        &["pool max 3 stride 2 pad 1", "upsample 2", "conv 2 3x3 pad 1 tanh", "dense auto"],
    ] {
        for (height, width) in [(1, 1), (1, 5), (5, 1)] {
            for rows in [0, 1, 4] {
                check_gradient(&texts(layers), Input::Image([height, width, 2]), 3, rows, 11).unwrap();
            }
        }
    }
}

#[test]
fn the_same_number_of_threads_gives_the_same_bits() {
    let text = Input::Symbols { window: 5, vocabulary: 5 };
    let image = Input::Image([6, 6, 2]);
    let all = image_layers(TYPICAL, 2).into_iter().map(|layers| (layers, image, 3));
    for (layers, input, classes) in
        all.chain(sequence_layers(TYPICAL).into_iter().map(|layers| (layers, text, 5)))
    {
        let whole = random_batch(&mut Rng::keyed(1, "bits", &[]), input, 7, classes);
        let built = Network::build_for(&layers, input, classes, Task::Classification).unwrap();
        let mut parameters = vec![0.0; built.layout().len()];
        built.initialize(1, &mut parameters);
        for threads in [1, 2, 3] {
            let bits = |_| {
                let mut gradient = vec![f32::NAN; parameters.len()];
                let mut network = built.clone().with_team(Team::eager(threads));
                network.gradient(&parameters, &whole, 0.5, &mut gradient, &mut NoHooks).unwrap();
                gradient.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            };
            let runs: Vec<_> = (0..3).map(bits).collect();
            assert!(runs.iter().all(|run| *run == runs[0]), "{layers:?} with {threads} threads");
        }
    }
}

fn part(batch: &Batch, rows: std::ops::Range<usize>) -> Batch {
    let features = match &batch.features {
        Features::Tokens { symbols, window, vocabulary } => Features::Tokens {
            symbols: symbols[rows.start * window..rows.end * window].to_vec(),
            window: *window,
            vocabulary: *vocabulary,
        },
        Features::Dense(values) => {
            Features::Dense(values[rows.start * batch.width..rows.end * batch.width].to_vec())
        }
        features => features.clone(),
    };
    let Targets::Classes(classes) = &batch.targets else { panic!("classes") };
    let targets = Targets::Classes(classes[rows.clone()].to_vec());
    Batch { epoch: batch.epoch, rows: batch.rows[rows].to_vec(), width: batch.width, features, targets }
}
