//! Presets: systems of the literature as settings of the dials.

use serde::Serialize;

mod allreduce;
mod gossip;
mod parameter_server;

/// A named combination of dials.
#[derive(Clone, Debug, Serialize)]
pub struct Preset {
    /// What the user types.
    pub name: &'static str,
    /// The system or paper it comes from.
    pub system: &'static str,
    /// What it sets: key and value.
    pub dials: &'static [(&'static str, &'static str)],
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// When to use it.
    pub when: &'static str,
    /// What that system has and Thalweg does not have yet.
    pub missing: &'static [&'static str],
}

impl Preset {
    /// What it sets, as values of a job.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, toml::Value)> {
        let value = |text: &str| text.parse().map_or_else(|_| text.into(), toml::Value::Integer);
        self.dials.iter().map(move |(key, text)| (*key, value(text)))
    }
}

/// All presets, family by family.
pub fn all() -> impl Iterator<Item = &'static Preset> + Clone {
    [allreduce::PRESETS, parameter_server::PRESETS, gossip::PRESETS].into_iter().flatten()
}

/// The preset of that name.
pub fn find(name: &str) -> Option<&'static Preset> {
    all().find(|preset| preset.name == name)
}
