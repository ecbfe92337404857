//! Losses against finite differences; invariants of dropout and of batch normalisation's statistics.

use thalweg_core::model::{Gradient, Hooks, TensorRole};
use thalweg_core::{Batch, Error, Features, Model, NoHooks, Rng, Targets, Task};
use thalweg_graph::{Activation, Input, Loss, Network, Options};

fn batch(rng: &mut Rng, rows: usize, width: usize, classes: Option<u64>) -> Batch {
    let features = Features::Dense((0..rows * width).map(|_| rng.normal()).collect());
    let targets = match classes {
        Some(count) => Targets::Classes((0..rows).map(|_| rng.below(count) as u32).collect()),
        None => Targets::Values((0..rows).map(|_| rng.normal()).collect()),
    };
    Batch { epoch: 1, rows: (0..rows as u64).map(|row| 10 + row).collect(), width, features, targets }
}

fn loss_and_gradient(network: &mut Network, parameters: &[f32], batch: &Batch) -> (f64, Vec<f32>) {
    let mut gradient = vec![f32::NAN; parameters.len()];
    let tally = network.gradient(parameters, batch, 1.0, &mut gradient, &mut NoHooks).unwrap();
    (tally.loss, gradient)
}

#[test]
fn gradients_of_losses_match_finite_differences() {
    for loss in Loss::NAMES.map(|name| Loss::from_name(name).unwrap()) {
        let task = if loss.supports(Task::Regression) { Task::Regression } else { Task::Classification };
        let outputs = match (loss, task) {
            (Loss::Reconstruction, _) => 6,
            (_, Task::Classification) => 3,
            (_, Task::Regression) => 1,
        };
        let options = Options { loss: Some(loss), ..Options::default() };
        let builder = Network::with_inputs(6).options(options).dense(4, Activation::Tanh);
        let builder = builder.dense(outputs, Activation::None);
        let network = if task == Task::Regression { builder.regression() } else { builder.classification() };
        let mut network = network.unwrap();
        let mut rng = Rng::keyed(5, loss.name(), &[]);
        let parameters: Vec<f32> = (0..network.layout().len()).map(|_| rng.normal()).collect();
        for rows in [0, 1, 7] {
            let batch = batch(&mut rng, rows, 6, (task == Task::Classification).then_some(3));
            let (_, gradient) = loss_and_gradient(&mut network, &parameters, &batch);
            let direction: Vec<f32> = parameters.iter().map(|_| rng.normal()).collect();
            let mut loss_at = |step: f32| {
                let moved: Vec<f32> = parameters.iter().zip(&direction).map(|(p, d)| p + step * d).collect();
                loss_and_gradient(&mut network, &moved, &batch).0
            };
            let difference = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3;
            let expected: f64 =
                gradient.iter().zip(&direction).map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let close = (difference - expected).abs() <= 2e-2 * (1.0 + expected.abs());
            assert!(close, "{} with {rows} rows: {difference} {expected}", loss.name());
        }
    }
}

#[test]
fn a_loss_must_fit_its_task() {
    let options = Options { loss: Some(Loss::Huber), ..Options::default() };
    let builder = Network::with_inputs(3).options(options).dense(2, Activation::None);
    let error = builder.classification().unwrap_err();
    assert_eq!(error.message, "model.loss: `huber` is a loss of regression, but the task is classification");
    assert!(error.hint.unwrap().starts_with("use auto, cross-entropy, binary-cross-entropy, hinge"));
    let layers = ["embedding 3", "dense auto"].map(String::from);
    let options = Options { loss: Some(Loss::Hinge), ..Options::default() };
    let text = Input::Symbols { window: 4, vocabulary: 5 };
    let error = Network::build_with(&layers, text, 5, Task::Classification, options).unwrap_err();
    assert!(error.message.contains("`hinge` takes one prediction per row"), "{error}");
}

