//! Presets: systems of the literature as combinations of settings.

use super::{JobLayers, Origin};
use serde::Serialize;

mod allreduce;
mod gossip;
mod parameter_server;

/// A named combination of strategy settings.
#[derive(Clone, Debug, Serialize)]
pub struct Preset {
    pub name: &'static str,
    /// The system or paper it reproduces.
    pub system: &'static str,
    /// Keys and values.
    pub dials: &'static [(&'static str, &'static str)],
    pub summary: &'static str,
    /// When to use it.
    pub when: &'static str,
    /// Features of that system that Thalweg lacks.
    pub missing: &'static [&'static str],
}

impl Preset {
    /// Keys and values as TOML.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, toml::Value)> {
        let value = |text: &str| text.parse().map_or_else(|_| text.into(), toml::Value::Integer);
        self.dials.iter().map(move |(key, text)| (*key, value(text)))
    }
}

/// For strategies whose jobs end when a rank is lost.
const LOSS_OF_A_RANK: &str = "recovery from a lost rank: the job ends and names it";

/// All presets, family by family.
pub fn all() -> impl Iterator<Item = &'static Preset> + Clone {
    [allreduce::PRESETS, parameter_server::PRESETS, gossip::PRESETS].into_iter().flatten()
}

pub fn find(name: &str) -> Option<&'static Preset> {
    all().find(|preset| preset.name == name)
}

/// Removes the settings of both presets from the file's layer if a flag replaces the preset `before` of a resolved job:
/// the file contains every setting of its preset, which would conflict with the new one. Other flags still apply.
pub fn drop_replaced_dials(layers: &mut JobLayers, before: Option<&str>) {
    let selected = layers.get("strategy.preset").and_then(|(name, _)| name.as_str()).map(String::from);
    if selected.as_deref() == before {
        return;
    }
    let presets = [before, selected.as_deref()].into_iter().flatten().filter_map(find);
    for (key, _) in presets.flat_map(|preset| preset.dials) {
        if matches!(layers.origin(key), Origin::File { .. }) {
            layers.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    /// The file of a resolved job with that preset.
    fn resolved(preset: &str) -> String {
        let mut layers = JobLayers::default();
        layers.add_assignment(&format!("strategy.preset={preset}")).unwrap();
        Job::resolve(layers).unwrap().spec.to_toml()
    }

    #[test]
    fn presets_without_recovery_list_it_as_missing() {
        for preset in all() {
            let mut layers = JobLayers::default();
            layers.add_assignment(&format!("strategy.preset={}", preset.name)).unwrap();
            let spec = Job::resolve(layers).unwrap().spec;
            let ends = spec.ranks() > 1 && !spec.is_elastic();
            assert_eq!(preset.missing.contains(&LOSS_OF_A_RANK), ends, "{}", preset.name);
        }
    }

    #[test]
    fn any_preset_can_replace_any_other_in_a_resolved_job() {
        for before in all() {
            let file = resolved(before.name);
            for after in all() {
                let mut layers = JobLayers::default();
                layers.add_file("job.toml", &file).unwrap();
                layers.add_assignment(&format!("strategy.preset={}", after.name)).unwrap();
                drop_replaced_dials(&mut layers, Some(before.name));
                let spec =
                    Job::resolve(layers).unwrap_or_else(|error| panic!("{}: {error}", before.name)).spec;
                assert_eq!(spec.strategy.preset, after.name);
                for (key, value) in after.values() {
                    let values = spec.values();
                    assert_eq!(
                        values.iter().find(|(other, _)| *other == key).map(|(_, is)| is),
                        Some(&value)
                    );
                }
            }
        }
    }

    #[test]
    fn a_flag_that_conflicts_with_the_preset_is_refused() {
        let file = resolved("allreduce");
        let mut layers = JobLayers::default();
        layers.add_file("job.toml", &file).unwrap();
        layers.add_assignment("strategy.preset=single").unwrap();
        layers.add_assignment("engine.workers=3").unwrap();
        drop_replaced_dials(&mut layers, Some("allreduce"));
        let error = Job::resolve(layers).unwrap_err();
        assert!(error.message.contains("engine.workers = 3 conflicts with preset `single`"), "{error}");
    }
}
