//! A factor for some ranks: `{ 2 = 3.0 }`.

use super::setting::{Setting, brief};
use std::collections::BTreeMap;
use toml::Value;

/// Factors by rank; 1 for ranks that are not listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankFactors(BTreeMap<usize, f64>);

impl RankFactors {
    pub fn of(&self, rank: usize) -> f64 {
        self.0.get(&rank).copied().unwrap_or(1.0)
    }

    /// The listed ranks in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f64)> {
        self.0.iter().map(|(rank, factor)| (*rank, *factor))
    }
}

impl Setting for RankFactors {
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
        Ok(RankFactors(factors))
    }

    fn show(&self) -> Option<Value> {
        let table = self.0.iter().map(|(rank, factor)| (rank.to_string(), Value::Float(*factor)));
        (!self.0.is_empty()).then(|| Value::Table(table.collect()))
    }
}
