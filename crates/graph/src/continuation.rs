//! Writing a sequence on: symbol by symbol, each drawn from what the network says follows those before it.
//!
//! Every symbol is a pass over the last window. A network whose positions see nothing behind them answers at the last
//! symbol written, wherever in the window that is; any other one gets a short beginning stretched by its first symbol.

use crate::input::Input;
use crate::network::Network;
use crate::op::Op;
use crate::op::softmax::arg_max;
use thalweg_core::{Batch, Error, Features, Model, NoHooks, Result, Rng, Targets};

impl Network {
    /// Whether it answers at every position of a sequence, from that position and those before it alone.
    pub fn is_causal(&self) -> bool {
        let looks_ahead = |op: &Op| match op {
            Op::Attention(attention) => !attention.causal,
            Op::Transpose(_) => true,
            _ => false,
        };
        self.sequence.is_some() && !self.graph().nodes().any(|(_, node)| looks_ahead(&node.op))
    }

    /// Appends what the network answers at each position of each row; nothing if it answers once per row.
    pub fn predict_positions(
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
            outputs.extend_from_slice(executor.answer(plan, batch.len()));
        }
        Ok(())
    }
}

/// A sequence that is being written on. The same beginning, temperature and seed give the same symbols.
#[derive(Clone, Debug)]
pub struct Continuation {
    network: Network,
    parameters: Vec<f32>,
    window: usize,
    temperature: f64,
    seed: u64,
    written: Vec<u32>,
    batch: Batch,
    answers: Vec<f32>,
}

impl Continuation {
    /// Behind a beginning of at least one symbol. At temperature 0 the likeliest symbol always follows, at 1 each as
    /// often as the network says; in between, likely ones are preferred.
    pub fn new(
        network: Network,
        parameters: Vec<f32>,
        beginning: &[u32],
        temperature: f64,
        seed: u64,
    ) -> Result<Continuation> {
        let Input::Symbols { window, vocabulary } = network.input else {
            return Err(Error::job("only a model of sequences can write one on"));
        };
        if beginning.is_empty() {
            return Err(Error::job("there is no beginning to go on from"));
        }
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(Error::job(format!("the temperature must be at least 0, is {temperature}")));
        }
        let features = Features::Tokens { symbols: Vec::new(), window, vocabulary };
        let batch = Batch::empty(window * vocabulary, features, Targets::Classes(Vec::new()));
        let (written, answers) = (beginning.to_vec(), Vec::new());
        Ok(Continuation { network, parameters, window, temperature, seed, written, batch, answers })
    }

    /// The next symbol.
    pub fn step(&mut self) -> Result<u32> {
        let recent = &self.written[self.written.len().saturating_sub(self.window)..];
        let (seen, missing) = (recent.len(), self.window - recent.len());
        let causal = self.network.is_causal();
        self.batch.clear();
        self.batch.rows.push(0);
        if let Features::Tokens { symbols, .. } = &mut self.batch.features {
            if !causal {
                symbols.extend(std::iter::repeat_n(recent[0], missing));
            }
            symbols.extend_from_slice(recent);
            symbols.resize(self.window, 0);
        }
        self.answers.clear();
        let Continuation { network, parameters, batch, answers, .. } = self;
        let shares = if causal {
            network.predict_positions(parameters, batch, answers)?;
            let width = network.outputs();
            &answers[(seen - 1) * width..seen * width]
        } else {
            network.predict(parameters, batch, answers)?;
            &answers[..]
        };
        let mut rng = Rng::keyed(self.seed, "continuation", &[self.written.len() as u64]);
        let symbol = draw(shares, self.temperature, rng.uniform()) as u32;
        self.written.push(symbol);
        Ok(symbol)
    }
}

/// The place where a number in `[0, 1)` falls among the shares, sharpened by the temperature.
fn draw(shares: &[f32], temperature: f64, number: f32) -> usize {
    let best = arg_max(shares);
    if temperature == 0.0 {
        return best;
    }
    // Relative to the likeliest, so that no power overflows; what vanishes is not drawn.
    let weight = |share: f32| (f64::from(share) / f64::from(shares[best])).powf(1.0 / temperature);
    let total: f64 = shares.iter().map(|share| weight(*share)).sum();
    let mut left = f64::from(number) * total;
    for (place, share) in shares.iter().enumerate() {
        left -= weight(*share);
        if left < 0.0 {
            return place;
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

    fn write(layers: &[&str], beginning: &[u32], temperature: f64, seed: u64) -> Vec<u32> {
        let (network, parameters) = network(layers);
        let mut text = Continuation::new(network, parameters, beginning, temperature, seed).unwrap();
        (0..20).map(|_| text.step().unwrap()).collect()
    }

    const CAUSAL: [&str; 3] = ["embedding 8 positions", "residual attention 2 causal", "dense auto"];

    #[test]
    fn the_same_seed_writes_the_same() {
        for layers in [
            &CAUSAL[..],
            &["embedding 8", "lstm 4", "dense auto"],
            &["embedding 8", "gru 4", "last", "dense auto"],
        ] {
            assert_eq!(write(layers, &[1, 2], 1.0, 7), write(layers, &[1, 2], 1.0, 7));
            assert_ne!(write(layers, &[1, 2], 1.0, 7), write(layers, &[1, 2], 1.0, 8));
            assert_eq!(write(layers, &[1, 2], 0.0, 7), write(layers, &[1, 2], 0.0, 8));
        }
    }

    #[test]
    fn the_last_position_of_a_full_window_is_the_answer() {
        let (mut network, parameters) = network(&CAUSAL);
        assert!(network.is_causal());
        let features = Features::Tokens { symbols: vec![1, 4, 0, 2, 2, 3], window: 6, vocabulary: 5 };
        let mut batch =
            Batch { rows: vec![0], ..Batch::empty(30, features.clone(), Targets::Classes(vec![])) };
        batch.features = features;
        let (mut every, mut last) = (Vec::new(), Vec::new());
        network.predict_positions(&parameters, &batch, &mut every).unwrap();
        network.predict(&parameters, &batch, &mut last).unwrap();
        assert_eq!((every.len(), &every[25..]), (30, &last[..]));
        assert!(!self::network(&["embedding 8", "attention 2", "dense auto"]).0.is_causal());
        assert!(!self::network(&["embedding 8", "gru 4", "last", "dense auto"]).0.is_causal());
    }

    #[test]
    fn temperature_sharpens_and_nonsense_is_refused() {
        let shares = [0.5, 0.25, 0.25];
        assert_eq!([0.0, 0.49, 0.51, 0.76].map(|number| draw(&shares, 1.0, number)), [0, 0, 1, 2]);
        assert_eq!(draw(&shares, 0.1, 0.98), 0);
        assert_eq!(draw(&[0.0, 1.0], 1e-9, 0.999), 1);
        let (network, parameters) = network(&CAUSAL);
        for (beginning, temperature) in [(&[][..], 1.0), (&[1], -1.0), (&[1], f64::NAN)] {
            assert!(
                Continuation::new(network.clone(), parameters.clone(), beginning, temperature, 0).is_err()
            );
        }
    }
}
