//! Presets: systems of the literature as settings of the dials.

use super::{Layers, Origin};
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

/// What a strategy lacks whose jobs end with the first rank that is lost.
const LOSS_OF_A_RANK: &str = "going on after the loss of a rank: the job ends and names it";

/// All presets, family by family.
pub fn all() -> impl Iterator<Item = &'static Preset> + Clone {
    [allreduce::PRESETS, parameter_server::PRESETS, gossip::PRESETS].into_iter().flatten()
}

/// The preset of that name.
pub fn find(name: &str) -> Option<&'static Preset> {
    all().find(|preset| preset.name == name)
}

/// A resolved job says in its file every dial that its preset set. Where a flag asks for another preset than the file
/// did, what either of the two sets is the new one's to say; other flags still count.
pub fn make_way(layers: &mut Layers, before: Option<&str>) {
    let asked = layers.get("strategy.preset").and_then(|(name, _)| name.as_str()).map(String::from);
    if asked.as_deref() == before {
        return;
    }
    let presets = [before, asked.as_deref()].into_iter().flatten().filter_map(find);
    for (key, _) in presets.flat_map(|preset| preset.dials) {
        if matches!(layers.origin(key), Origin::File { .. }) {
            layers.forget(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    /// The file of a resolved job with that preset.
    fn resolved(preset: &str) -> String {
        let mut layers = Layers::default();
        layers.add_assignment(&format!("strategy.preset={preset}")).unwrap();
        Job::resolve(layers).unwrap().spec.to_toml()
    }

    #[test]
    fn presets_whose_jobs_end_with_a_lost_rank_list_that_as_missing() {
        for preset in all() {
            let mut layers = Layers::default();
            layers.add_assignment(&format!("strategy.preset={}", preset.name)).unwrap();
            let spec = Job::resolve(layers).unwrap().spec;
            let ends = spec.ranks() > 1 && !spec.is_elastic();
            assert_eq!(preset.missing.contains(&LOSS_OF_A_RANK), ends, "{}", preset.name);
        }
    }

    #[test]
    fn any_preset_can_follow_any_other_in_a_resolved_job() {
        for before in all() {
            let file = resolved(before.name);
            for after in all() {
                let mut layers = Layers::default();
                layers.add_file("job.toml", &file).unwrap();
                layers.add_assignment(&format!("strategy.preset={}", after.name)).unwrap();
                make_way(&mut layers, Some(before.name));
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
    fn what_a_flag_says_is_still_refused_if_the_preset_says_otherwise() {
        let file = resolved("allreduce");
        let mut layers = Layers::default();
        layers.add_file("job.toml", &file).unwrap();
        layers.add_assignment("strategy.preset=single").unwrap();
        layers.add_assignment("engine.workers=3").unwrap();
        make_way(&mut layers, Some("allreduce"));
        let error = Job::resolve(layers).unwrap_err();
        assert!(error.message.contains("engine.workers = 3 conflicts with preset `single`"), "{error}");
    }
}
