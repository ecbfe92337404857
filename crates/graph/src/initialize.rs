//! Where training begins: weights drawn so that numbers keep their spread from layer to layer.

use std::sync::Arc;
use thalweg_core::Rng;

/// How a tensor's first values are made. They depend on nothing but the seed, the tensor's key and its sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// All the same.
    Constant(f32),
    /// Evenly from `-limit..limit` with `limit = sqrt(6 / (fan_in + fan_out))`, which keeps the spread about the same
    /// in both directions (Glorot and Bengio 2010).
    Glorot {
        /// Numbers that each result is made from.
        fan_in: usize,
        /// Results that each number goes into.
        fan_out: usize,
    },
    /// Evenly from `-limit..limit` with `limit = sqrt(6 / fan_in)`, for layers with a ReLU behind (He et al. 2015).
    He {
        /// Numbers that each result is made from.
        fan_in: usize,
    },
    /// Evenly from `-limit..limit`.
    Uniform(f32),
    /// From a normal distribution around 0 with that deviation.
    Normal(f32),
    /// These, whatever the seed: a model that comes with its weights.
    Given(Arc<[f32]>),
}

impl Initializer {
    /// Writes a tensor's first values.
    pub fn fill(&self, values: &mut [f32], seed: u64, key: &[u64]) {
        let mut rng = Rng::keyed(seed, "initialize", key);
        let mut even = |limit: f32| {
            for value in values.iter_mut() {
                *value = (2.0 * rng.uniform() - 1.0) * limit;
            }
        };
        match self {
            &Initializer::Glorot { fan_in, fan_out } => {
                even((6.0 / (fan_in as f64 + fan_out as f64)).sqrt() as f32);
            }
            &Initializer::He { fan_in } => even((6.0 / fan_in as f64).sqrt() as f32),
            &Initializer::Uniform(limit) => even(limit),
            &Initializer::Constant(constant) => values.fill(constant),
            Initializer::Given(given) => values.copy_from_slice(given),
            &Initializer::Normal(deviation) => {
                values.iter_mut().for_each(|value| *value = deviation * rng.normal());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_deviations_hold() {
        let draw = |initializer: Initializer| {
            let mut values = vec![f32::NAN; 4000];
            initializer.fill(&mut values, 7, &[1]);
            values
        };
        let most = |values: &[f32]| values.iter().fold(0f32, |most, value| most.max(value.abs()));
        let glorot = most(&draw(Initializer::Glorot { fan_in: 30, fan_out: 20 }));
        assert!((0.34..=0.3465).contains(&glorot), "{glorot}");
        let he = most(&draw(Initializer::He { fan_in: 6 }));
        assert!((0.99..=1.0).contains(&he), "{he}");
        assert!((0.24..=0.25).contains(&most(&draw(Initializer::Uniform(0.25)))));
        let normal = draw(Initializer::Normal(0.02));
        let variance = normal.iter().map(|x| x * x).sum::<f32>() / 4000.0;
        assert!((0.019..0.021).contains(&variance.sqrt()), "{variance}");
        assert!(draw(Initializer::Constant(1.0)).iter().all(|value| *value == 1.0));
    }
}
