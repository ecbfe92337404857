//! Autoregressive sampling: generates a sequence symbol by symbol, each drawn from the predicted distribution.
//!
//! Each symbol costs a pass over the last window. A causal network predicts at the last symbol, wherever it is in the
//! window; for any other network a prompt shorter than the window is padded in front with its first symbol.

use crate::input::Input;
use crate::network::Network;
use crate::op::Op;
use crate::op::softmax::arg_max;
use thalweg_core::{Batch, Error, Features, Model, NoHooks, Result, Rng, Targets};

impl Network {
    /// Whether it predicts at every position of a sequence, from this position and earlier ones only.
    pub(crate) fn predicts_each_position_causally(&self) -> bool {
        let reads_later_positions = |op: &Op| match op {
            Op::Attention(attention) => !attention.causal,
            Op::Transpose(_) => true,
            _ => false,
        };
        self.sequence.is_some() && !self.graph().nodes().any(|(_, node)| reads_later_positions(&node.op))
    }

    /// Appends the predictions at all positions of each row; none if there is one prediction per row.
    pub(crate) fn predict_positions(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        outputs: &mut Vec<f32>,
    ) -> Result<()> {
        self.check_buffer("parameter", parameters.len())?;
        self.check_features(batch)?;
        let Network { executor, sequence, layout, options, .. } = self;
        if let Some(plan) = sequence {
            executor.run(plan, layout, parameters, &mut [], batch, 1.0, options.seed, &mut NoHooks)?;
            outputs.extend_from_slice(executor.output(plan, batch.len()));
        }
        Ok(())
    }
}

/// Generates a sequence. The same prompt, temperature and seed give the same symbols.
#[derive(Clone, Debug)]
pub struct SequenceSampler {
    network: Network,
    parameters: Vec<f32>,
    window: usize,
    temperature: f64,
    seed: u64,
    /// The prompt and the symbols generated so far.
    sequence: Vec<u32>,
    batch: Batch,
    predictions: Vec<f32>,
}

impl SequenceSampler {
    /// Starts after a prompt of at least one symbol. Temperature 0 always takes the most probable symbol, 1 samples
    /// from the predicted distribution.
    pub fn new(
        network: Network,
        parameters: Vec<f32>,
        prompt: &[u32],
        temperature: f64,
        seed: u64,
    ) -> Result<SequenceSampler> {
        let Input::Symbols { window, vocabulary } = network.input else {
            return Err(Error::job("only a model of sequences can generate text"));
        };
        if prompt.is_empty() {
            return Err(Error::job("the prompt is empty"));
        }
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Error::job(format!("the temperature must be at least 0, is {temperature}")));
        }
        let features = Features::Tokens { symbols: Vec::new(), window, vocabulary };
        let batch = Batch::empty(window * vocabulary, features, Targets::Classes(Vec::new()));
        let (sequence, predictions) = (prompt.to_vec(), Vec::new());
        Ok(SequenceSampler { network, parameters, window, temperature, seed, sequence, batch, predictions })
    }

    /// Generates the next symbol.
    pub fn next_symbol(&mut self) -> Result<u32> {
        let recent = &self.sequence[self.sequence.len().saturating_sub(self.window)..];
        let (seen, missing) = (recent.len(), self.window - recent.len());
        let causal = self.network.predicts_each_position_causally();
        self.batch.clear();
        self.batch.rows.push(0);
        if let Features::Tokens { symbols, .. } = &mut self.batch.features {
            if !causal {
                symbols.extend(std::iter::repeat_n(recent[0], missing));
            }
            symbols.extend_from_slice(recent);
            symbols.resize(self.window, 0);
        }
        self.predictions.clear();
        let SequenceSampler { network, parameters, batch, predictions, .. } = self;
        let probabilities = if causal {
            network.predict_positions(parameters, batch, predictions)?;
            let width = network.outputs();
            &predictions[(seen - 1) * width..seen * width]
        } else {
            network.predict(parameters, batch, predictions)?;
            &predictions[..]
        };
        let mut rng = Rng::keyed(self.seed, "continuation", &[self.sequence.len() as u64]);
        let symbol = draw(probabilities, self.temperature, rng.uniform()) as u32;
        self.sequence.push(symbol);
        Ok(symbol)
    }
}

