//! Where training begins: weights drawn so that numbers keep their spread from layer to layer.

use std::sync::Arc;
use thalweg_core::Rng;
use thalweg_core::spec::model::Initialization;

/// How a tensor's first values are made. They depend on nothing but the seed, the tensor's key and its sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// All the same.
    Constant(f32),
    /// Evenly from `-limit..limit`.
    Uniform(f32),
    /// From a normal distribution around 0 with that deviation.
    Normal(f32),
    /// These, whatever the seed: a model that comes with its weights.
    Given(Arc<[f32]>),
}

impl Initializer {
    /// Weights of a layer with so many numbers behind each result, and so many results behind each number.
    pub fn spread(how: Initialization, fan_in: usize, fan_out: usize) -> Initializer {
        // A result's variance is that of the numbers times `fan_in` times the weights'.
        let (variance, even) = match how {
            Initialization::GlorotUniform => (2.0 / (fan_in as f64 + fan_out as f64), true),
            Initialization::GlorotNormal => (2.0 / (fan_in as f64 + fan_out as f64), false),
            Initialization::HeUniform => (2.0 / fan_in as f64, true),
            Initialization::HeNormal => (2.0 / fan_in as f64, false),
            Initialization::LecunUniform => (1.0 / fan_in as f64, true),
            Initialization::LecunNormal => (1.0 / fan_in as f64, false),
        };
        match even {
            // Numbers drawn evenly up to a limit have a third of its square as variance.
            true => Initializer::Uniform((3.0 * variance).sqrt() as f32),
            false => Initializer::Normal(variance.sqrt() as f32),
        }
    }

    /// Writes a tensor's first values.
    pub fn fill(&self, values: &mut [f32], seed: u64, key: &[u64]) {
        let mut rng = Rng::keyed(seed, "initialize", key);
        let mut even = |limit: f32| {
            for value in values.iter_mut() {
                *value = (2.0 * rng.uniform() - 1.0) * limit;
            }
        };
        match self {
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
        let spread = |how| draw(Initializer::spread(how, 6, 18));
        let glorot = most(&spread(Initialization::GlorotUniform));
        assert!((0.495..=0.5).contains(&glorot), "{glorot}");
        let he = most(&spread(Initialization::HeUniform));
        assert!((0.99..=1.0).contains(&he), "{he}");
        for (even, normal) in [
            (Initialization::GlorotUniform, Initialization::GlorotNormal),
            (Initialization::HeUniform, Initialization::HeNormal),
            (Initialization::LecunUniform, Initialization::LecunNormal),
        ] {
            let variance = |how| spread(how).iter().map(|x| x * x).sum::<f32>() / 4000.0;
            let ratio = variance(even) / variance(normal);
            assert!((0.93..1.07).contains(&ratio), "{even:?}: {ratio}");
        }
        assert!((0.24..=0.25).contains(&most(&draw(Initializer::Uniform(0.25)))));
        let normal = draw(Initializer::Normal(0.02));
        let variance = normal.iter().map(|x| x * x).sum::<f32>() / 4000.0;
        assert!((0.019..0.021).contains(&variance.sqrt()), "{variance}");
        assert!(draw(Initializer::Constant(1.0)).iter().all(|value| *value == 1.0));
    }
}
