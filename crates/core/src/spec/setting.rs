//! Value types of job keys: parsing, writing and help.

use std::time::Duration;
use toml::Value;

/// The type of a job key.
pub trait Setting: Sized {
    /// The accepted values, for help and error messages: `a whole number`, or the list of names.
    fn expects() -> String;

    /// Allowed names and their descriptions, for enumerations.
    fn choices() -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Whether it is a table with user-defined keys.
    fn is_table() -> bool {
        false
    }

    /// Whether it is a list of strings.
    fn is_list() -> bool {
        false
    }

    fn read(value: &Value) -> Result<Self, String>;

    /// None if it is not set.
    fn show(&self) -> Option<Value>;
}

fn mismatch<T: Setting>(value: &Value) -> String {
    format!("expected {}, got {}", T::expects(), brief(value))
}

/// A value for error messages.
pub fn brief(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".into(),
        other => other.to_string(),
    }
}

impl Setting for bool {
    fn expects() -> String {
        "true or false".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        Some(Value::Boolean(*self))
    }
}

impl Setting for u64 {
    fn expects() -> String {
        "a whole number, 0 or more".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_integer().and_then(|n| u64::try_from(n).ok()).ok_or_else(|| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        Some(Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX)))
    }
}

impl Setting for usize {
    fn expects() -> String {
        u64::expects()
    }
    fn read(value: &Value) -> Result<Self, String> {
        u64::read(value)?.try_into().map_err(|_| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        (*self as u64).show()
    }
}

impl Setting for f64 {
    fn expects() -> String {
        "a number".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        number.filter(|n| n.is_finite()).ok_or_else(|| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        Some(Value::Float(*self))
    }
}

impl Setting for String {
    fn expects() -> String {
        "a text".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        Some(Value::String(self.clone()))
    }
}

impl Setting for Vec<String> {
    fn expects() -> String {
        "a list of texts".into()
    }
    fn is_list() -> bool {
        true
    }
    fn read(value: &Value) -> Result<Self, String> {
        let items = value.as_array().ok_or_else(|| mismatch::<Self>(value))?;
        items.iter().map(|item| String::read(item).map_err(|_| mismatch::<Self>(value))).collect()
    }
    fn show(&self) -> Option<Value> {
        Some(Value::Array(self.iter().map(|item| Value::String(item.clone())).collect()))
    }
}

impl<T: Setting> Setting for Option<T> {
    fn expects() -> String {
        T::expects()
    }
    fn choices() -> &'static [(&'static str, &'static str)] {
        T::choices()
    }
    fn read(value: &Value) -> Result<Self, String> {
        T::read(value).map(Some)
    }
    fn show(&self) -> Option<Value> {
        self.as_ref().and_then(T::show)
    }
}

/// Written `50us`, `500ms`, `30s`, `10m` or `2h`, in whole microseconds.
impl Setting for Duration {
    fn expects() -> String {
        "a time such as \"50us\", \"500ms\", \"30s\", \"10m\" or \"2h\"".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        parse_quantity(value, &[("us", 1e-6), ("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)])
            .map(|seconds| (seconds * 1e6).round())
            .filter(|microseconds| *microseconds < 9e18)
            .map(|microseconds| Duration::from_micros(microseconds as u64))
            .ok_or_else(|| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        let milliseconds = self.as_millis();
        let text = match milliseconds {
            _ if !self.subsec_micros().is_multiple_of(1000) => format!("{}us", self.as_micros()),
            0 => "0s".into(),
            ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
            ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
            ms => format!("{ms}ms"),
        };
        Some(Value::String(text))
    }
}

/// An amount of memory, written `64MiB` or `2GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Setting for Bytes {
    fn expects() -> String {
        "a size such as \"64MiB\" or \"2GiB\"".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        const KIB: f64 = 1024.0;
        let units = [("GiB", KIB * KIB * KIB), ("MiB", KIB * KIB), ("KiB", KIB), ("B", 1.0)];
        parse_quantity(value, &units)
            .filter(|bytes| (0.0..9e15).contains(bytes))
            .map(|bytes| Bytes(bytes as u64))
            .ok_or_else(|| mismatch::<Self>(value))
    }
    fn show(&self) -> Option<Value> {
        let text = match self.0 {
            n if n > 0 && n % (1 << 30) == 0 => format!("{}GiB", n >> 30),
            n if n > 0 && n % (1 << 20) == 0 => format!("{}MiB", n >> 20),
            n if n > 0 && n % (1 << 10) == 0 => format!("{}KiB", n >> 10),
            n => format!("{n}B"),
        };
        Some(Value::String(text))
    }
}

/// Parses a number with a unit, such as `30s`; the longest matching unit applies.
fn parse_quantity(value: &Value, units: &[(&str, f64)]) -> Option<f64> {
    let text = value.as_str()?.trim();
    let (unit, factor) =
        units.iter().filter(|(unit, _)| text.ends_with(unit)).max_by_key(|(unit, _)| unit.len())?;
    let number: f64 = text[..text.len() - unit.len()].trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// A value, or `auto` for a choice made at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    Auto,
    Is(T),
}

impl<T: Copy> Auto<T> {
    /// The explicit value, or else `chosen`.
    pub fn or(self, chosen: T) -> T {
        match self {
            Auto::Auto => chosen,
            Auto::Is(value) => value,
        }
    }
}

impl<T: Setting> Setting for Auto<T> {
    fn expects() -> String {
        format!("\"auto\" or {}", T::expects())
    }
    fn read(value: &Value) -> Result<Self, String> {
        match value.as_str() {
            Some("auto") => Ok(Auto::Auto),
            _ => T::read(value).map(Auto::Is).map_err(|_| mismatch::<Self>(value)),
        }
    }
    fn show(&self) -> Option<Value> {
        match self {
            Auto::Auto => Some(Value::String("auto".into())),
            Auto::Is(value) => value.show(),
        }
    }
}

/// A column by name or by index; a negative index counts from the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnRef {
    Name(String),
    Index(i64),
}

impl Setting for ColumnRef {
    fn expects() -> String {
        "a column's name or number".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(name) => Ok(ColumnRef::Name(name.clone())),
            Value::Integer(index) => Ok(ColumnRef::Index(*index)),
            other => Err(mismatch::<Self>(other)),
        }
    }
    fn show(&self) -> Option<Value> {
        Some(match self {
            ColumnRef::Name(name) => Value::String(name.clone()),
            ColumnRef::Index(index) => Value::Integer(*index),
        })
    }
}

/// The validation rows.
#[derive(Clone, Debug, PartialEq)]
pub enum HeldOut {
    /// A share of the rows, drawn by seed.
    Share(f64),
    /// All rows of another source.
    Source(String),
}

impl Setting for HeldOut {
    fn expects() -> String {
        "a share such as 0.2, or another source".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(source) => Ok(HeldOut::Source(source.clone())),
            number => f64::read(number).map(HeldOut::Share).map_err(|_| mismatch::<Self>(value)),
        }
    }
    fn show(&self) -> Option<Value> {
        match self {
            HeldOut::Share(share) => share.show(),
            HeldOut::Source(source) => source.show(),
        }
    }
}

/// An enumeration with a documented variant per name.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            /// The name used in a job.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }

