//! The settings of a preset.

use std::fmt;
use toml::Value;

/// A key, the value a preset gives it, and whether the job may choose another.
#[derive(Clone, Copy, Debug)]
pub struct Dial {
    pub key: &'static str,
    pub value: DialValue,
    pub kind: DialKind,
}

/// Whether an explicit value of the job replaces that of the preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialKind {
    /// Another explicit value is refused: with it, the job would not be that system.
    Fixed,
    /// An explicit value of the job applies.
    Default,
}

/// A value, or how it follows from the number of workers.
#[derive(Clone, Copy, Debug)]
pub enum DialValue {
    Text(&'static str),
    Integer(i64),
    Float(f64),
    Bool(bool),
    Rule(Rule),
}

/// A function of n = `engine.workers`.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// For listings: `min(0.9/n, 1/2)`.
    pub formula: &'static str,
    pub of: fn(usize) -> f64,
}

impl Dial {
    pub const fn fixed(key: &'static str, value: DialValue) -> Dial {
        Dial { key, value, kind: DialKind::Fixed }
    }

    pub const fn default(key: &'static str, value: DialValue) -> Dial {
        Dial { key, value, kind: DialKind::Default }
    }

    pub fn is_fixed(&self) -> bool {
        self.kind == DialKind::Fixed
    }
}

impl DialValue {
    /// The value in a job with that many workers.
    pub fn with(&self, workers: usize) -> Value {
        match *self {
            DialValue::Text(text) => text.into(),
            DialValue::Integer(number) => number.into(),
            DialValue::Float(number) => number.into(),
            DialValue::Bool(value) => value.into(),
            DialValue::Rule(rule) => (rule.of)(workers.max(1)).into(),
        }
    }

    /// The formula of a rule.
    pub fn formula(&self) -> Option<&'static str> {
        match self {
            DialValue::Rule(rule) => Some(rule.formula),
            _ => None,
        }
    }
}

/// As in listings: texts without quotation marks, rules by their formula.
impl fmt::Display for DialValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DialValue::Text(text) => f.write_str(text),
            DialValue::Rule(rule) => f.write_str(rule.formula),
            value => write!(f, "{}", value.with(1)),
        }
    }
}

/// Whether two values are the same for a job: `1` and `1.0` are.
pub(crate) fn same(one: &Value, other: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|number| number as f64));
    one == other || number(one).zip(number(other)).is_some_and(|(one, other)| one == other)
}
