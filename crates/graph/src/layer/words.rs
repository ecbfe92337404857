//! The words of one layer's text, taken out one by one; what is left over in the end was a mistake.

use crate::activation::Activation;
use thalweg_core::spec::nearest::unknown;

/// More than any size of a layer; beyond it, a typing error is likelier than intent.
pub const MOST: usize = 1 << 24;

/// What is still unread of a layer's text.
pub struct Words<'a> {
    words: Vec<&'a str>,
    /// What the layer should look like, for complaints.
    usage: &'static str,
}

impl<'a> Words<'a> {
    /// The words behind a layer's kind.
    pub fn new(text: &'a str, usage: &'static str) -> Words<'a> {
        Words { words: text.split_whitespace().collect(), usage }
    }

    /// A complaint that shows what was expected.
    pub fn complaint(&self, reason: impl std::fmt::Display) -> String {
        format!("{reason}; expected \"{}\"", self.usage)
    }

    /// The next word.
    pub fn next(&mut self) -> Option<&'a str> {
        (!self.words.is_empty()).then(|| self.words.remove(0))
    }

    /// The next word, which must be a number from 1.
    pub fn number(&mut self, what: &str) -> Result<usize, String> {
        match self.next() {
            None => Err(self.complaint(format!("the number of {what} is missing"))),
            Some(word) => self.read(what, word, 1),
        }
    }

    /// The next word, `N` or `HEIGHTxWIDTH`.
    pub fn pair(&mut self, what: &str) -> Result<[usize; 2], String> {
        let Some(word) = self.next() else {
            return Err(self.complaint(format!("the {what} is missing")));
        };
        let (height, width) = word.split_once('x').unwrap_or((word, word));
        Ok([self.read(what, height, 1)?, self.read(what, width, 1)?])
    }

    /// The number behind a name, wherever it stands.
    pub fn setting(&mut self, name: &str, least: usize) -> Result<Option<usize>, String> {
        let Some(place) = self.words.iter().position(|word| *word == name) else { return Ok(None) };
        self.words.remove(place);
        if place == self.words.len() {
            return Err(self.complaint(format!("the number behind `{name}` is missing")));
        }
        let word = self.words.remove(place);
        self.read(name, word, least).map(Some)
    }

    /// Whether a word stands anywhere.
    pub fn flag(&mut self, name: &str) -> bool {
        let place = self.words.iter().position(|word| *word == name);
        place.map(|place| self.words.remove(place)).is_some()
    }

    /// The activation at the end, if there is one.
    pub fn activation(&mut self) -> Result<Activation, String> {
        match self.next() {
            None => Ok(Activation::None),
            Some(word) => Activation::named(word).ok_or_else(|| {
                let reason = unknown("activation", word, Activation::NAMES.into_iter());
                format!("{reason} (expected \"{}\")", self.usage)
            }),
        }
    }

    /// Refuses what nobody took.
    pub fn finish(mut self) -> Result<(), String> {
        match self.next() {
            None => Ok(()),
            Some(word) => Err(self.complaint(format!("`{word}` is one word too many"))),
        }
    }

    fn read(&self, what: &str, word: &str, least: usize) -> Result<usize, String> {
        let number = word
            .parse::<usize>()
            .map_err(|_| self.complaint(format!("expected a number of {what}, got `{word}`")))?;
        match (least..=MOST).contains(&number) {
            true => Ok(number),
            false => Err(format!("the number of {what} must be between {least} and {MOST}, is {number}")),
        }
    }
}
