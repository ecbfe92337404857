//! A reference implementation of dense networks in double precision, as simple as possible.

use thalweg_core::{Batch, Features, Layout, Rng, Targets};
use thalweg_graph::Activation;

/// The representation of a batch's rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputKind {
    Dense,
    Sparse,
    Tokens,
}

/// A dense network; the first size is that of its input.
#[derive(Clone, Debug)]
pub struct ReferenceNetwork {
    pub sizes: Vec<usize>,
    pub activations: Vec<Activation>,
    pub layout: Layout,
}

impl ReferenceNetwork {
    fn tensor<'a>(&self, parameters: &'a [f64], name: &str) -> &'a [f64] {
        let tensor = self.layout.tensors().iter().find(|tensor| tensor.name == name).unwrap();
        &parameters[tensor.range()]
    }

    /// The output for one row, and the smallest absolute input of any ReLU.
    pub fn output(&self, parameters: &[f64], row: &[f64]) -> (Vec<f64>, f64) {
        let mut values = row.to_vec();
        let mut nearest_kink = f64::INFINITY;
        for (index, activation) in self.activations.iter().enumerate() {
            let weight = self.tensor(parameters, &format!("layers.{index}.weight"));
            let bias = self.tensor(parameters, &format!("layers.{index}.bias"));
            let product = |unit: usize| -> f64 {
                let weights = &weight[unit * values.len()..][..values.len()];
                bias[unit] + weights.iter().zip(&values).map(|(w, x)| w * x).sum::<f64>()
            };
            let sums: Vec<f64> = (0..self.sizes[index + 1]).map(product).collect();
            if matches!(activation, Activation::Relu | Activation::LeakyRelu) {
                nearest_kink = sums.iter().fold(nearest_kink, |near, x| near.min(x.abs()));
            }
            let apply = |x: f64| match activation {
                Activation::None => x,
                Activation::Relu => x.max(0.0),
                Activation::Tanh => x.tanh(),
                Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Activation::LeakyRelu => x.max(0.01 * x),
                Activation::Elu => {
                    if x < 0.0 {
                        x.exp() - 1.0
                    } else {
                        x
                    }
                }
                Activation::Gelu => {
                    0.5 * x
                        * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
                }
                Activation::GeluErf => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
            };
            values = sums.into_iter().map(apply).collect();
        }
        (values, nearest_kink)
    }

    /// The summed loss of a batch.
    pub fn loss(&self, parameters: &[f64], batch: &Batch) -> f64 {
        let rows = dense_rows(batch);
        (0..batch.len())
            .map(|row| {
                let (output, _) = self.output(parameters, &rows[row]);
                match &batch.targets {
                    Targets::Classes(classes) => {
                        let sum: f64 = output.iter().map(|x| x.exp()).sum();
                        sum.ln() - output[classes[row] as usize]
                    }
                    Targets::Values(values) => (output[0] - f64::from(values[row])).powi(2),
                }
            })
            .sum()
    }

    /// Whether some ReLU is too close to its kink for finite differences.
    pub fn near_kink(&self, parameters: &[f64], batch: &Batch) -> bool {
        dense_rows(batch).iter().any(|row| self.output(parameters, row).1 < 1e-4)
    }

    /// The gradient of the summed loss by central differences.
    pub fn differences(&self, parameters: &[f64], batch: &Batch) -> Vec<f64> {
        const STEP: f64 = 1e-5;
        let mut moved = parameters.to_vec();
        (0..parameters.len())
            .map(|index| {
                moved[index] = parameters[index] + STEP;
                let above = self.loss(&moved, batch);
                moved[index] = parameters[index] - STEP;
                let below = self.loss(&moved, batch);
                moved[index] = parameters[index];
                (above - below) / (2.0 * STEP)
            })
            .collect()
    }
}

/// The error function by a series whose terms all have the sign of `x`, so that nothing cancels.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

pub fn dense_rows(batch: &Batch) -> Vec<Vec<f64>> {
    let mut rows = vec![vec![0.0; batch.width]; batch.len()];
    for (index, row) in rows.iter_mut().enumerate() {
        match &batch.features {
            Features::Dense(values) => {
                let values = &values[index * batch.width..][..batch.width];
                row.iter_mut().zip(values).for_each(|(x, value)| *x = f64::from(*value));
            }
            Features::Sparse { starts, columns, values } => {
                for place in starts[index]..starts[index + 1] {
                    row[columns[place] as usize] += f64::from(values[place]);
                }
            }
            Features::Tokens { symbols, window, vocabulary } => {
                for position in 0..*window {
                    row[position * vocabulary + symbols[index * window + position] as usize] = 1.0;
                }
            }
        }
    }
    rows
}

/// The same rows as dense features.
pub fn to_dense(batch: &Batch) -> Batch {
    let values = dense_rows(batch).into_iter().flatten().map(|value| value as f32).collect();
    Batch { features: Features::Dense(values), ..batch.clone() }
}

pub fn part(batch: &Batch, rows: std::ops::Range<usize>) -> Batch {
    let features = match &batch.features {
        Features::Dense(values) => {
            Features::Dense(values[rows.start * batch.width..rows.end * batch.width].to_vec())
        }
        Features::Sparse { starts, columns, values } => {
            let (begin, end) = (starts[rows.start], starts[rows.end]);
            Features::Sparse {
                starts: starts[rows.start..=rows.end].iter().map(|start| start - begin).collect(),
                columns: columns[begin..end].to_vec(),
                values: values[begin..end].to_vec(),
            }
        }
        Features::Tokens { symbols, window, vocabulary } => Features::Tokens {
            symbols: symbols[rows.start * window..rows.end * window].to_vec(),
            window: *window,
            vocabulary: *vocabulary,
        },
    };
    let targets = match &batch.targets {
        Targets::Classes(classes) => Targets::Classes(classes[rows.clone()].to_vec()),
        Targets::Values(values) => Targets::Values(values[rows.clone()].to_vec()),
    };
    Batch { epoch: batch.epoch, rows: batch.rows[rows].to_vec(), width: batch.width, features, targets }
}

/// Random rows; `classes` is `None` for a regression. The width of tokens is `window * vocabulary`.
pub fn random_batch(
    rng: &mut Rng,
    kind: InputKind,
    rows: usize,
    width: usize,
    classes: Option<usize>,
) -> Batch {
    let features = match kind {
        InputKind::Dense => Features::Dense((0..rows * width).map(|_| rng.normal()).collect()),
        InputKind::Sparse => {
            let (mut starts, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
            for _ in 0..rows {
                for column in (0..width as u32).filter(|_| rng.below(3) == 0).collect::<Vec<_>>() {
                    columns.push(column);
                    values.push(rng.normal());
                }
                starts.push(columns.len());
            }
            Features::Sparse { starts, columns, values }
        }
        InputKind::Tokens => {
            let window = if width.is_multiple_of(3) { 3 } else { 1 };
            let vocabulary = width / window;
            let symbols = (0..rows * window).map(|_| rng.below(vocabulary as u64) as u32).collect();
            Features::Tokens { symbols, window, vocabulary }
        }
    };
    let targets = match classes {
        Some(count) => Targets::Classes((0..rows).map(|_| rng.below(count as u64) as u32).collect()),
        None => Targets::Values((0..rows).map(|_| rng.normal()).collect()),
    };
    Batch { epoch: 0, rows: (0..rows as u64).collect(), width, features, targets }
}