#[test]
fn dropout_depends_only_on_seed_epoch_and_row() {
    let layers = ["dropout 0.5", "dense auto"].map(String::from);
    let build = |seed| {
        let options = Options { seed, ..Options::default() };
        Network::build_with(&layers, Input::Flat(40), 2, Task::Classification, options).unwrap()
    };
    let mut rng = Rng::keyed(1, "dropout", &[]);
    let whole = batch(&mut rng, 2, 40, Some(2));
    let parameters: Vec<f32> = (0..build(0).layout().len()).map(|_| rng.normal()).collect();
    let gradient = |seed: u64, batch: &Batch| loss_and_gradient(&mut build(seed), &parameters, batch).1;
    let base = gradient(3, &whole);
    assert_eq!(base, gradient(3, &whole));
    assert_ne!(base, gradient(4, &whole));
    assert_ne!(base, gradient(3, &Batch { epoch: 2, ..whole.clone() }));
    assert_ne!(base, gradient(3, &Batch { rows: vec![10, 12], ..whole.clone() }));
    let weights = base[2..].iter().filter(|value| **value == 0.0).count();
    assert!(weights > 0, "some columns were dropped in both rows");
    let mut evaluated = build(3);
    let first = evaluated.evaluate(&parameters, &whole).unwrap();
    assert_eq!(first, build(9).evaluate(&parameters, &whole).unwrap(), "evaluation drops nothing");
}

/// Records the sums that a pass reduces.
#[derive(Default)]
struct RecordedSums(Vec<Vec<f32>>);

impl Hooks for RecordedSums {
    fn gradient(&mut self, _: Gradient<'_>) -> Result<(), Error> {
        Ok(())
    }
    fn reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.0.push(values.to_vec());
        Ok(())
    }
}

#[test]
fn only_synchronized_statistics_are_reduced_by_the_hook() {
    for (text, synchronized, times) in [
        ("batchnorm", false, 0),
        ("batchnorm", true, 2),
        ("batchnorm local", true, 0),
        ("batchnorm synchronized", false, 2),
    ] {
        let layers = ["dense 4", text, "dense auto"].map(String::from);
        let options = Options { synchronized, ..Options::default() };
        let mut network =
            Network::build_with(&layers, Input::Flat(5), 3, Task::Classification, options).unwrap();
        assert_eq!(network.synchronizes(), times > 0);
        let mut rng = Rng::keyed(1, "sync", &[]);
        let mut parameters = vec![0.0; network.layout().len()];
        network.initialize(1, &mut parameters);
        let mut gradient = parameters.clone();
        let mut hooks = RecordedSums::default();
        let batch = batch(&mut rng, 6, 5, Some(3));
        network.gradient(&parameters, &batch, 1.0, &mut gradient, &mut hooks).unwrap();
        assert_eq!(hooks.0.len(), times, "{text}");
        assert!(hooks.0.iter().all(|sums| sums.len() == 9 && sums[8] == 6.0), "sums and the number of lines");
    }
}

#[test]
fn running_statistics_converge_to_those_of_the_batch() {
    let layers = ["batchnorm", "dense auto"].map(String::from);
    let mut network = Network::build_for(&layers, Input::Flat(3), 2, Task::Classification).unwrap();
    let mut rng = Rng::keyed(1, "running", &[]);
    let mut batch = batch(&mut rng, 64, 3, Some(2));
    if let Features::Dense(values) = &mut batch.features {
        values.iter_mut().for_each(|value| *value = 5.0 + 2.0 * *value);
    }
    let mut parameters = vec![0.0; network.layout().len()];
    network.initialize(1, &mut parameters);
    let mut gradient = parameters.clone();
    let layout = network.layout().clone();
    for _ in 0..150 {
        network.gradient(&parameters, &batch, 1.0 / 64.0, &mut gradient, &mut NoHooks).unwrap();
        for tensor in layout.tensors().iter().filter(|tensor| tensor.role == TensorRole::Statistic) {
            tensor.range().for_each(|place| parameters[place] -= gradient[place]);
        }
    }
    let of = |name: &str| {
        let tensor = layout.tensors().iter().find(|tensor| tensor.name.ends_with(name)).unwrap();
        parameters[tensor.range()].to_vec()
    };
    assert!(of("running_mean").iter().all(|mean| (mean - 5.0).abs() < 1.0), "{:?}", of("running_mean"));
    assert!(
        of("running_var").iter().all(|variance| (2.0..7.0).contains(variance)),
        "{:?}",
        of("running_var")
    );
    let trained = network.gradient(&parameters, &batch, 1.0, &mut gradient, &mut NoHooks).unwrap();
    let evaluated = network.evaluate(&parameters, &batch).unwrap();
    assert!((trained.loss - evaluated.loss).abs() < 0.02 * trained.loss, "{trained:?} {evaluated:?}");
}
