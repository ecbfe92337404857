//! The job: all settings, their defaults and the rules between them.
//!
//! A job is read in layers (defaults, preset, file, command line). Values and the rules between keys are checked here;
//! the rules of strategies are passed in ([`Job::resolve_with`]), as only the training layer knows the strategies.

use crate::error::{Error, Result};
use section::{Key, Section};
use serde::Serialize;
use setting::{Auto, HeldOut, Setting as _};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use toml::Value;

pub mod bucket;
pub mod clip;
pub mod data;
pub mod delimiter;
pub mod difference;
pub mod engine;
pub mod ensemble;
pub mod factors;
pub mod fault;
pub mod gossip;
pub mod inject;
pub mod layers;
pub mod links;
pub mod merge;
pub mod mitigation;
pub mod model;
pub mod nearest;
pub mod neighbours;
pub mod optimizer;
pub mod paths;
pub mod preset;
pub mod schedule;
pub mod scheduling;
pub mod section;
pub mod servers;
pub mod setting;
pub mod strategy;
pub mod train;
pub mod tree;

pub use layers::{JobLayers, Origin};
pub use preset::Preset;

/// Version of the job format; a job may contain `format = 1`.
pub const FORMAT: i64 = 1;

/// The top-level key that names the run folder.
pub const NAME: &str = "name";

/// The top-level key of a file that states every value of its job: they apply even if its preset has changed since.
pub const RESOLVED: &str = "resolved";

macro_rules! job {
    ($($field:ident: $type:ty,)+) => {
        /// A job with all defaults filled in.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct JobSpec {
            $(#[doc = concat!("`[", stringify!($field), "]`.")] pub $field: $type,)+
        }

        impl JobSpec {
            /// Every key a job can have, section by section.
            pub fn keys() -> Vec<Key> {
                let mut keys = Vec::new();
                $(keys.extend(<$type>::keys());)+
                keys
            }

            /// Names and descriptions of the sections.
            pub fn sections() -> Vec<(&'static str, &'static str)> {
                vec![$((<$type>::NAME, <$type>::ABOUT),)+]
            }

            fn read(layers: &JobLayers, errors: &mut Vec<String>) -> JobSpec {
                JobSpec { $($field: <$type as Section>::read(layers, errors),)+ }
            }

            fn show(&self) -> Vec<(String, Value)> {
                let mut values = Vec::new();
                $(values.extend(self.$field.show());)+
                values
            }
        }
    };
}

job! {
    data: data::DataSpec,
    model: model::ModelSpec,
    train: train::TrainSpec,
    optimizer: optimizer::OptimizerSpec,
    schedule: schedule::ScheduleSpec,
    clip: clip::ClipSpec,
    target: train::TargetSpec,
    strategy: strategy::StrategySpec,
    parallelism: strategy::ParallelismSpec,
    scheduling: scheduling::SchedulingSpec,
    mitigation: mitigation::MitigationSpec,
    exchange: strategy::ExchangeSpec,
    gossip: gossip::GossipSpec,
    merge: merge::MergeSpec,
    neighbours: neighbours::NeighboursSpec,
    tree: tree::TreeSpec,
    servers: servers::ServersSpec,
    ensemble: ensemble::EnsembleSpec,
    fault: fault::FaultSpec,
    engine: engine::EngineSpec,
    stragglers: engine::StragglerSpec,
    network: engine::NetworkSpec,
}

/// A validated job and the origins of its values.
#[derive(Clone, Debug, Default)]
pub struct Job {
    pub spec: JobSpec,
    pub layers: JobLayers,
}

/// One line of `thalweg config`.
#[derive(Clone, Debug, Serialize)]
pub struct Resolved {
    /// `train.global_batch`.
    pub key: String,
    /// None if unset.
    pub value: Option<Value>,
    pub origin: String,
    pub doc: String,
}

impl Job {
    /// Resolves file and command line by the rules of keys alone: its strategy may not exist.
    pub fn parse(layers: JobLayers) -> Result<Job> {
        Job::resolve_with(layers, &|_, _| ())
    }

