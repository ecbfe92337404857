//! From the preset that a job names to values in its layers.

use super::{Preset, all, find, same};
use crate::spec::engine::EngineSpec;
use crate::spec::{JobLayers, Origin, nearest};
use toml::Value;

const PRESET: &str = "strategy.preset";
const WORKERS: &str = "engine.workers";
const OPTIMIZER: &str = "train.optimizer.";
const OPTIMIZER_KIND: &str = "train.optimizer.kind";

/// Whether a key belongs to the optimizer.
pub(super) fn is_of_optimizer(key: &str) -> bool {
    key.starts_with(OPTIMIZER)
}

/// Adds the values of an explicit preset. In a resolved file that names its preset it is a label: the values of the file
/// apply, whatever became of the preset since.
pub(in crate::spec) fn apply(layers: &mut JobLayers, errors: &mut Vec<String>) {
    let Some((Value::String(name), origin)) = layers.get(PRESET) else { return };
    match find(name) {
        Some(preset) => preset.apply(layers, errors),
        None if labelling_file(layers).is_some() => layers.remove(PRESET),
        None => {
            let names = all().map(|preset| preset.name);
            errors.push(format!("{origin}: {PRESET}: {}", nearest::unknown("preset", name, names)));
        }
    }
}

/// The resolved file that names the job's preset.
fn labelling_file(layers: &JobLayers) -> Option<String> {
    let resolved = layers.resolved_file()?;
    matches!(layers.origin(PRESET), Origin::File { path, .. } if path == resolved).then(|| resolved.into())
}

impl Preset {
    /// Adds its values where the job has none. Another explicit value of a fixed dial is refused; other rules then see the
    /// preset's, so that no conflict is reported twice.
    pub(super) fn apply(&self, layers: &mut JobLayers, errors: &mut Vec<String>) {
        let (name, file, workers) = (self.name, labelling_file(layers), self.workers(layers));
        let has_optimizer = layers.get(OPTIMIZER_KIND).is_some();
        for (dial, value) in self.values(workers) {
            let key = dial.key;
            match layers.get(key) {
                Some((_, Origin::File { path, .. })) if Some(path) == file.as_ref() => continue,
                Some((other, _)) if !dial.is_fixed() || same(other, &value) => continue,
                Some((other, origin)) => errors.push(format!(
                    "{origin}: {key} = {other} conflicts with preset `{name}`, which sets {value}; drop one of the two"
                )),
                // What the file does not have keeps its default, unless a flag unset it.
                None if file.is_some() && layers.origin(key) == Origin::Default => continue,
                // The hyperparameters of one optimizer mean nothing to another.
                None if is_of_optimizer(key) && has_optimizer => continue,
                None => {}
            }
            let formula = dial.value.formula();
            layers.set(key, value, Origin::Preset { name: name.into(), formula });
        }
    }

    /// n of its rules. A value that is no number is reported elsewhere.
    fn workers(&self, layers: &JobLayers) -> usize {
        let given = layers.get(WORKERS).and_then(|(value, _)| value.as_integer());
        let own = || self.dials.iter().find(|dial| dial.key == WORKERS)?.value.with(1).as_integer();
        let workers = given.or_else(own).and_then(|number| usize::try_from(number).ok());
        workers.unwrap_or_else(|| EngineSpec::default().workers)
    }

    /// Lets its optimizer, if it sets one, replace that of the job file. Returns a notice if there was one.
    fn replace_optimizer(&self, layers: &mut JobLayers) -> Option<String> {
        if labelling_file(layers).is_some() {
            return None;
        }
        let kind = self.dials.iter().find(|dial| dial.key == OPTIMIZER_KIND)?;
        let in_file = |(key, _, origin): &(&str, &Value, &Origin)| {
            is_of_optimizer(key) && matches!(origin, Origin::File { .. })
        };
        let replaced: Vec<String> = layers.iter().filter(in_file).map(|(key, ..)| key.to_string()).collect();
        let origin = layers.origin(replaced.first()?);
        replaced.iter().for_each(|key| layers.remove(key));
        Some(format!(
            "preset `{}` sets the optimizer ({}); that of the job ({origin}) is not used",
            self.name, kind.value
        ))
    }
}

/// For comparisons of strategies: the optimizer that the job's preset sets, if any, replaces that of the job file. Returns
/// a notice if it did. Flags still apply.
pub fn prefer_optimizer(layers: &mut JobLayers) -> Option<String> {
    let (name, _) = layers.get(PRESET)?;
    find(name.as_str()?)?.replace_optimizer(layers)
}

#[cfg(test)]
mod tests {
    use super::super::{Dial, DialValue, Rule};
    use super::*;
    use crate::Job;

