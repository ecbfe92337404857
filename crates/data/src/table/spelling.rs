//! Numbers in spellings that are not read: decimal commas, separated thousands, percent signs, currencies.
//!
//! They are recognised so that a column of them is refused with advice instead of becoming one category per number.

use super::problem::Problem;
use super::value::{number, shown};
use std::fmt;

/// How a number is spelled that cannot be read as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// `1,5`.
    DecimalComma,
    /// `1,234` or `1 234.5`.
    Thousands,
    /// `12%`.
    Percent,
    /// `$12`.
    Currency,
}

impl fmt::Display for Spelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spelling::DecimalComma => "a decimal comma",
            Spelling::Thousands => "separated thousands",
            Spelling::Percent => "a percent sign",
            Spelling::Currency => "a currency sign",
        })
    }
}

impl Spelling {
    /// How a field, already trimmed, spells a number; nothing if it can be read or is no number at all.
    pub(crate) fn of(field: &[u8]) -> Option<Spelling> {
        let text = std::str::from_utf8(field).ok()?;
        if number(field).is_some() {
            return None;
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        if let Some(amount) = unsigned.strip_suffix('%') {
            return is_amount(amount.trim_end()).then_some(Spelling::Percent);
        }
        if let Some(amount) = unsigned.strip_prefix(CURRENCIES).or_else(|| unsigned.strip_suffix(CURRENCIES))
        {
            return is_amount(amount.trim()).then_some(Spelling::Currency);
        }
        separated(unsigned)
    }

    /// How to rewrite them.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Spelling::DecimalComma => {
                "write a point instead, in pandas with read_csv(..., decimal=\",\") and to_csv"
            }
            Spelling::Thousands => {
                "remove the separators, in pandas with read_csv(..., thousands=...) and to_csv"
            }
            Spelling::Percent | Spelling::Currency => "remove the sign",
        }
    }
}

/// The problem with such a number in a column.
pub(crate) fn misspelled(column: &str, field: &[u8], spelling: Spelling) -> Problem {
    Problem {
        column: column.into(),
        what: format!("`{}` is a number with {spelling}, which is not read", shown(field)),
        hint: format!(
            "{}; or set data.categorical = [\"{column}\"] if the values are names, or leave the column out with data.ignore",
            spelling.advice()
        ),
        input_hint: Some("write it as in 1234.5: digits, and a point before decimals"),
    }
}

const CURRENCIES: [char; 4] = ['$', '€', '£', '¥'];

/// The spaces between thousands: plain, no-break, and the narrow no-break one of French.
const SPACES: [char; 3] = [' ', '\u{a0}', '\u{202f}'];

/// A number without sign, however separated.
fn is_amount(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && (number(text.as_bytes()).is_some() || separated(text).is_some())
}

fn separated(text: &str) -> Option<Spelling> {
    let thousands = [(',', '.'), ('\'', '.'), ('.', ',')];
    let spaced = SPACES.iter().flat_map(|&space| [(space, ','), (space, '.')]);
    if thousands.into_iter().chain(spaced).any(|(separator, point)| in_groups(text, separator, point)) {
        return Some(Spelling::Thousands);
    }
    let (whole, decimals) = text.split_once(',')?;
    (all_digits(whole) && all_digits(decimals) && !decimals.is_empty()).then_some(Spelling::DecimalComma)
}

/// Digits in groups of three, and decimals behind the point.
fn in_groups(text: &str, separator: char, point: char) -> bool {
    let (whole, decimals) = text.split_once(point).unwrap_or((text, ""));
    let mut groups = whole.split(separator);
    let first = groups.next().unwrap_or_default();
    let mut count = 0;
    let threes = groups.all(|group| {
        count += 1;
        group.len() == 3 && all_digits(group)
    });
    (1..=3).contains(&first.len()) && all_digits(first) && threes && count > 0 && all_digits(decimals)
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_other_spellings_are_recognised() {
        for (text, spelling) in [
            ("1,5", Spelling::DecimalComma),
            ("-0,25", Spelling::DecimalComma),
            ("1,234", Spelling::Thousands),
            ("12,345,678.90", Spelling::Thousands),
            ("1.234,56", Spelling::Thousands),
            ("1 234", Spelling::Thousands),
            ("1'234.5", Spelling::Thousands),
            ("1\u{a0}234,5", Spelling::Thousands),
            ("12\u{202f}345\u{202f}678", Spelling::Thousands),
            ("1\u{202f}200\u{a0}€", Spelling::Currency),
            ("12%", Spelling::Percent),
            ("-3.5 %", Spelling::Percent),
            ("3,5%", Spelling::Percent),
            ("$1,200", Spelling::Currency),
            ("7 €", Spelling::Currency),
        ] {
            assert_eq!(Spelling::of(text.as_bytes()), Some(spelling), "{text}");
        }
    }

    #[test]
    fn numbers_and_names_are_not_taken_for_them() {
        for text in
            ["1.5", "1e3", "abc", "", "%", "a%", "1,2,3", "10-20%", "31.1.2011", "10.0.0.1", ",", "1,"]
        {
            assert_eq!(Spelling::of(text.as_bytes()), None, "{text}");
        }
    }
}
