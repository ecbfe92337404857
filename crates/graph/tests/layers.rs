//! Every layer's gradient against differences of the loss, and what must hold between batches.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use thalweg_core::{Batch, Error, Features, Gradient, Hooks, Model, NoHooks, Rng, Targets, Task};
use thalweg_graph::{Input, Network, Options, Team};

/// A network from texts, on rows of that shape, run by one to three threads as the seed has it.
fn network(layers: &[String], input: Input, classes: usize, seed: u64) -> Network {
    let team = Team::eager(1 + (seed % 3) as usize);
    Network::build_for(layers, input, classes, Task::Classification).unwrap().with_team(team)
}

fn texts(layers: &[&str]) -> Vec<String> {
    layers.iter().map(|text| text.to_string()).collect()
}

fn random_batch(rng: &mut Rng, input: Input, rows: usize, classes: usize) -> Batch {
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

/// Moves the parameters of one tensor at a time along a random direction, and compares the loss's change with what the
/// gradient says. The forward pass is in single precision, so that steps cannot be small: `tolerance` is a share of the
/// gradient's length.
fn check_slopes(
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
    let mut slope_at = |parameters: &[f32], gradient: &mut [f32]| {
        network.gradient(parameters, &batch, 1.0, gradient, &mut NoHooks).unwrap()
    };
    slope_at(&parameters, &mut gradient);
    let mut rubbish = gradient.clone();
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
            slope_at(&moved, &mut rubbish).loss
        };
        let mut central = |step: f32| (loss_at(step) - loss_at(-step)) / (2.0 * f64::from(step));
        // Two steps together cancel what the slope's own curvature adds to each.
        let mut difference = |step: f32| (4.0 * central(step / 2.0) - central(step)) / 3.0;
        let own = gradient[tensor.range()].iter().zip(&direction);
        let expected: f64 = own.map(|(g, d)| f64::from(*g) * f64::from(*d / length)).sum();
        let size: f64 = gradient[tensor.range()].iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        // Another number may become the largest of its window within a step; then a smaller step tells.
        let differences: Vec<f64> = [1e-2, 3e-3, 1e-3].into_iter().map(&mut difference).collect();
        prop_assert!(
            differences.iter().any(|difference| (difference - expected).abs() <= 1e-2 * (0.1 + size)),
            "{layers:?} {}: the loss changes by {differences:?}, the gradient says {expected}",
            tensor.name
        );
    }
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Default::default() }
}

/// Sizes of layers that are drawn: filters and units, the sides of filters and windows, heads or groups.
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

const USUAL: Sizes = Sizes { few: 3, more: 4, side: 3, parts: 2 };

/// Layers over images; smooth activations, so that differences mean something.
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

/// A list of layers per line.
fn lists(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split(';').map(|layer| layer.trim().to_string()).collect()).collect()
}

proptest! {
    #![proptest_config(config(150))]

    #[test]
    fn gradients_over_images_are_slopes(
        which: prop::sample::Index, sizes in sizes(), channels in prop::sample::select(vec![1usize, 2, 3, 5]),
        height in 4usize..8, width in 4usize..8, rows in 0usize..6, seed: u64,
    ) {
        let all = image_layers(sizes, channels);
        check_slopes(&all[which.index(all.len())], Input::Image([height, width, channels]), 3, rows, seed)?;
    }

    #[test]
    fn gradients_over_sequences_are_slopes(
        which: prop::sample::Index, sizes in sizes(), vocabulary in prop::sample::select(vec![1usize, 2, 3, 5]),
        window in 1usize..7, rows in 0usize..5, seed: u64,
    ) {
        let all = sequence_layers(sizes);
        check_slopes(&all[which.index(all.len())], Input::Symbols { window, vocabulary }, vocabulary, rows, seed)?;
    }

    #[test]
    fn parts_add_up_to_the_whole(
        images in prop::sample::select(image_layers(USUAL, 2)),
        sequences in prop::sample::select(sequence_layers(USUAL)),
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
        let largest = all.iter().fold(1.0f32, |most, value| most.max(value.abs()));
        for ((all, left), right) in all.iter().zip(left).zip(right) {
            prop_assert!((all - left - right).abs() <= 1e-5 * largest, "{all} {left} {right}");
        }
    }
}

#[test]
fn images_of_a_single_pixel_or_line_are_images() {
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
                check_slopes(&texts(layers), Input::Image([height, width, 2]), 3, rows, 11).unwrap();
            }
        }
    }
}

