//! Networks by name, each a layer list for the data at hand. One file each.

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

/// A network of the zoo.
pub struct Exhibit {
    /// Its name in a job.
    pub name: &'static str,
    /// What it is, in one line.
    pub summary: &'static str,
    /// Its layers for rows of that shape, or what it needs instead.
    pub layers: fn(Input) -> Result<Vec<String>, &'static str>,
    /// What it is blamed for, if not for the task's usual loss.
    pub loss: Option<Loss>,
}

/// All of them.
pub const EXHIBITS: [Exhibit; 7] = [
    mlp::EXHIBIT,
    lenet::EXHIBIT,
    resnet_small::EXHIBIT,
    char_lstm::EXHIBIT,
    gpt_mini::EXHIBIT,
    autoencoder::EXHIBIT,
    conv_autoencoder::EXHIBIT,
];

/// What to do about data of the wrong kind.
const HINT: &str = "data.source says what the rows are: an IDX folder holds images, a .txt file text, all else (the built-in digits \
                    too) rows of numbers";

/// The layers of a network of the zoo for rows of that shape.
pub fn layers(name: &str, input: Input) -> Result<Vec<String>> {
    (exhibit(name)?.layers)(input)
        .map_err(|need| Error::job(format!("model.zoo: {name} needs {need}")).hint(HINT))
}

/// The network of that name.
pub fn network(name: &str, input: Input, outputs: usize, task: Task, options: Options) -> Result<Network> {
    let loss = options.loss.or(exhibit(name)?.loss);
    let options = Options { loss, ..options };
    Network::build_with(&layers(name, input)?, input, outputs, task, options)
}

/// The exhibit of that name; an unknown one is refused with the nearest.
pub fn exhibit(name: &str) -> Result<&'static Exhibit> {
    let names = EXHIBITS.iter().map(|exhibit| exhibit.name);
    let found = EXHIBITS.iter().find(|exhibit| exhibit.name == name);
    found.ok_or_else(|| Error::job(format!("model.zoo: {}", unknown("network", name, names))))
}

/// Texts as a layer list.
fn list(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| text.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::{Batch, Features, Model, NoHooks, Rng, Targets};

    const IMAGE: Input = Input::Image([28, 28, 1]);
    const TEXT: Input = Input::Symbols { window: 16, vocabulary: 11 };

    fn input_for(exhibit: &Exhibit) -> Input {
        if (exhibit.layers)(IMAGE).is_ok() { IMAGE } else { TEXT }
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
    fn every_network_learns_a_little() {
        for exhibit in &EXHIBITS {
            let input = input_for(exhibit);
            let outputs = if input == TEXT { 11 } else { 10 };
            let mut network =
                network(exhibit.name, input, outputs, Task::Classification, Options::default()).unwrap();
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
            assert!(losses[7] < losses[0] && losses[7].is_finite(), "{}: {losses:?}", exhibit.name);
            assert!(network.evaluate(&parameters, &batch).unwrap().loss.is_finite());
            assert!(network.flops_per_row() > 0);
        }
    }

    /// Some rows of a batch.
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
    fn gradients_of_parts_add_up_to_the_whole() {
        for exhibit in &EXHIBITS {
            let input = input_for(exhibit);
            let outputs = if input == TEXT { 11 } else { 10 };
            let mut network =
                network(exhibit.name, input, outputs, Task::Classification, Options::default()).unwrap();
            let mut parameters = vec![0.0; network.layout().len()];
            network.initialize(5, &mut parameters);
            let whole = batch(input, 5);
            let mut gradient_of = |rows: std::ops::Range<usize>| {
                let mut gradient = vec![f32::NAN; parameters.len()];
                network.gradient(&parameters, &part(&whole, rows), 0.2, &mut gradient, &mut NoHooks).unwrap();
                gradient
            };
            let [all, left, right] = [0..5, 0..2, 2..5].map(&mut gradient_of);
            let largest = all.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let apart =
                all.iter().zip(left.iter().zip(&right)).map(|(all, (left, right))| all - left - right);
            let farthest = apart.fold(0.0f32, |most, value| most.max(value.abs()));
            // What is normalised by the batch depends on the batch.
            let by_batch = (exhibit.layers)(input).unwrap().iter().any(|layer| layer.contains("batchnorm"));
            assert_eq!(farthest > 1e-5 * largest, by_batch, "{}: {farthest} of {largest}", exhibit.name);
        }
    }

    #[test]
    fn sizes_are_those_of_the_peers() {
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
            "one bias per gate, where PyTorch keeps two that are only ever added"
        );
    }

    #[test]
    fn a_job_knows_every_network_by_name() {
        use thalweg_core::spec::{model::Zoo, setting::Setting};
        let names: Vec<&str> = Zoo::choices().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, EXHIBITS.each_ref().map(|exhibit| exhibit.name));
        for exhibit in &EXHIBITS {
            let zoo = Zoo::read(&exhibit.name.into()).unwrap();
            assert_eq!(zoo.reconstructs(), exhibit.loss == Some(Loss::Reconstruction));
        }
    }

    #[test]
    fn what_does_not_fit_is_explained() {
        assert!(layers("lenett", IMAGE).unwrap_err().message.contains("did you mean `lenet`?"));
        assert_eq!(layers("lenet", TEXT).unwrap_err().message, "model.zoo: lenet needs images");
        assert_eq!(layers("gpt-mini", IMAGE).unwrap_err().message, "model.zoo: gpt-mini needs text");
    }
}
