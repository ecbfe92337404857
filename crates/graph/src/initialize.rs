//! Where training begins: Glorot-uniform weights and zero biases, as Keras does it.

use thalweg_core::Rng;

/// Draws a weight `[units, inputs]` evenly from `-limit..limit` with `limit = sqrt(6 / (inputs + units))`, which
/// keeps the spread of numbers about the same from layer to layer in both directions (Glorot and Bengio 2010).
/// It depends on nothing but the seed, the layer's number and the sizes.
pub fn glorot_uniform(weight: &mut [f32], inputs: usize, units: usize, seed: u64, layer: usize) {
    let limit = (6.0 / (inputs as f64 + units as f64)).sqrt() as f32;
    let mut rng = Rng::keyed(seed, "initialize", &[layer as u64]);
    for value in weight {
        *value = (2.0 * rng.uniform() - 1.0) * limit;
    }
}
