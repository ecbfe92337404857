//! Gradients of dense networks against finite differences, and invariants between batches.

mod reference;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use reference::{InputKind, ReferenceNetwork, part, random_batch, to_dense};
use thalweg_core::{Batch, Error, Features, Gradient, Hooks, Model, NoHooks, Rng, Tally, Targets};
use thalweg_graph::{Activation, Network, Team};

/// A random network with parameters and a batch.
#[derive(Debug)]
struct Case {
    network: Network,
    reference: ReferenceNetwork,
    parameters: Vec<f32>,
    batch: Batch,
}

impl Case {
    fn wide_parameters(&self) -> Vec<f64> {
        self.parameters.iter().map(|value| f64::from(*value)).collect()
    }

    /// The gradient, written over NaN so that a missing element shows.
    fn gradient(&mut self, batch: &Batch, scale: f32) -> (Tally, Vec<f32>) {
        let mut gradient = vec![f32::NAN; self.parameters.len()];
        let tally =
            self.network.gradient(&self.parameters, batch, scale, &mut gradient, &mut NoHooks).unwrap();
        (tally, gradient)
    }
}

fn activation() -> impl Strategy<Value = Activation> {
    use Activation::*;
    prop::sample::select(vec![None, Relu, Tanh, Sigmoid, LeakyRelu, Elu, Gelu, GeluErf])
}

fn input_kind() -> impl Strategy<Value = InputKind> {
    prop::sample::select(vec![InputKind::Dense, InputKind::Sparse, InputKind::Tokens])
}

prop_compose! {
    fn case(most_rows: usize)(
        kind in input_kind(),
        width in 1usize..13,
        hidden in prop::collection::vec((1usize..10, activation()), 0..3),
        last in activation(),
        classes in prop::option::of(1usize..6),
        rows in 0..=most_rows,
        threads in 1usize..4,
        seed: u64,
    ) -> Case {
        let mut rng = Rng::keyed(seed, "case", &[]);
        let mut builder = Network::with_inputs(width);
        let mut sizes = vec![width];
        let mut activations = Vec::new();
        for (units, activation) in hidden.into_iter().chain([(classes.unwrap_or(1), last)]) {
            builder = builder.dense(units, activation);
            sizes.push(units);
            activations.push(activation);
        }
        let network = match classes {
            Some(_) => builder.classification(),
            None => builder.regression(),
        }.unwrap().with_team(Team::eager(threads));
        let layout = network.layout().clone();
        let parameters = (0..layout.len()).map(|_| 0.7 * rng.normal()).collect();
        let batch = random_batch(&mut rng, kind, rows, width, classes);
        Case { network, reference: ReferenceNetwork { sizes, activations, layout }, parameters, batch }
    }
}

