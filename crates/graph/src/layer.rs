//! The compact layer list of a job: `dense UNITS [ACTIVATION]`, one text per layer.

use crate::activation::Activation;
use std::fmt;
use thalweg_core::spec::nearest::unknown;
use thalweg_core::{Error, Result};

/// More units than any layer has; beyond it, a typing error is likelier than intent.
pub const MOST_UNITS: usize = 1 << 24;

const EXPECTED: &str = "expected \"dense UNITS [relu|tanh|sigmoid]\"";

/// How many numbers a layer answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// What the data asks for (last layer only).
    Auto,
    /// That many.
    Count(usize),
}

/// One dense layer as a job describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// How many numbers it answers with.
    pub units: Units,
    /// What it does to each of them.
    pub activation: Activation,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.units {
            Units::Auto => write!(f, "dense auto")?,
            Units::Count(count) => write!(f, "dense {count}")?,
        }
        match self.activation.name() {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

/// Reads a layer list; an error names the layer (`model.layers[1]: ...`) and what was expected.
pub fn parse(texts: &[String]) -> Result<Vec<Layer>> {
    let last = texts.len().saturating_sub(1);
    let read = |(index, text): (usize, &String)| {
        let layer = parse_layer(text).map_err(|reason| wrong(index, reason))?;
        if layer.units == Units::Auto && index != last {
            let reason = format!("`auto` is for the last layer only: \"{text}\" needs a number of units");
            return Err(wrong(index, reason));
        }
        Ok(layer)
    };
    texts.iter().enumerate().map(read).collect()
}

/// The error that names a layer.
pub(crate) fn wrong(index: usize, reason: impl fmt::Display) -> Error {
    Error::job(format!("model.layers[{index}]: {reason}"))
}

/// Reads one layer; the error says what is wrong with it.
fn parse_layer(text: &str) -> Result<Layer, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(&kind) = words.first() else {
        return Err(format!("is empty; {EXPECTED}"));
    };
    if kind != "dense" {
        return Err(format!("{} ({EXPECTED})", unknown("layer", kind, ["dense"].into_iter())));
    }
    let units = match words.get(1) {
        None => return Err(format!("the number of units is missing; {EXPECTED}")),
        Some(&"auto") => Units::Auto,
        Some(word) => Units::Count(parse_units(word)?),
    };
    let activation = match words.get(2) {
        None => Activation::None,
        Some(word) => Activation::named(word).ok_or_else(|| {
            format!("{} ({EXPECTED})", unknown("activation", word, Activation::NAMES.into_iter()))
        })?,
    };
    match words.get(3) {
        None => Ok(Layer { units, activation }),
        Some(word) => Err(format!("`{word}` is one word too many; {EXPECTED}")),
    }
}

/// Reads a number of units.
fn parse_units(word: &str) -> Result<usize, String> {
    let count = word
        .parse()
        .map_err(|_| format!("expected a number of units or `auto`, got `{word}`; {EXPECTED}"))?;
    check_units(count)?;
    Ok(count)
}

/// Refuses numbers of units that no layer can have.
pub(crate) fn check_units(count: usize) -> Result<(), String> {
    match count {
        1..=MOST_UNITS => Ok(()),
        _ => Err(format!("the number of units must be between 1 and {MOST_UNITS}, is {count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(texts: &[&str]) -> Result<Vec<Layer>> {
        parse(&texts.iter().map(|text| text.to_string()).collect::<Vec<_>>())
    }

    fn complaint(texts: &[&str]) -> String {
        list(texts).unwrap_err().message
    }

    #[test]
    fn a_list_gives_itself_back() {
        let texts = ["dense 128 relu", "dense 64 tanh", "dense 3 sigmoid", "dense auto"];
        let shown: Vec<String> = list(&texts).unwrap().iter().map(Layer::to_string).collect();
        assert_eq!(shown, texts);
        assert_eq!(list(&["  dense   7  "]).unwrap()[0].units, Units::Count(7));
    }

    #[test]
    fn a_typo_finds_its_word_and_its_layer() {
        let text = complaint(&["dense 8 relu", "dens 10"]);
        assert!(text.starts_with("model.layers[1]: unknown layer `dens`; did you mean `dense`?"), "{text}");
        assert!(complaint(&["dense 8 rellu"]).contains("did you mean `relu`?"));
        assert!(complaint(&["dense 8 swish12345"]).contains("known are relu, tanh, sigmoid"));
    }

    #[test]
    fn every_refusal_says_what_was_expected() {
        for text in ["", "dense", "dense relu", "dense -3", "dense 1.5", "dense 8 relu relu", "conv 3"] {
            assert!(complaint(&[text]).contains("expected \"dense UNITS"), "{text}");
        }
        for text in ["dense 0", "dense 999999999999"] {
            assert!(complaint(&[text]).contains("must be between 1 and"), "{text}");
        }
        assert!(
            complaint(&["dense auto relu", "dense 3"]).contains("model.layers[0]: `auto` is for the last")
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&[text]);
        }
    }
}