#[test]
fn the_same_threads_give_the_same_bits() {
    let text = Input::Symbols { window: 5, vocabulary: 5 };
    let image = Input::Image([6, 6, 2]);
    let all = image_layers(USUAL, 2).into_iter().map(|layers| (layers, image, 3));
    for (layers, input, classes) in
        all.chain(sequence_layers(USUAL).into_iter().map(|layers| (layers, text, 5)))
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

#[test]
fn images_without_pixels_and_windows_beyond_the_edge_are_refused() {
    let complaint = |layers: &[&str], sizes| {
        let built = Network::build_for(&texts(layers), Input::Image(sizes), 3, Task::Classification);
        built.unwrap_err().message
    };
    for sizes in [[0, 4, 1], [4, 0, 1], [4, 4, 0]] {
        assert!(complaint(&["conv 2 1x1", "dense auto"], sizes).contains("no columns to learn from"));
    }
    for layer in ["conv 2 2x2", "conv 2 3x1", "pool max 2", "pool mean 3"] {
        assert!(complaint(&[layer, "dense auto"], [1, 1, 2]).starts_with("model.layers[0] "), "{layer}");
    }
}

#[test]
fn an_embedding_announces_the_rows_it_touched() {
    #[derive(Default)]
    struct Heard(Vec<(usize, Vec<u32>, Vec<f32>)>);
    impl Hooks for Heard {
        fn gradient(&mut self, piece: Gradient<'_>) -> Result<(), Error> {
            if let Gradient::Rows { tensor, rows, values } = piece {
                self.0.push((tensor, rows.to_vec(), values.to_vec()));
            }
            Ok(())
        }
        fn reduce(&mut self, _: &mut [f32]) -> Result<(), Error> {
            Ok(())
        }
    }
    let input = Input::Symbols { window: 3, vocabulary: 9 };
    for layers in
        [texts(&["embedding 2 positions", "dense auto"]), texts(&["embedding 2", "lstm 3", "dense auto"])]
    {
        let mut network = network(&layers, input, 9, 1);
        let mut batch = random_batch(&mut Rng::keyed(1, "rows", &[]), input, 2, 9);
        batch.features = Features::Tokens { symbols: vec![7, 2, 2, 5, 7, 2], window: 3, vocabulary: 9 };
        let mut parameters = vec![0.0; network.layout().len()];
        network.initialize(1, &mut parameters);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let mut heard = Heard::default();
        network.gradient(&parameters, &batch, 1.0, &mut gradient, &mut heard).unwrap();
        let [(tensor, rows, values)] = heard.0.as_slice() else { panic!("one table, announced once") };
        assert_eq!(rows, &[2, 5, 7]);
        let table = &gradient[network.layout().tensors()[*tensor].range()];
        for (row, line) in table.chunks(2).enumerate() {
            match rows.iter().position(|touched| *touched as usize == row) {
                Some(place) => assert_eq!(line, &values[place * 2..place * 2 + 2]),
                None => assert_eq!(line, [0.0, 0.0]),
            }
        }
    }
}

/// The factors that are announced.
#[derive(Default)]
struct Recorded(Vec<(usize, Vec<f32>, Vec<f32>)>);

impl Hooks for Recorded {
    fn gradient(&mut self, piece: Gradient<'_>) -> Result<(), Error> {
        if let Gradient::Factors { tensor, left, right } = piece {
            self.0.push((tensor, left.to_vec(), right.to_vec()));
        }
        Ok(())
    }
    fn reduce(&mut self, _: &mut [f32]) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn the_product_of_announced_factors_is_the_gradient() {
    let flat = (Input::Flat(7), texts(&["dense 5 tanh", "dense 4 relu", "dense auto"]), 3);
    let text = (
        Input::Symbols { window: 4, vocabulary: 6 },
        texts(&["embedding 4 positions", "residual layernorm | attention 2 causal", "lstm 3", "dense auto"]),
        5,
    );
    for (input, layers, expected) in [flat, text] {
        let classes = 6;
        for rows in [0, 1, 5] {
            let build = |factors| {
                let options = Options { factors, ..Options::default() };
                Network::build_with(&layers, input, classes, Task::Classification, options).unwrap()
            };
            let mut rng = Rng::keyed(rows as u64, "factors", &[]);
            let batch = random_batch(&mut rng, input, rows, classes);
            let parameters: Vec<f32> = (0..build(false).layout().len()).map(|_| rng.normal()).collect();
            let run = |factors| {
                let (mut heard, mut gradient) = (Recorded::default(), vec![f32::NAN; parameters.len()]);
                build(factors).gradient(&parameters, &batch, 0.5, &mut gradient, &mut heard).unwrap();
                (heard.0, gradient)
            };
            let ((heard, gradient), (none, plain)) = (run(true), run(false));
            assert_eq!((&gradient, heard.len(), none.len()), (&plain, expected, 0));
            for (tensor, left, right) in heard {
                let tensor = &build(false).layout().tensors()[tensor].clone();
                let [units, inputs] = *tensor.shape.as_slice() else { panic!("{tensor:?} is no matrix") };
                assert_eq!(left.len() / units, right.len() / inputs, "as many lines");
                for (place, got) in gradient[tensor.range()].iter().enumerate() {
                    let (unit, input) = (place / inputs, place % inputs);
                    let lines = left.chunks(units).zip(right.chunks(inputs));
                    let product: f64 = lines.map(|(l, r)| f64::from(l[unit]) * f64::from(r[input])).sum();
                    assert!((product - f64::from(*got)).abs() < 1e-5 * (1.0 + product.abs()), "{tensor:?}");
                }
            }
        }
    }
}

#[test]
fn a_shape_that_does_not_fit_names_layer_expected_and_got() {
    let complaint = |layers: &[&str], input: Input| {
        Network::build_for(&texts(layers), input, 3, Task::Classification).unwrap_err().message
    };
    let (image, text) = (Input::Image([6, 6, 2]), Input::Symbols { window: 4, vocabulary: 3 });
    let cases = [
        (
            complaint(&["dense 8", "conv 4 3x3", "dense auto"], image),
            "model.layers[1] \"conv 4 3x3\": expected an image (height x width x channels), got rows x 8",
        ),
        (
            complaint(&["conv 4 7x7 pad 1", "conv 4 7x5", "dense auto"], image),
            "model.layers[1] \"conv 4 7x5\": expected an image of at least 7x5, got 2x2",
        ),
        (
            complaint(&["embedding 4", "dense auto"], image),
            "model.layers[0] \"embedding 4\": expected symbols (text), got rows x 6 x 6 x 2",
        ),
        (
            complaint(&["embedding 4", "embedding 4", "dense auto"], text),
            "model.layers[1] \"embedding 4\": expected the text itself, as the first layer, got rows x 4 x 4",
        ),
        (
            complaint(&["lstm 4", "dense auto"], image),
            "model.layers[0] \"lstm 4\": expected a sequence (positions x numbers), got rows x 6 x 6 x 2",
        ),
        (
            complaint(&["embedding 5", "attention 2", "dense auto"], text),
            "model.layers[1] \"attention 2\": expected a width that 2 heads can share, got 5",
        ),
        (
            complaint(&["residual dense 8", "dense auto"], Input::Flat(4)),
            "model.layers[0] \"residual dense 8\": expected rows x 4 of the layers inside, as what goes around them, \
             got rows x 8",
        ),
        (
            complaint(&["residual dense 8 | conv 2 3x3", "dense auto"], image),
            "model.layers[0] \"residual dense 8 | conv 2 3x3\": \"conv 2 3x3\": expected an image (height x width x \
             channels), got rows x 8",
        ),
        (
            complaint(&["conv 3 3x3"], image),
            "model.layers[0] \"conv 3 3x3\": expected one line of numbers at the end, got rows x 4 x 4 x 3",
        ),
        (
            complaint(&["conv 4 3x3 groups 3", "dense auto"], image),
            "model.layers[0] \"conv 4 3x3 groups 3\": expected channels and filters that 3 groups can share, \
             got 2 channels and 4 filters",
        ),
        (
            complaint(&["pool max 2 pad 2", "dense auto"], image),
            "model.layers[0] \"pool max 2x2 pad 2\": expected padding of at most half of the window of 2x2, got 2",
        ),
        (
            complaint(&["reshape 5x5", "dense auto"], image),
            "model.layers[0] \"reshape 5x5\": expected 25 numbers, got rows x 6 x 6 x 2",
        ),
        (
            complaint(&["dense 7"], image),
            "model.layers[0] \"dense 7\": expected 3 numbers (the data has 3 classes), got 7",
        ),
    ];
    for (message, expected) in cases {
        assert_eq!(message, expected);
    }
}

/// A part of a batch's rows.
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
