//! Parses the arguments of one layer; an argument left over in the end is an error.

use crate::activation::Activation;
use thalweg_core::spec::nearest::unknown;

/// Limit on any size of a layer; a larger one is most likely a typing error.
pub const MAX_SIZE: usize = 1 << 24;

pub struct LayerArguments<'a> {
    arguments: Vec<&'a str>,
    /// The expected form, for errors.
    usage: &'static str,
}

impl<'a> LayerArguments<'a> {
    pub fn new(text: &'a str, usage: &'static str) -> LayerArguments<'a> {
        LayerArguments { arguments: text.split_whitespace().collect(), usage }
    }

    /// An error that shows the expected form.
    pub fn error(&self, reason: impl std::fmt::Display) -> String {
        format!("{reason}; expected \"{}\"", self.usage)
    }

    pub fn next(&mut self) -> Option<&'a str> {
        (!self.arguments.is_empty()).then(|| self.arguments.remove(0))
    }

    /// The next argument, a number from 1.
    pub fn number(&mut self, what: &str) -> Result<usize, String> {
        match self.next() {
            None => Err(self.error(format!("the number of {what} is missing"))),
            Some(argument) => self.read(what, argument, 1),
        }
    }

    /// The next argument, `N` or `HEIGHTxWIDTH`.
    pub fn pair(&mut self, what: &str) -> Result<[usize; 2], String> {
        let Some(argument) = self.next() else {
            return Err(self.error(format!("the {what} is missing")));
        };
        let (height, width) = argument.split_once('x').unwrap_or((argument, argument));
        Ok([self.read(what, height, 1)?, self.read(what, width, 1)?])
    }

    /// The number after the keyword `name`, at any position.
    pub fn keyword(&mut self, name: &str, min: usize) -> Result<Option<usize>, String> {
        let Some(index) = self.arguments.iter().position(|argument| *argument == name) else {
            return Ok(None);
        };
        self.arguments.remove(index);
        if index == self.arguments.len() {
            return Err(self.error(format!("the value of `{name}` is missing")));
        }
        let argument = self.arguments.remove(index);
        self.read(name, argument, min).map(Some)
    }

    /// Whether the keyword `name` is present.
    pub fn flag(&mut self, name: &str) -> bool {
        let index = self.arguments.iter().position(|argument| *argument == name);
        index.map(|index| self.arguments.remove(index)).is_some()
    }

    /// The trailing activation, if any.
    pub fn activation(&mut self) -> Result<Activation, String> {
        match self.next() {
            None => Ok(Activation::None),
            Some(argument) => Activation::from_name(argument).ok_or_else(|| {
                let reason = unknown("activation", argument, Activation::NAMES.into_iter());
                format!("{reason} (expected \"{}\")", self.usage)
            }),
        }
    }

    /// Rejects unread arguments.
    pub fn finish(mut self) -> Result<(), String> {
        match self.next() {
            None => Ok(()),
            Some(argument) => Err(self.error(format!("unexpected argument `{argument}`"))),
        }
    }

    fn read(&self, what: &str, argument: &str, min: usize) -> Result<usize, String> {
        let number = argument
            .parse::<usize>()
            .map_err(|_| self.error(format!("expected a number of {what}, got `{argument}`")))?;
        match (min..=MAX_SIZE).contains(&number) {
            true => Ok(number),
            false => Err(format!("the number of {what} must be between {min} and {MAX_SIZE}, is {number}")),
        }
    }
}
