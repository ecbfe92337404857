//! `strategy.exchange.bucket`: the size of gradient buckets.

use super::setting::{Bytes, Setting, brief};
use toml::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketSize {
    /// Chosen from a fixed table by the size of the gradient.
    Auto,
    /// One bucket per tensor.
    Tensor,
    /// A single bucket, sent after the backward pass.
    Whole,
    /// Consecutive tensors are fused until a bucket has this many bytes.
    Bytes(u64),
}

const NAMES: [(&str, BucketSize); 3] =
    [("auto", BucketSize::Auto), ("tensor", BucketSize::Tensor), ("whole", BucketSize::Whole)];

impl Setting for BucketSize {
    fn expects() -> String {
        "\"auto\", \"tensor\", \"whole\" or a size above 0 such as \"4MiB\"".into()
    }
    fn read(value: &Value) -> Result<Self, String> {
        let named = NAMES.iter().find(|(name, _)| value.as_str() == Some(name));
        let sized =
            || Bytes::read(value).ok().filter(|size| size.0 > 0).map(|size| BucketSize::Bytes(size.0));
        named
            .map(|(_, bucket)| *bucket)
            .or_else(sized)
            .ok_or_else(|| format!("expected {}, got {}", BucketSize::expects(), brief(value)))
    }
    fn show(&self) -> Option<Value> {
        match self {
            BucketSize::Bytes(bytes) => Bytes(*bytes).show(),
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
    fn written_values_are_read_back() {
        for text in ["auto", "tensor", "whole", "4MiB", "25MiB", "512KiB", "7B"] {
            let value = Value::String(text.into());
            assert_eq!(BucketSize::read(&value).unwrap().show(), Some(value));
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for value in [Value::String("0B".into()), Value::String("tensors".into()), Value::Integer(4)] {
            assert!(BucketSize::read(&value).unwrap_err().starts_with("expected \"auto\", \"tensor\""));
        }
    }
}