fn close(got: &[f32], expected: &[f64], tolerance: f64) -> Result<(), TestCaseError> {
    let largest = expected.iter().fold(1.0f64, |most, value| most.max(value.abs()));
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        prop_assert!(error <= tolerance * largest, "element {index}: {got}, expected {expected}");
    }
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Default::default() }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn gradients_match_finite_differences(mut case in case(6)) {
        let (parameters, batch) = (case.wide_parameters(), case.batch.clone());
        prop_assume!(!case.reference.near_kink(&parameters, &batch));
        let (tally, gradient) = case.gradient(&batch, 1.0);
        let loss = case.reference.loss(&parameters, &batch);
        prop_assert!((tally.loss - loss).abs() < 1e-4 * (1.0 + loss), "{} {loss}", tally.loss);
        close(&gradient, &case.reference.differences(&parameters, &batch), 2e-5)?;
        prop_assert_eq!(case.network.evaluate(&case.parameters, &batch).unwrap(), tally);
    }

    #[test]
    fn gradients_of_batch_parts_sum_to_the_whole(mut case in case(40), cut in 0.0..1.0f64) {
        let batch = case.batch.clone();
        let middle = (batch.len() as f64 * cut) as usize;
        let (tally, whole) = case.gradient(&batch, 0.25);
        let (mut sum, left) = case.gradient(&part(&batch, 0..middle), 0.25);
        let (rest, right) = case.gradient(&part(&batch, middle..batch.len()), 0.25);
        sum.add(&rest);
        prop_assert_eq!((sum.rows, sum.correct), (tally.rows, tally.correct));
        prop_assert!((sum.loss - tally.loss).abs() <= 1e-5 * (1.0 + tally.loss));
        let parts: Vec<f64> = left.iter().zip(&right).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
        close(&whole, &parts, 2e-6)?;
    }

    #[test]
    fn sparse_and_dense_rows_give_the_same_gradient(mut case in case(20)) {
        let batch = case.batch.clone();
        let (tally, gradient) = case.gradient(&batch, 1.0);
        let (dense_tally, dense) = case.gradient(&to_dense(&batch), 1.0);
        prop_assert!((tally.loss - dense_tally.loss).abs() <= 1e-5 * (1.0 + tally.loss));
        close(&gradient, &dense.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), 5e-6)?;
    }

    #[test]
    fn the_scale_multiplies_the_gradient(mut case in case(8)) {
        let batch = case.batch.clone();
        let (_, once) = case.gradient(&batch, 1.0);
        let (_, third) = case.gradient(&batch, 1.0 / 3.0);
        close(&third, &once.iter().map(|value| f64::from(*value) / 3.0).collect::<Vec<_>>(), 2e-6)?;
    }

    #[test]
    fn predictions_do_not_depend_on_the_other_rows(mut case in case(12)) {
        let batch = case.batch.clone();
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        case.network.predict(&case.parameters, &batch, &mut together).unwrap();
        for row in 0..batch.len() {
            case.network.predict(&case.parameters, &part(&batch, row..row + 1), &mut alone).unwrap();
        }
        prop_assert_eq!(together.len(), batch.len() * case.network.outputs());
        close(&together, &alone.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), 2e-6)?;
        if matches!(batch.targets, Targets::Classes(_)) {
            for row in together.chunks(case.network.outputs()) {
                prop_assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn every_gradient_is_announced_once_in_layout_order_and_final(mut case in case(5)) {
        #[derive(Default)]
        struct RecordedGradients(Vec<(usize, Vec<f32>)>);
        impl Hooks for RecordedGradients {
            fn gradient(&mut self, piece: Gradient<'_>) -> Result<(), Error> {
                let Gradient::Dense { tensor, values } = piece else { panic!("dense layers announce dense pieces") };
                self.0.push((tensor, values.to_vec()));
                Ok(())
            }
            fn reduce(&mut self, _: &mut [f32]) -> Result<(), Error> {
                panic!("nothing to reduce")
            }
        }
        let mut recorded = RecordedGradients::default();
        let mut gradient = vec![f32::NAN; case.parameters.len()];
        case.network.gradient(&case.parameters, &case.batch, 1.0, &mut gradient, &mut recorded).unwrap();
        let order: Vec<usize> = recorded.0.iter().map(|(tensor, _)| *tensor).collect();
        prop_assert_eq!(order, (0..case.network.layout().tensors().len()).collect::<Vec<_>>());
        let announced: Vec<f32> = recorded.0.into_iter().flat_map(|(_, values)| values).collect();
        prop_assert_eq!(announced, gradient);
    }
}

#[test]
fn an_empty_batch_gives_a_zero_gradient() {
    let mut network = Network::with_inputs(6)
        .dense(5, Activation::Relu)
        .dense(3, Activation::None)
        .classification()
        .unwrap();
    let mut parameters = vec![0.0; network.layout().len()];
    network.initialize(1, &mut parameters);
    let mut rng = Rng::keyed(1, "empty", &[]);
    for kind in [InputKind::Dense, InputKind::Sparse, InputKind::Tokens] {
        for rows in [4, 0] {
            let batch = random_batch(&mut rng, kind, rows, 6, Some(3));
            let mut gradient = vec![f32::NAN; parameters.len()];
            let tally = network.gradient(&parameters, &batch, 1.0, &mut gradient, &mut NoHooks).unwrap();
            assert_eq!(tally.rows, rows as u64);
            assert_eq!(gradient.iter().all(|value| *value == 0.0), rows == 0, "{kind:?}");
            if rows == 0 {
                assert_eq!(tally, Tally::default());
            }
        }
    }
}

#[test]
fn a_failing_hook_aborts_the_pass() {
    struct FailingHook;
    impl Hooks for FailingHook {
        fn gradient(&mut self, _: Gradient<'_>) -> Result<(), Error> {
            Err(Error::data("peer lost"))
        }
        fn reduce(&mut self, _: &mut [f32]) -> Result<(), Error> {
            Ok(())
        }
    }
    let mut network = Network::with_inputs(2).dense(2, Activation::None).classification().unwrap();
    let batch = random_batch(&mut Rng::keyed(1, "hook", &[]), InputKind::Dense, 2, 2, Some(2));
    let error = network.gradient(&[0.0; 6], &batch, 1.0, &mut [0.0; 6], &mut FailingHook).unwrap_err();
    assert_eq!(error.message, "peer lost");
}

#[test]
fn invalid_batches_are_rejected() {
    let mut network = Network::with_inputs(6).dense(3, Activation::None).classification().unwrap();
    let parameters = vec![0.0; network.layout().len()];
    let fitting = Batch {
        epoch: 0,
        rows: vec![40, 41],
        width: 6,
        features: Features::Dense(vec![0.0; 12]),
        targets: Targets::Classes(vec![0, 2]),
    };
    assert!(network.evaluate(&parameters, &fitting).is_ok());
    let sparse = |starts: &[usize], columns: &[u32]| Features::Sparse {
        starts: starts.to_vec(),
        columns: columns.to_vec(),
        values: vec![1.0; 2],
    };
    let tokens =
        |symbols: &[u32], window| Features::Tokens { symbols: symbols.to_vec(), window, vocabulary: 3 };
    let with = |features| Batch { features, ..fitting.clone() };
    let aiming = |targets| Batch { targets, ..fitting.clone() };
    let refused = [
        (Batch { width: 5, ..fitting.clone() }, "the rows have 5 columns, but the model reads 6"),
        (with(Features::Dense(vec![0.0; 11])), "should hold 12 values, but holds 11"),
        (with(sparse(&[0, 1, 2], &[0, 6])), "row 41: column 6"),
        (with(sparse(&[0, 0, 2], &[7, 0])), "row 41: column 7"),
        (with(sparse(&[0, 2], &[0, 1])), "3 row starts"),
        (with(sparse(&[0, 2, 1], &[0, 1])), "are not ascending"),
        (with(sparse(&[1, 2, 2], &[0, 1])), "are not ascending"),
        (with(sparse(&[0, 0, 0], &[0, 1])), "are not ascending"),
        (with(sparse(&[0, 1, 3], &[0, 1, 2])), "should hold 3 values, but holds 2"),
        (with(tokens(&[0, 1, 2, 3], 2)), "row 41: symbol 3"),
        (with(tokens(&[0, 1, 2], 2)), "4 symbols"),
        (with(tokens(&[0, 1, 2, 0], 3)), "the rows have 9 columns"),
        (aiming(Targets::Classes(vec![0, 3])), "row 41: class 3"),
        (aiming(Targets::Classes(vec![0])), "should hold 2 targets"),
        (aiming(Targets::Values(vec![0.0; 2])), "the model classifies"),
    ];
    for (batch, expected) in refused {
        let error = network.evaluate(&parameters, &batch).unwrap_err();
        assert!(error.message.contains(expected), "{} should contain {expected}", error.message);
        assert_eq!(error.exit_code(), 2);
    }
    assert!(network.evaluate(&parameters[1..], &fitting).unwrap_err().message.contains("parameter buffer"));
}