    /// The same with further rules, those of strategies. The error lists all problems at once.
    pub fn resolve_with(mut layers: JobLayers, rules: &dyn Fn(&JobSpec, &mut Refuse<'_>)) -> Result<Job> {
        let mut errors = Vec::new();
        if let Some((value, origin)) = layers.get("format")
            && value.as_integer() != Some(FORMAT)
        {
            errors.push(format!("{origin}: format {value} is not supported; this is format {FORMAT}"));
        }
        errors.extend(layers.get(NAME).and_then(|(value, origin)| wrong_name(value, origin)));
        if let Some((value, origin)) = layers.get(RESOLVED)
            && !value.is_bool()
        {
            errors.push(format!("{origin}: {RESOLVED}: expected {}, got {value}", bool::expects()));
        }
        let keys = JobSpec::keys();
        let mut known: Vec<&str> = keys.iter().map(|key| key.path.as_str()).collect();
        known.extend(["format", NAME, RESOLVED]);
        keys.iter().filter(|key| key.is_table).for_each(|key| layers.fold(&key.path));
        keys.iter().filter(|key| key.is_list).for_each(|key| layers.split_list(&key.path));
        errors.extend(layers.unknown_keys(&known));
        preset::apply(&mut layers, &mut errors);
        let mut spec = JobSpec::read(&layers, &mut errors);
        train::derive_global_batch(&mut spec, &mut layers, &mut errors);
        check(&spec, &layers, rules, &mut errors);
        if errors.is_empty() {
            return Ok(Job { spec, layers });
        }
        let count = errors.len();
        let text = errors.join("\n  ");
        Err(Error::job(match count {
            1 => text,
            _ => format!("{count} errors in the job:\n  {text}"),
        }))
    }

    /// The values of a job that is not resolved yet; errors are reported when it is.
    pub fn peek(mut layers: JobLayers) -> JobSpec {
        let mut errors = Vec::new();
        preset::apply(&mut layers, &mut errors);
        JobSpec::read(&layers, &mut errors)
    }

    /// Every key with its value and origin.
    pub fn explain(&self) -> Vec<Resolved> {
        let values = self.spec.values();
        JobSpec::keys()
            .into_iter()
            .map(|key| Resolved {
                value: values.iter().find(|(path, _)| *path == key.path).map(|(_, value)| value.clone()),
                origin: self.layers.origin(&key.path).to_string(),
                doc: key.doc,
                key: key.path,
            })
            .collect()
    }
}

impl JobSpec {
    /// All set values by section. The preset is included only if every setting that it fixes still has its value. Of the keys that
    /// define the network, only the one that applies.
    pub fn values(&self) -> Vec<(String, Value)> {
        let mut values = self.show();
        let model = self.model.source();
        values.retain(|(path, _)| path == model || !model::ModelSpec::SOURCES.contains(&path.as_str()));
        if let Some(preset) = preset::find(&self.strategy.preset)
            && !preset.describes(&values, self.engine.workers)
        {
            values.retain(|(path, _)| path != "strategy.preset");
        }
        values
    }

    /// A job file that resolves to this job.
    pub fn to_toml(&self) -> String {
        as_toml(&self.values())
    }

    /// The settings that decide the result, as a job file: all of them or, if the result is reproducible, those that do
    /// not concern the workers.
    pub fn recipe(&self) -> String {
        let mut values = self.values();
        if self.train.reproducible {
            let execution = ["engine.", "fault.", "strategy.", "train.local_batch"];
            values.retain(|(path, _)| !execution.iter().any(|group| path.starts_with(group)));
        }
        as_toml(&values)
    }

