//! Predefined networks by name, each a layer list that depends on the input. One file each.

mod autoencoder;
mod char_lstm;
mod conv_autoencoder;
mod gpt_mini;
mod lenet;
mod mlp;
mod resnet_small;

use crate::input::Input;
use crate::loss::Loss;
use crate::network::{Network, Options};
use thalweg_core::spec::nearest::unknown;
use thalweg_core::{Error, Result, Task};

pub struct ZooModel {
    /// Value of the job key `model.zoo`.
    pub name: &'static str,
    /// The layers for an input, or the kind of input that the network needs.
    pub layers: fn(Input) -> Result<Vec<String>, &'static str>,
    /// The loss, if it is not the task's default.
    pub loss: Option<Loss>,
}

pub const MODELS: [ZooModel; 7] = [
    mlp::MODEL,
    lenet::MODEL,
    resnet_small::MODEL,
    char_lstm::MODEL,
    gpt_mini::MODEL,
    autoencoder::MODEL,
    conv_autoencoder::MODEL,
];

/// Hint for data of the wrong kind.
const HINT: &str = "data.source decides the kind of rows: an IDX folder holds images, a .txt file text, all else \
                    (the built-in digits too) rows of numbers";

/// The layer list of a predefined network for an input.
pub fn layers(name: &str, input: Input) -> Result<Vec<String>> {
    (find(name)?.layers)(input)
        .map_err(|need| Error::job(format!("model.zoo: {name} needs {need}")).hint(HINT))
}

pub fn network(name: &str, input: Input, outputs: usize, task: Task, options: Options) -> Result<Network> {
    let loss = options.loss.or(find(name)?.loss);
    let options = Options { loss, ..options };
    Network::build_with(&layers(name, input)?, input, outputs, task, options)
}

/// The network of that name; the error for an unknown name suggests the nearest.
fn find(name: &str) -> Result<&'static ZooModel> {
    let names = MODELS.iter().map(|model| model.name);
    let found = MODELS.iter().find(|model| model.name == name);
    found.ok_or_else(|| Error::job(format!("model.zoo: {}", unknown("network", name, names))))
}