/// Draws an index from probabilities at a temperature, given a uniform number in `[0, 1)`.
fn draw(probabilities: &[f32], temperature: f64, uniform: f32) -> usize {
    let best = arg_max(probabilities);
    if temperature == 0.0 {
        return best;
    }
    // Relative to the most probable symbol, so that no power overflows; weights that underflow are never drawn.
    let weight =
        |probability: f32| (f64::from(probability) / f64::from(probabilities[best])).powf(1.0 / temperature);
    let total: f64 = probabilities.iter().map(|probability| weight(*probability)).sum();
    let mut left = f64::from(uniform) * total;
    for (index, probability) in probabilities.iter().enumerate() {
        left -= weight(*probability);
        if left < 0.0 {
            return index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::network::Network;
    use thalweg_core::Task;

    fn network(layers: &[&str]) -> (Network, Vec<f32>) {
        let layers: Vec<String> = layers.iter().map(|text| text.to_string()).collect();
        let input = Input::Symbols { window: 6, vocabulary: 5 };
        let network =
            Network::build_with(&layers, input, 5, Task::Classification, Options::default()).unwrap();
        let mut parameters = vec![0.0; network.layout().len()];
        network.initialize(3, &mut parameters);
        (network, parameters)
    }

    fn generate(layers: &[&str], prompt: &[u32], temperature: f64, seed: u64) -> Vec<u32> {
        let (network, parameters) = network(layers);
        let mut text = SequenceSampler::new(network, parameters, prompt, temperature, seed).unwrap();
        (0..20).map(|_| text.next_symbol().unwrap()).collect()
    }

    const CAUSAL: [&str; 3] = ["embedding 8 positions", "residual attention 2 causal", "dense auto"];

    #[test]
    fn the_same_seed_generates_the_same() {
        for layers in [
            &CAUSAL[..],
            &["embedding 8", "lstm 4", "dense auto"],
            &["embedding 8", "gru 4", "last", "dense auto"],
        ] {
            assert_eq!(generate(layers, &[1, 2], 1.0, 7), generate(layers, &[1, 2], 1.0, 7));
            assert_ne!(generate(layers, &[1, 2], 1.0, 7), generate(layers, &[1, 2], 1.0, 8));
            assert_eq!(generate(layers, &[1, 2], 0.0, 7), generate(layers, &[1, 2], 0.0, 8));
        }
    }

    #[test]
    fn the_last_position_of_a_full_window_is_the_prediction() {
        let (mut network, parameters) = network(&CAUSAL);
        assert!(network.predicts_each_position_causally());
        let features = Features::Tokens { symbols: vec![1, 4, 0, 2, 2, 3], window: 6, vocabulary: 5 };
        let mut batch =
            Batch { rows: vec![0], ..Batch::empty(30, features.clone(), Targets::Classes(vec![])) };
        batch.features = features;
        let (mut every, mut last) = (Vec::new(), Vec::new());
        network.predict_positions(&parameters, &batch, &mut every).unwrap();
        network.predict(&parameters, &batch, &mut last).unwrap();
        assert_eq!((every.len(), &every[25..]), (30, &last[..]));
        assert!(
            !self::network(&["embedding 8", "attention 2", "dense auto"]).0.predicts_each_position_causally()
        );
        assert!(
            !self::network(&["embedding 8", "gru 4", "last", "dense auto"])
                .0
                .predicts_each_position_causally()
        );
    }

    #[test]
    fn temperature_sharpens_and_invalid_arguments_are_refused() {
        let probabilities = [0.5, 0.25, 0.25];
        assert_eq!([0.0, 0.49, 0.51, 0.76].map(|uniform| draw(&probabilities, 1.0, uniform)), [0, 0, 1, 2]);
        assert_eq!(draw(&probabilities, 0.1, 0.98), 0);
        assert_eq!(draw(&[0.0, 1.0], 1e-9, 0.999), 1);
        let (network, parameters) = network(&CAUSAL);
        for (prompt, temperature) in [(&[][..], 1.0), (&[1], -1.0), (&[1], f64::NAN)] {
            assert!(
                SequenceSampler::new(network.clone(), parameters.clone(), prompt, temperature, 0).is_err()
            );
        }
    }
}