    /// A digest that ranks compare to check that they run the same job. Paths are left out, since they may differ between
    /// hosts; file contents are compared separately.
    pub fn hash(&self) -> [u8; 32] {
        let mut values = self.values();
        values.retain(|(key, _)| key != paths::CACHE);
        for (key, value) in &mut values {
            if paths::is_path(key, value) {
                *value = "a path".into();
            }
        }
        Sha256::digest(as_toml(&values)).into()
    }
}

/// An error about a name that is not valid for a folder.
fn wrong_name(value: &Value, origin: &Origin) -> Option<String> {
    let usable = |name: &&str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    let usable = value.as_str().filter(usable).is_some();
    (!usable).then(|| {
        format!("{origin}: {NAME}: expected a name for the run folder, such as \"iris\", got {value}")
    })
}

fn as_toml(values: &[(String, Value)]) -> String {
    let mut text = format!("format = {FORMAT}\n{RESOLVED} = true\n");
    let mut section = "";
    for (path, value) in values {
        let (group, name) = path.rsplit_once('.').unwrap_or(("", path));
        if group != section {
            let _ = write!(text, "\n[{group}]\n");
            section = group;
        }
        let _ = writeln!(text, "{name} = {value}");
    }
    text
}

/// Takes the key at fault and the reason; adds the origin of its value.
pub type Refuse<'a> = dyn FnMut(&str, String) + 'a;

/// Checks single values and the rules between them.
fn check(
    spec: &JobSpec,
    layers: &JobLayers,
    rules: &dyn Fn(&JobSpec, &mut Refuse<'_>),
    errors: &mut Vec<String>,
) {
    let mut refuse = |key: &str, reason: String| {
        errors.push(format!("{}: {key}: {reason}", layers.origin(key)));
    };
    let workers = spec.engine.workers;
    if workers == 0 || workers > engine::MAX_WORKERS {
        refuse("engine.workers", format!("must be between 1 and {}, is {workers}", engine::MAX_WORKERS));
    }
    if spec.train.global_batch == 0 {
        refuse("train.global_batch", "must be at least 1".into());
    }
    if !(spec.train.sample > 0.0 && spec.train.sample <= 1.0) {
        refuse("train.sample", format!("must be above 0 and at most 1, is {}", spec.train.sample));
    }
    if spec.train.local_batch == Some(0) {
        refuse("train.local_batch", "must be at least 1".into());
    }
    if spec.train.epochs == 0 {
        refuse("train.epochs", "must be at least 1".into());
    }
    if spec.train.max_steps == Some(0) {
        refuse("train.max_steps", "must be at least 1".into());
    }
    if spec.train.evaluate_every == Some(0) {
        refuse("train.evaluate_every", "must be at least 1".into());
    }
    if spec.train.accumulate == 0 {
        refuse("train.accumulate", "must be at least 1".into());
    }
    for (key, value) in [("train.l1", spec.train.l1), ("train.l2", spec.train.l2)] {
        if !(value >= 0.0 && (value as f32).is_finite()) {
            refuse(key, format!("must be at least 0 and finite in single precision, is {value}"));
        }
    }
    if spec.data.window == 0 {
        refuse("data.window", "must be at least 1".into());
    }
    if let Some(HeldOut::Share(share)) = spec.data.validation
        && !(0.0..1.0).contains(&share)
    {
        refuse("data.validation", format!("must be at least 0 and below 1, is {share}"));
    }
    if let Auto::Is(degree) = spec.parallelism.data
        && degree != workers
    {
        refuse(
            "strategy.parallelism.data",
            format!("is {degree}, but there are {workers} workers; set engine.workers or drop this key"),
        );
    }
    paths::check(spec, &mut refuse);
    strategy::check(spec, &mut refuse);
    scheduling::check(spec, &mut refuse);
    mitigation::check(spec, &mut refuse);
    gossip::check(spec, &mut refuse);
    ensemble::check(spec, &mut refuse);
    merge::check(spec, &mut refuse);
    neighbours::check(spec, &mut refuse);
    tree::check(spec, &mut refuse);
    servers::check(spec, &mut refuse);
    engine::check(spec, &mut refuse);
    rules(spec, &mut refuse);
    let deadlines =
        [("step_deadline", spec.fault.step_deadline), ("prepare_deadline", spec.fault.prepare_deadline)];
    for (key, deadline) in deadlines {
        if deadline.is_zero() {
            refuse(&format!("fault.{key}"), "must be above 0".into());
        }
    }
    if let Auto::Is(deadline) = spec.fault.join_deadline
        && deadline.is_zero()
    {
        refuse("fault.join_deadline", "must be above 0".into());
    }
    if spec.fault.join_piece == Auto::Is(setting::Bytes(0)) {
        refuse("fault.join_piece", "must be above 0".into());
    }
    if spec.fault.min_workers == 0 {
        refuse("fault.min_workers", "must be at least 1".into());
    }
    if let Auto::Is(max) = spec.fault.max_workers
        && max < workers.max(spec.fault.min_workers)
    {
        refuse("fault.max_workers", format!("is {max}, less than engine.workers or fault.min_workers"));
    }
    if spec.fault.checkpoint_keep == 0 {
        refuse("fault.checkpoint_keep", "must be at least 1".into());
    }
    for (key, value) in [("accuracy", spec.target.accuracy), ("loss", spec.target.loss)] {
        if value.is_some_and(|value| value < 0.0 || (key == "accuracy" && value > 1.0)) {
            refuse(&format!("train.target.{key}"), "is out of range".into());
        }
    }
    spec.model.check(layers, errors);
    spec.optimizer.check(layers, errors);
    spec.schedule.check(spec, layers, errors);
    spec.clip.check(layers, errors);
}