        impl $crate::spec::setting::Setting for $name {
            fn expects() -> String {
                format!("one of {}", [$($text,)+].join(", "))
            }
            fn choices() -> &'static [(&'static str, &'static str)] {
                const CHOICES: &[(&str, &str)] = &[$(($text, concat!($($doc),+).trim_ascii()),)+];
                CHOICES
            }
            fn read(value: &toml::Value) -> Result<Self, String> {
                let text = value.as_str().ok_or_else(|| {
                    format!("expected {}, got {}", Self::expects(), $crate::spec::setting::brief(value))
                })?;
                match text {
                    $($text => Ok($name::$variant),)+
                    other => Err($crate::spec::nearest::unknown("value", other, [$($text,)+].into_iter())),
                }
            }
            fn show(&self) -> Option<toml::Value> {
                Some(toml::Value::String(self.name().into()))
            }
        }
    };
}
pub(crate) use choice;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_written_as_they_are_read() {
        for text in ["500ms", "30s", "10m", "2h", "0s"] {
            let value = Value::String(text.into());
            assert_eq!(Duration::read(&value).unwrap().show(), Some(value));
        }
        for text in ["64MiB", "2GiB", "1KiB", "7B"] {
            let value = Value::String(text.into());
            assert_eq!(Bytes::read(&value).unwrap().show(), Some(value));
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for text in ["", "s", "-3s", "nan s", "1e400s", "5 parsecs"] {
            assert!(Duration::read(&Value::String(text.into())).is_err(), "{text}");
        }
        assert!(u64::read(&Value::Integer(-1)).unwrap_err().contains("0 or more"));
        assert!(f64::read(&Value::Float(f64::NAN)).is_err());
    }
}