fn list(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::{Batch, Features, Model, NoHooks, Rng, Targets};

    const IMAGE: Input = Input::Image([28, 28, 1]);
    const TEXT: Input = Input::Symbols { window: 16, vocabulary: 11 };

    fn input_for(model: &ZooModel) -> Input {
        if (model.layers)(IMAGE).is_ok() { IMAGE } else { TEXT }
    }

    fn batch(input: Input, rows: usize) -> Batch {
        let mut rng = Rng::keyed(1, "zoo", &[]);
        let features = match input {
            Input::Symbols { window, vocabulary } => Features::Tokens {
                symbols: (0..rows * window).map(|_| rng.below(vocabulary as u64) as u32).collect(),
                window,
                vocabulary,
            },
            input => Features::Dense((0..rows * input.width()).map(|_| rng.uniform()).collect()),
        };
        let targets = Targets::Classes((0..rows).map(|_| rng.below(10) as u32).collect());
        Batch { epoch: 0, rows: (0..rows as u64).collect(), width: input.width(), features, targets }
    }

    #[test]
    fn every_network_reduces_its_loss() {
        for model in &MODELS {
            let input = input_for(model);
            let outputs = if input == TEXT { 11 } else { 10 };
            let mut network =
                network(model.name, input, outputs, Task::Classification, Options::default()).unwrap();
            let batch = batch(input, 4);
            let mut parameters = vec![0.0; network.layout().len()];
            network.initialize(3, &mut parameters);
            let mut gradient = vec![f32::NAN; parameters.len()];
            let mut losses = Vec::new();
            for _ in 0..8 {
                let tally = network.gradient(&parameters, &batch, 0.25, &mut gradient, &mut NoHooks).unwrap();
                losses.push(tally.mean_loss());
                parameters.iter_mut().zip(&gradient).for_each(|(p, g)| *p -= 0.02 * g);
            }
            assert!(losses[7] < losses[0] && losses[7].is_finite(), "{}: {losses:?}", model.name);
            assert!(network.evaluate(&parameters, &batch).unwrap().loss.is_finite());
            assert!(network.flops_per_row() > 0);
        }
    }

    fn part(whole: &Batch, rows: std::ops::Range<usize>) -> Batch {
        let mut part = whole.clone();
        part.rows = whole.rows[rows.clone()].to_vec();
        match (&mut part.features, &mut part.targets) {
            (Features::Tokens { symbols, window, .. }, Targets::Classes(classes)) => {
                *symbols = symbols[rows.start * *window..rows.end * *window].to_vec();
                *classes = classes[rows].to_vec();
            }
            (Features::Dense(values), Targets::Classes(classes)) => {
                *values = values[rows.start * whole.width..rows.end * whole.width].to_vec();
                *classes = classes[rows].to_vec();
            }
            _ => unreachable!("numbers or symbols, and classes"),
        }
        part
    }

    #[test]
    fn gradients_of_batch_parts_sum_to_the_whole() {
        for model in &MODELS {
            let input = input_for(model);
            let outputs = if input == TEXT { 11 } else { 10 };
            let mut network =
                network(model.name, input, outputs, Task::Classification, Options::default()).unwrap();
            let mut parameters = vec![0.0; network.layout().len()];
            network.initialize(5, &mut parameters);
            let whole = batch(input, 5);
            let mut gradient_of = |rows: std::ops::Range<usize>| {
                let mut gradient = vec![f32::NAN; parameters.len()];
                network.gradient(&parameters, &part(&whole, rows), 0.2, &mut gradient, &mut NoHooks).unwrap();
                gradient
            };
            let [all, left, right] = [0..5, 0..2, 2..5].map(&mut gradient_of);
            let largest = all.iter().fold(0.0f32, |max, value| max.max(value.abs()));
            let differences =
                all.iter().zip(left.iter().zip(&right)).map(|(all, (left, right))| all - left - right);
            let largest_difference = differences.fold(0.0f32, |max, value| max.max(value.abs()));
            // Batch normalisation makes the gradient depend on the batch.
            let by_batch = (model.layers)(input).unwrap().iter().any(|layer| layer.contains("batchnorm"));
            assert_eq!(
                largest_difference > 1e-5 * largest,
                by_batch,
                "{}: {largest_difference} of {largest}",
                model.name
            );
        }
    }

    #[test]
    fn parameter_counts_match_the_reference_networks() {
        let parameters = |name: &str, input: Input, outputs: usize| {
            let network = network(name, input, outputs, Task::Classification, Options::default()).unwrap();
            network.layout().len()
        };
        assert_eq!(parameters("mlp", IMAGE, 10), 784 * 128 + 128 + 1290);
        assert_eq!(parameters("lenet", IMAGE, 10), 832 + 51_264 + 524_800 + 5_130);
        let text = Input::Symbols { window: 64, vocabulary: 65 };
        let block = 2 * 256 + 128 * 384 + 384 + 128 * 128 + 128 + 2 * 128 * 512 + 512 + 128;
        assert_eq!(parameters("gpt-mini", text, 65), 65 * 128 + 64 * 128 + 4 * block + 256 + 128 * 65 + 65);
        assert_eq!(
            parameters("char-lstm", text, 65),
            65 * 128 + 1024 * (128 + 256 + 1) + 256 * 65 + 65,
            "one bias per gate; PyTorch keeps two and only uses their sum"
        );
    }

    #[test]
    fn every_network_is_a_choice_of_the_job_key() {
        use thalweg_core::spec::{model::Zoo, setting::Setting};
        let names: Vec<&str> = Zoo::choices().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, MODELS.each_ref().map(|model| model.name));
        for model in &MODELS {
            let zoo = Zoo::read(&model.name.into()).unwrap();
            assert_eq!(zoo.reconstructs(), model.loss == Some(Loss::Reconstruction));
        }
    }

    #[test]
    fn unknown_names_and_unsuitable_inputs_are_reported() {
        assert!(layers("lenett", IMAGE).unwrap_err().message.contains("did you mean `lenet`?"));
        assert_eq!(layers("lenet", TEXT).unwrap_err().message, "model.zoo: lenet needs images");
        assert_eq!(layers("gpt-mini", IMAGE).unwrap_err().message, "model.zoo: gpt-mini needs text");
    }
}
