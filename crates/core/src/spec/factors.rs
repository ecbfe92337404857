//! A number for some of the ranks: `{ 2 = 3.0 }`.

use super::setting::{Setting, brief};
use std::collections::BTreeMap;
use toml::Value;

/// A factor for each of the ranks that are named; the others have 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Factors(BTreeMap<usize, f64>);

impl Factors {
    /// The factor of a rank.
    pub fn of(&self, rank: usize) -> f64 {
        self.0.get(&rank).copied().unwrap_or(1.0)
    }

    /// Those that are named, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f64)> {
        self.0.iter().map(|(rank, factor)| (*rank, *factor))
    }
}

impl Setting for Factors {
    fn expects() -> String {
        "ranks and their factors such as { 2 = 3.0 }".into()
    }

    fn is_table() -> bool {
        true
    }

    fn read(value: &Value) -> Result<Self, String> {
        let wrong = || format!("expected {}, got {}", Self::expects(), brief(value));
        let mut factors = BTreeMap::new();
        for (rank, factor) in value.as_table().ok_or_else(wrong)? {
            let unclear = |what: &str| format!("expected {}, got {rank} = {what}", Self::expects());
            let number = rank.parse().map_err(|_| unclear(&brief(factor)))?;
            factors.insert(number, f64::read(factor).map_err(|_| unclear(&brief(factor)))?);
        }
        Ok(Factors(factors))
    }

    fn show(&self) -> Option<Value> {
        let table = self.0.iter().map(|(rank, factor)| (rank.to_string(), Value::Float(*factor)));
        (!self.0.is_empty()).then(|| Value::Table(table.collect()))
    }
}
