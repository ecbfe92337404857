//! `data.delimiter`: the column separator of a table.

use super::setting::{Setting, brief};
use std::fmt;
use std::str::FromStr;
use toml::Value;

/// Parsed and displayed by the same names, so that the output of a tool can be written into a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delimiter {
    /// One character; fields may be quoted.
    Byte(u8),
    /// Any run of spaces and tabs; no quotes.
    Spaces,
}

impl FromStr for Delimiter {
    type Err = String;

    /// Parses `tab`, `space` or the character itself.
    fn from_str(text: &str) -> Result<Delimiter, String> {
        match text.as_bytes() {
            b"tab" | b"\\t" => Ok(Delimiter::Byte(b'\t')),
            b"space" | b" " => Ok(Delimiter::Spaces),
            // Letters and digits belong to fields; quotes and line ends have their own meaning.
            [byte] if byte.is_ascii() && !byte.is_ascii_alphanumeric() && !b"\"\r\n".contains(byte) => {
                Ok(Delimiter::Byte(*byte))
            }
            _ => Err(format!("expected {}, got {text:?}", Delimiter::expects())),
        }
    }
}

impl fmt::Display for Delimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Delimiter::Byte(b'\t') => write!(f, "tab"),
            Delimiter::Byte(byte) => write!(f, "{}", char::from(*byte)),
            Delimiter::Spaces => write!(f, "space"),
        }
    }
}

impl Setting for Delimiter {
    fn expects() -> String {
        "tab, space or one character (no letter, digit or quote)".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        match value.as_str() {
            Some(text) => text.parse(),
            None => Err(format!("expected {}, got {}", Delimiter::expects(), brief(value))),
        }
    }
    fn show(&self) -> Option<Value> {
        Some(Value::String(self.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_delimiters_are_parsed_back() {
        for byte in (0..128u8).filter(|byte| !byte.is_ascii_alphanumeric() && !b"\"\r\n ".contains(byte)) {
            let delimiter = Delimiter::Byte(byte);
            assert_eq!(delimiter.to_string().parse(), Ok(delimiter), "{byte}");
        }
        assert_eq!(Delimiter::Spaces.to_string().parse(), Ok(Delimiter::Spaces));
        for (text, shown) in [("tab", "tab"), ("\\t", "tab"), ("\t", "tab"), (" ", "space"), (";", ";")] {
            assert_eq!(text.parse::<Delimiter>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn invalid_delimiters_are_refused() {
        for text in ["", "comma", ",,", "a", "7", "\"", "\n", "é"] {
            let reason = text.parse::<Delimiter>().unwrap_err();
            assert!(reason.starts_with("expected tab, space or one character"), "{reason}");
        }
        assert!(Delimiter::read(&Value::Integer(9)).unwrap_err().ends_with("got 9"));
    }
}