    const TEST: Preset = Preset {
        name: "test",
        system: "",
        version: None,
        dials: &[
            Dial::fixed("strategy.exchange.kind", DialValue::Text("gossip")),
            Dial::fixed("engine.jitter", DialValue::Float(1.0)),
            Dial::default(
                "train.l2",
                DialValue::Rule(Rule { formula: "1 - 1/n", of: |n| 1.0 - 1.0 / n as f64 }),
            ),
            Dial::default("train.epochs", DialValue::Integer(3)),
            Dial::default("train.reproducible", DialValue::Bool(true)),
            Dial::default(OPTIMIZER_KIND, DialValue::Text("adamw")),
            Dial::default("train.optimizer.lr", DialValue::Float(0.4)),
            Dial::default("train.optimizer.beta2", DialValue::Float(0.95)),
        ],
        summary: "",
        when: "",
        covers: &[],
        missing: &[],
    };

    fn layers(file: &str, set: &[&str]) -> JobLayers {
        let mut layers = JobLayers::default();
        layers.add_file("job.toml", file).unwrap();
        set.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
        layers
    }

    /// The job with that preset, and the errors.
    fn applied(mut layers: JobLayers) -> (Job, Vec<String>) {
        let mut errors = Vec::new();
        TEST.apply(&mut layers, &mut errors);
        (Job::parse(layers).unwrap(), errors)
    }

    #[test]
    fn rules_follow_the_workers_and_defaults_yield() {
        let (job, errors) = applied(layers("[engine]\nworkers = 4", &[]));
        assert_eq!((job.spec.train.l2, job.spec.train.epochs, job.spec.train.reproducible), (0.75, 3, true));
        assert_eq!(job.layers.origin("train.l2").to_string(), "preset test, 1 - 1/n");
        assert!(errors.is_empty());
        assert_eq!(applied(layers("", &[])).0.spec.train.l2, 0.5, "of the default workers");
        let (job, errors) = applied(layers("[train]\nl2 = 0.1", &["train.epochs=9", "engine.jitter=1"]));
        assert_eq!((job.spec.train.l2, job.spec.train.epochs, errors.len()), (0.1, 9, 0));
        let (_, errors) = applied(layers("[engine]\njitter = 2.0", &[]));
        assert_eq!(
            errors,
            [
                "job.toml:2: engine.jitter = 2.0 conflicts with preset `test`, which sets 1.0; drop one of the two"
            ]
        );
    }

    #[test]
    fn an_optimizer_is_set_as_a_whole_and_yields_to_that_of_the_job() {
        let optimizer = |file: &str| applied(layers(file, &[])).0.spec.optimizer;
        let set = optimizer("");
        assert_eq!((set.kind.name(), set.lr, set.beta2), ("adamw", 0.4, Some(0.95)));
        let own = optimizer("[train]\noptimizer = { kind = \"sgd\" }");
        assert_eq!((own.kind.name(), own.lr, own.beta2), ("sgd", 1e-3, None));
        let rate = optimizer("[train]\noptimizer = { lr = 0.2 }");
        assert_eq!((rate.kind.name(), rate.lr, rate.beta2), ("adamw", 0.2, Some(0.95)));
    }

    #[test]
    fn a_comparison_replaces_the_optimizer_of_the_file_and_says_so() {
        let mut job =
            layers("[train]\noptimizer = { kind = \"sgd\", lr = 0.3 }", &["train.optimizer.beta1=0.8"]);
        let notice = TEST.replace_optimizer(&mut job).unwrap();
        assert_eq!(
            notice,
            "preset `test` sets the optimizer (adamw); that of the job (job.toml:2) is not used"
        );
        let (job, _) = applied(job);
        let optimizer = &job.spec.optimizer;
        assert_eq!((optimizer.kind.name(), optimizer.lr, optimizer.beta1), ("adamw", 0.4, Some(0.8)));
        assert_eq!(job.layers.origin(OPTIMIZER_KIND).to_string(), "preset test");
        assert_eq!(TEST.replace_optimizer(&mut layers("", &["train.optimizer.lr=0.1"])), None);
    }

    #[test]
    fn a_resolved_file_keeps_its_values_when_its_preset_has_changed() {
        let file = "resolved = true\n[strategy]\npreset = \"test\"\n[strategy.exchange]\nkind = \"none\"\n";
        let of_file = |text: &str, set: &[&str]| {
            let mut errors = Vec::new();
            let mut layers = layers(text, set);
            TEST.apply(&mut layers, &mut errors);
            layers.remove(PRESET);
            (Job::parse(layers).unwrap().spec, errors)
        };
        let (spec, errors) = of_file(file, &[]);
        assert_eq!((spec.exchange.kind.name(), spec.engine.jitter, errors.len()), ("none", 0.0, 0));
        // A flag does not.
        let (_, errors) = of_file(file, &["engine.jitter=2"]);
        assert!(errors[0].contains("engine.jitter = 2 conflicts"), "{errors:?}");
        let (spec, _) = of_file(file, &["engine.jitter="]);
        assert_eq!(spec.engine.jitter, 1.0);
        let (_, errors) = of_file(&file.replace("true", "false"), &[]);
        assert_eq!(errors.len(), 1, "{errors:?}");
        // The preset of a flag is no label of the file.
        let (spec, errors) = of_file(file, &["strategy.preset=test"]);
        assert!(errors[0].contains("conflicts"), "{errors:?}");
        assert_eq!(spec.exchange.kind.name(), "gossip");
    }
}
