//! Initial values of parameters. Weights are scaled so that activations keep their variance from layer to layer.

use std::sync::Arc;
use thalweg_core::Rng;
use thalweg_core::spec::model::Initialization;

/// Initial values of a tensor: a function of the seed, the tensor's key and its sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    Constant(f32),
    /// Uniform in `-limit..limit`.
    Uniform(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// Fixed values: an imported model brings its weights.
    Given(Arc<[f32]>),
}

impl Initializer {
    /// The initializer of a weight with these fans.
    pub fn variance_scaling(scheme: Initialization, fan_in: usize, fan_out: usize) -> Initializer {
        // The variance of a result is that of the inputs times `fan_in` times that of the weights.
        let (variance, uniform) = match scheme {
            Initialization::GlorotUniform => (2.0 / (fan_in as f64 + fan_out as f64), true),
            Initialization::GlorotNormal => (2.0 / (fan_in as f64 + fan_out as f64), false),
            Initialization::HeUniform => (2.0 / fan_in as f64, true),
            Initialization::HeNormal => (2.0 / fan_in as f64, false),
            Initialization::LecunUniform => (1.0 / fan_in as f64, true),
            Initialization::LecunNormal => (1.0 / fan_in as f64, false),
        };
        match uniform {
            // A uniform distribution in -limit..limit has variance limit^2 / 3.
            true => Initializer::Uniform((3.0 * variance).sqrt() as f32),
            false => Initializer::Normal(variance.sqrt() as f32),
        }
    }

    pub fn fill(&self, values: &mut [f32], seed: u64, key: &[u64]) {
        let mut rng = Rng::keyed(seed, "initialize", key);
        let mut uniform = |limit: f32| {
            for value in values.iter_mut() {
                *value = (2.0 * rng.uniform() - 1.0) * limit;
            }
        };
        match self {
            &Initializer::Uniform(limit) => uniform(limit),
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
        let max_abs = |values: &[f32]| values.iter().fold(0f32, |max, value| max.max(value.abs()));
        let scaled = |scheme| draw(Initializer::variance_scaling(scheme, 6, 18));
        let glorot = max_abs(&scaled(Initialization::GlorotUniform));
        assert!((0.495..=0.5).contains(&glorot), "{glorot}");
        let he = max_abs(&scaled(Initialization::HeUniform));
        assert!((0.99..=1.0).contains(&he), "{he}");
        for (uniform, normal) in [
            (Initialization::GlorotUniform, Initialization::GlorotNormal),
            (Initialization::HeUniform, Initialization::HeNormal),
            (Initialization::LecunUniform, Initialization::LecunNormal),
        ] {
            let variance = |scheme| scaled(scheme).iter().map(|x| x * x).sum::<f32>() / 4000.0;
            let ratio = variance(uniform) / variance(normal);
            assert!((0.93..1.07).contains(&ratio), "{uniform:?}: {ratio}");
        }
        assert!((0.24..=0.25).contains(&max_abs(&draw(Initializer::Uniform(0.25)))));
        let normal = draw(Initializer::Normal(0.02));
        let variance = normal.iter().map(|x| x * x).sum::<f32>() / 4000.0;
        assert!((0.019..0.021).contains(&variance.sqrt()), "{variance}");
        assert!(draw(Initializer::Constant(1.0)).iter().all(|value| *value == 1.0));
    }
}
