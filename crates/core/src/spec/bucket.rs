//! `strategy.exchange.bucket`: the pieces in which a gradient travels.

use super::setting::{Bytes, Setting, brief};
use toml::Value;

/// The pieces in which a gradient travels as messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// From a fixed table, by the size of the gradient.
    Auto,
    /// Every tensor on its own.
    Tensor,
    /// All of it at once, after the pass.
    Whole,
    /// Tensors are put together until they have so many bytes.
    Bytes(u64),
}

const NAMES: [(&str, Bucket); 3] =
    [("auto", Bucket::Auto), ("tensor", Bucket::Tensor), ("whole", Bucket::Whole)];

impl Setting for Bucket {
    fn expects() -> String {
        "\"auto\", \"tensor\", \"whole\" or a size above 0 such as \"4MiB\"".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        let named = NAMES.iter().find(|(name, _)| value.as_str() == Some(name));
        let sized = || Bytes::read(value).ok().filter(|size| size.0 > 0).map(|size| Bucket::Bytes(size.0));
        named
            .map(|(_, bucket)| *bucket)
            .or_else(sized)
            .ok_or_else(|| format!("expected {}, got {}", Bucket::expects(), brief(value)))
    }
    fn show(&self) -> Option<Value> {
        match self {
            Bucket::Bytes(bytes) => Bytes(*bytes).show(),
            named => {
                let (name, _) = NAMES.iter().find(|(_, bucket)| bucket == named)?;
                Some(Value::String((*name).into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_read() {
        for text in ["auto", "tensor", "whole", "4MiB", "25MiB", "512KiB", "7B"] {
            let value = Value::String(text.into());
            assert_eq!(Bucket::read(&value).unwrap().show(), Some(value));
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_was_expected() {
        for value in [Value::String("0B".into()), Value::String("tensors".into()), Value::Integer(4)] {
            assert!(Bucket::read(&value).unwrap_err().starts_with("expected \"auto\", \"tensor\""));
        }
    }
}
