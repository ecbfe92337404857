//! Number formats that are not supported: decimal commas, thousands separators, percent signs, currencies.
//!
//! They are detected so that such a column is an error with advice instead of one category per number.

use super::value::{parse_number, printable};
use super::value_error::ValueError;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFormat {
    /// `1,5`.
    DecimalComma,
    /// `1,234` or `1 234.5`.
    Thousands,
    /// `12%`.
    Percent,
    /// `$12`.
    Currency,
}

impl fmt::Display for NumberFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NumberFormat::DecimalComma => "a decimal comma",
            NumberFormat::Thousands => "separated thousands",
            NumberFormat::Percent => "a percent sign",
            NumberFormat::Currency => "a currency sign",
        })
    }
}

impl NumberFormat {
    /// The unsupported format of a trimmed field; `None` if it is a plain number or no number at all.
    pub(crate) fn of(field: &[u8]) -> Option<NumberFormat> {
        let text = std::str::from_utf8(field).ok()?;
        if parse_number(field).is_some() {
            return None;
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        if let Some(amount) = unsigned.strip_suffix('%') {
            return is_amount(amount.trim_end()).then_some(NumberFormat::Percent);
        }
        if let Some(amount) = unsigned.strip_prefix(CURRENCIES).or_else(|| unsigned.strip_suffix(CURRENCIES))
        {
            return is_amount(amount.trim()).then_some(NumberFormat::Currency);
        }
        separated(unsigned)
    }

    pub(crate) fn advice(self) -> &'static str {
        match self {
            NumberFormat::DecimalComma => {
                "write a point instead, in pandas with read_csv(..., decimal=\",\") and to_csv"
            }
            NumberFormat::Thousands => {
                "remove the separators, in pandas with read_csv(..., thousands=...) and to_csv"
            }
            NumberFormat::Percent | NumberFormat::Currency => "remove the sign",
        }
    }
}

pub(crate) fn unsupported_number(column: &str, field: &[u8], format: NumberFormat) -> ValueError {
    ValueError {
        column: column.into(),
        what: format!("`{}` is a number with {format}, which is not read", printable(field)),
        hint: format!(
            "{}; or set data.categorical = [\"{column}\"] if the values are names, or leave the column out with data.ignore",
            format.advice()
        ),
        input_hint: Some("write it as in 1234.5: digits, and a point before decimals"),
    }
}

const CURRENCIES: [char; 4] = ['$', '€', '£', '¥'];

/// Spaces used as thousands separators: plain, no-break, and narrow no-break.
const SPACES: [char; 3] = [' ', '\u{a0}', '\u{202f}'];

/// An unsigned number in any format.
fn is_amount(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && (parse_number(text.as_bytes()).is_some() || separated(text).is_some())
}

fn separated(text: &str) -> Option<NumberFormat> {
    let thousands = [(',', '.'), ('\'', '.'), ('.', ',')];
    let spaced = SPACES.iter().flat_map(|&space| [(space, ','), (space, '.')]);
    if thousands.into_iter().chain(spaced).any(|(separator, point)| in_groups(text, separator, point)) {
        return Some(NumberFormat::Thousands);
    }
    let (whole, decimals) = text.split_once(',')?;
    (all_digits(whole) && all_digits(decimals) && !decimals.is_empty()).then_some(NumberFormat::DecimalComma)
}

/// Digits in groups of three, optionally with decimals.
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
    fn unsupported_formats_are_detected() {
        for (text, format) in [
            ("1,5", NumberFormat::DecimalComma),
            ("-0,25", NumberFormat::DecimalComma),
            ("1,234", NumberFormat::Thousands),
            ("12,345,678.90", NumberFormat::Thousands),
            ("1.234,56", NumberFormat::Thousands),
            ("1 234", NumberFormat::Thousands),
            ("1'234.5", NumberFormat::Thousands),
            ("1\u{a0}234,5", NumberFormat::Thousands),
            ("12\u{202f}345\u{202f}678", NumberFormat::Thousands),
            ("1\u{202f}200\u{a0}€", NumberFormat::Currency),
            ("12%", NumberFormat::Percent),
            ("-3.5 %", NumberFormat::Percent),
            ("3,5%", NumberFormat::Percent),
            ("$1,200", NumberFormat::Currency),
            ("7 €", NumberFormat::Currency),
        ] {
            assert_eq!(NumberFormat::of(text.as_bytes()), Some(format), "{text}");
        }
    }

    #[test]
    fn plain_numbers_and_names_are_not_matched() {
        for text in
            ["1.5", "1e3", "abc", "", "%", "a%", "1,2,3", "10-20%", "31.1.2011", "10.0.0.1", ",", "1,"]
        {
            assert_eq!(NumberFormat::of(text.as_bytes()), None, "{text}");
        }
    }
}
