//! Presets: systems of the literature as combinations of settings.

use super::strategy::{FAMILIES, OF_SERVERS};
use super::{JobLayers, JobSpec, Origin};
use toml::Value;

mod allreduce;
mod apply;
mod dial;
mod elastic_averaging;
mod ensemble;
mod gossip;
mod local_training;
mod neighbours;
mod parameter_server;

pub(super) use apply::apply;
pub use apply::prefer_optimizer;
pub(super) use dial::same;
pub use dial::{Dial, DialKind, DialValue, Rule};

/// A named combination of settings.
#[derive(Clone, Debug)]
pub struct Preset {
    pub name: &'static str,
    /// The system or paper it reproduces.
    pub system: &'static str,
    /// The version whose defaults are meant, if the system is software.
    pub version: Option<&'static str>,
    /// A preset that sets an optimizer sets its kind and its rate, as defaults.
    pub dials: &'static [Dial],
    pub summary: &'static str,
    /// When to use it.
    pub when: &'static str,
    /// What of that system is reproduced: an element, and the key that sets it or the test that shows it.
    pub covers: &'static [(&'static str, &'static str)],
    /// Features of that system that Thalweg lacks.
    pub missing: &'static [&'static str],
}

/// The element of [`Preset::covers`] that every complete preset has beside its fixed dials.
pub const UPDATE_RULE: &str = "update rule";

impl Preset {
    /// Keys and values in a job with that many workers.
    pub fn values(&self, workers: usize) -> impl Iterator<Item = (&'static Dial, Value)> {
        self.dials.iter().map(move |dial| (dial, dial.value.with(workers)))
    }

    /// Whether a job still has every fixed value of the preset.
    pub(super) fn describes(&self, values: &[(String, Value)], workers: usize) -> bool {
        let differs = |dial: &Dial, value: &Value| {
            values.iter().any(|(path, other)| path == dial.key && !same(other, value))
        };
        !self.values(workers).any(|(dial, value)| dial.is_fixed() && differs(dial, &value))
    }

    /// Whether `covers` has the update rule and a line for every fixed dial: only then can nothing be missing.
    pub fn covers_all(&self) -> bool {
        let has_dial = |dial: &&Dial| self.covers.iter().any(|(_, by)| *by == dial.key);
        self.covers.iter().any(|(element, _)| *element == UPDATE_RULE)
            && self.dials.iter().filter(|dial| dial.is_fixed()).all(|dial| has_dial(&dial))
    }
}

/// For strategies that cannot sum batch statistics of all workers inside a pass.
const OWN_ROWS: Dial = Dial::default("model.batchnorm", DialValue::Text("local"));

/// What [`OWN_ROWS`] covers.
const AVERAGED_STATISTICS: (&str, &str) = (
    "batch normalisation by each worker's own rows, with the mean of all running statistics",
    "model.batchnorm",
);

/// For strategies with a server.
const LOSS_OF_A_SERVER: &str = "replicated servers: the loss of the server ends the job, which names it";

/// All presets, family by family.
pub fn all() -> impl Iterator<Item = &'static Preset> + Clone {
    [
        allreduce::PRESETS,
        parameter_server::PRESETS,
        elastic_averaging::PRESETS,
        gossip::PRESETS,
        neighbours::PRESETS,
        local_training::PRESETS,
        ensemble::PRESETS,
    ]
    .into_iter()
    .flatten()
}

pub fn find(name: &str) -> Option<&'static Preset> {
    all().find(|preset| preset.name == name)
}

/// Removes the settings of both presets from the file's layer if a flag replaces the preset `before` of a resolved job:
/// the file contains every setting of its preset, which would conflict with the new one, and every default. Values that
/// a preset lets the job choose are kept if neither `before` nor the defaults gave them, except for those of a family of
/// strategies. The optimizer stays that of the file: its state is of no use to another. Other flags still apply.
pub fn drop_replaced_dials(layers: &mut JobLayers, before: Option<&str>) {
    let selected = layers.get("strategy.preset").and_then(|(name, _)| name.as_str()).map(String::from);
    if selected.as_deref() == before {
        return;
    }
    let is_of_family = |key: &str| {
        OF_SERVERS.contains(&key) || FAMILIES.iter().any(|family| key.starts_with(&format!("{family}.")))
    };
    layers.retain(|key, origin| !(is_of_family(key) && matches!(origin, Origin::File { .. })));
    let before = before.and_then(find);
    let presets = [before, selected.as_deref().and_then(find)];
    let dials = presets.into_iter().flatten().flat_map(|preset| preset.dials);
    for dial in dials.filter(|dial| !apply::is_of_optimizer(dial.key)) {
        if matches!(layers.origin(dial.key), Origin::File { .. })
            && (dial.is_fixed() || !is_chosen(layers, dial.key, before))
        {
            layers.remove(dial.key);
        }
    }
}

