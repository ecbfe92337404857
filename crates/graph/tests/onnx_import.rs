//! Models that PyTorch exported, compared with PyTorch's own predictions.

use std::path::{Path, PathBuf};
use thalweg_core::model::TensorRole;
use thalweg_core::{Batch, Features, Model, NoHooks, Targets, Task};
use thalweg_graph::onnx::OnnxModel;
use thalweg_graph::{Input, Network, Options};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx")
}

/// A file with rows and PyTorch's predictions for them.
struct Case {
    name: String,
    source: OnnxModel,
    input: Input,
    rows: Vec<Vec<f32>>,
    predictions: Vec<Vec<f32>>,
}

impl Case {
    fn read(name: &str) -> Case {
        let source = OnnxModel::read(&std::fs::read(folder().join(format!("{name}.onnx"))).unwrap()).unwrap();
        let text = std::fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap();
        let mut lines = text.lines();
        let kind: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let sizes: Vec<usize> = kind[1..].iter().map(|size| size.parse().unwrap()).collect();
        let input = match kind[0] {
            "flat" => Input::Flat(sizes[0]),
            "image" => Input::Image([sizes[0], sizes[1], sizes[2]]),
            _ => Input::Symbols { window: sizes[0], vocabulary: sizes[1] },
        };
        let numbers =
            |line: &str| line.split(' ').map(|number| number.parse().unwrap()).collect::<Vec<f32>>();
        let all: Vec<Vec<f32>> = lines.map(numbers).collect();
        let (rows, predictions) = all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).unzip();
        Case { name: name.into(), source, input, rows, predictions }
    }

    fn batch(&self) -> Batch {
        let flat = self.rows.concat();
        let features = match self.input {
            Input::Symbols { window, vocabulary } => {
                let symbols = flat.iter().map(|symbol| *symbol as u32).collect();
                Features::Tokens { symbols, window, vocabulary }
            }
            _ => Features::Dense(flat),
        };
        let classes = (0..self.rows.len() as u32).map(|row| row % self.predictions[0].len() as u32);
        Batch {
            epoch: 0,
            rows: (0..self.rows.len() as u64).collect(),
            width: self.input.width(),
            features,
            targets: Targets::Classes(classes.collect()),
        }
    }

    fn network(&self) -> Network {
        let outputs = self.predictions[0].len();
        let network = self.source.network(self.input, outputs, Task::Classification, Options::default());
        network.unwrap_or_else(|error| panic!("{}: {}", self.name, error.message))
    }

    fn check(&self, network: &mut Network, parameters: &[f32]) {
        let mut predictions = Vec::new();
        network.predict(parameters, &self.batch(), &mut predictions).unwrap();
        let expected = self.predictions.concat();
        assert_eq!(predictions.len(), expected.len());
        let error = predictions.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(error < 1e-5, "{}: off by {error}:\n{predictions:?}\n{expected:?}", self.name);
    }
}

fn initial(network: &Network) -> Vec<f32> {
    let mut parameters = vec![f32::NAN; network.layout().len()];
    network.initialize(7, &mut parameters);
    parameters
}

/// All files with expected predictions.
fn cases() -> Vec<Case> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|ending| ending == "txt"));
    let mut names: Vec<String> =
        texts.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    names.sort();
    assert!(names.len() > 20, "{names:?}");
    names.iter().map(|name| Case::read(name)).collect()
}

#[test]
fn predictions_match_pytorch() {
    for case in cases() {
        let mut network = case.network();
        let parameters = initial(&network);
        case.check(&mut network, &parameters);
    }
}

#[test]
fn every_imported_file_can_be_trained() {
    for case in cases() {
        let mut network = case.network();
        let mut parameters = initial(&network);
        let mut gradient = vec![f32::NAN; parameters.len()];
        let mut losses = Vec::new();
        for _ in 0..20 {
            let tally =
                network.gradient(&parameters, &case.batch(), 1.0 / 3.0, &mut gradient, &mut NoHooks).unwrap();
            losses.push(tally.mean_loss());
            parameters.iter_mut().zip(&gradient).for_each(|(p, g)| *p -= 0.1 * g);
        }
        assert!(losses[19] < losses[0], "{}: {losses:?}", case.name);
    }
}

#[test]
fn running_statistics_are_state_and_parameters_keep_the_names_of_the_file() {
    let network = Case::read("trainable-ts").network();
    let tensors = network.layout().tensors();
    let role = |name: &str| tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.role);
    assert_eq!(role("norm.running_mean"), Some(TensorRole::Statistic));
    assert_eq!(role("norm.running_var"), Some(TensorRole::Statistic));
    assert_eq!(role("norm.weight"), Some(TensorRole::Trainable));
    assert_eq!(role("first.weight"), Some(TensorRole::Trainable));
    assert_eq!(tensors.len(), 10);
}

#[test]
fn decomposed_attention_becomes_one_operator() {
    for name in
        ["transformer-ts", "transformer-dyn", "written-out-ts", "encoder-ts", "encoder-dyn", "masked-ts"]
    {
        let description = Case::read(name).network().describe(3);
        let operators: Vec<&str> = description.operators.iter().map(|line| line.operator.as_str()).collect();
        assert!(
            operators.iter().any(|operator| operator.starts_with("attention of")),
            "{name}: {operators:?}"
        );
    }
    let operators = Case::read("transformer-ts").network().describe(3).operators;
    assert!(operators.iter().all(|line| !line.operator.contains("transpose")), "{operators:?}");
}
