//! Announcements of gradients: embeddings announce rows, dense layers announce factors.

mod layer_batches;

use layer_batches::{network, random_batch, texts};
use thalweg_core::{Error, Features, Gradient, Hooks, Model, Rng, Task};
use thalweg_graph::{Input, Network, Options};

#[test]
fn an_embedding_announces_only_the_rows_of_the_batch() {
    #[derive(Default)]
    struct RecordedRows(Vec<(usize, Vec<u32>, Vec<f32>)>);
    impl Hooks for RecordedRows {
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
        let mut recorded = RecordedRows::default();
        network.gradient(&parameters, &batch, 1.0, &mut gradient, &mut recorded).unwrap();
        let [(tensor, rows, values)] = recorded.0.as_slice() else { panic!("one table, announced once") };
        assert_eq!(rows, &[2, 5, 7]);
        let table = &gradient[network.layout().tensors()[*tensor].range()];
        for (row, line) in table.chunks(2).enumerate() {
            match rows.iter().position(|announced| *announced as usize == row) {
                Some(index) => assert_eq!(line, &values[index * 2..index * 2 + 2]),
                None => assert_eq!(line, [0.0, 0.0]),
            }
        }
    }
}

#[derive(Default)]
struct RecordedFactors(Vec<(usize, Vec<f32>, Vec<f32>)>);

impl Hooks for RecordedFactors {
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
fn announced_factors_multiply_to_the_gradient() {
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
                let (mut recorded, mut gradient) =
                    (RecordedFactors::default(), vec![f32::NAN; parameters.len()]);
                build(factors).gradient(&parameters, &batch, 0.5, &mut gradient, &mut recorded).unwrap();
                (recorded.0, gradient)
            };
            let ((factors, gradient), (none, plain)) = (run(true), run(false));
            assert_eq!((&gradient, factors.len(), none.len()), (&plain, expected, 0));
            for (tensor, left, right) in factors {
                let tensor = &build(false).layout().tensors()[tensor].clone();
                let [units, inputs] = *tensor.shape.as_slice() else { panic!("{tensor:?} is not a matrix") };
                assert_eq!(left.len() / units, right.len() / inputs, "the same number of rows");
                for (index, got) in gradient[tensor.range()].iter().enumerate() {
                    let (unit, input) = (index / inputs, index % inputs);
                    let lines = left.chunks(units).zip(right.chunks(inputs));
                    let product: f64 = lines.map(|(l, r)| f64::from(l[unit]) * f64::from(r[input])).sum();
                    assert!((product - f64::from(*got)).abs() < 1e-5 * (1.0 + product.abs()), "{tensor:?}");
                }
            }
        }
    }
}