/// Whether the job itself chose the value of a key: it is neither that of its preset nor the default. What a rule gave
/// depends on a number of workers that a flag may have replaced, so it counts as the preset's.
fn is_chosen(layers: &JobLayers, key: &str, preset: Option<&Preset>) -> bool {
    let Some((value, _)) = layers.get(key) else { return false };
    match preset.and_then(|preset| preset.dials.iter().find(|dial| dial.key == key)) {
        Some(dial) => dial.value.formula().is_none() && !same(value, &dial.value.with(1)),
        None => {
            let key = JobSpec::keys().into_iter().find(|other| other.path == key);
            !key.and_then(|key| key.default).is_some_and(|default| same(value, &default))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    /// The file of a resolved job with that preset.
    fn resolved(preset: &str, set: &[&str]) -> String {
        let mut layers = JobLayers::default();
        layers.add_assignment(&format!("strategy.preset={preset}")).unwrap();
        set.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
        Job::parse(layers).unwrap().spec.to_toml()
    }

    fn replaced(file: &str, before: &str, flags: &[&str]) -> crate::Result<JobSpec> {
        let mut layers = JobLayers::default();
        layers.add_file("job.toml", file).unwrap();
        flags.iter().for_each(|flag| layers.add_assignment(flag).unwrap());
        drop_replaced_dials(&mut layers, Some(before));
        Ok(Job::parse(layers)?.spec)
    }

    #[test]
    fn any_preset_can_replace_any_other_in_a_resolved_job() {
        for before in all() {
            let file = resolved(before.name, &[]);
            for after in all() {
                let spec = replaced(&file, before.name, &[&format!("strategy.preset={}", after.name)])
                    .unwrap_or_else(|error| panic!("{}: {error}", before.name));
                assert_eq!(spec.strategy.preset, after.name);
                let values = spec.values();
                let dials = after.values(spec.engine.workers);
                for (dial, value) in dials.filter(|(dial, _)| !apply::is_of_optimizer(dial.key)) {
                    let found = values.iter().find(|(other, _)| *other == dial.key).map(|(_, is)| is);
                    assert_eq!(found, Some(&value), "{}: {}", after.name, dial.key);
                }
            }
        }
    }

    #[test]
    fn settings_of_a_replaced_family_are_dropped_and_those_of_the_job_stay() {
        let set = ["strategy.gossip.probability=0.5", "train.optimizer.kind=sgd"];
        let file = resolved("gosgd", &set);
        let spec = replaced(&file, "gosgd", &["strategy.preset=allreduce"]).unwrap();
        assert_eq!((spec.gossip.probability, spec.optimizer.kind.name()), (0.1, "sgd"));
        assert_eq!(replaced(&file, "gosgd", &["strategy.preset=gosgd"]).unwrap().gossip.probability, 0.5);
    }

    #[test]
    fn the_optimizer_of_a_resolved_job_stays() {
        let optimizer = |before: &str, after: &str| {
            let spec = replaced(&resolved(before, &[]), before, &[&format!("strategy.preset={after}")]);
            spec.unwrap().optimizer.kind.name()
        };
        assert_eq!(optimizer("allreduce", "diloco"), "adam");
        assert_eq!(optimizer("diloco", "allreduce"), "adamw");
    }

    #[test]
    fn a_flag_that_conflicts_with_the_preset_is_refused() {
        let flags = ["strategy.preset=single", "engine.workers=3"];
        let error = replaced(&resolved("allreduce", &[]), "allreduce", &flags).unwrap_err();
        assert!(error.message.contains("engine.workers = 3 conflicts with preset `single`"), "{error}");
    }
}
