//! The job: every dial explicit, every default in one place, illegal combinations refused with the reason.
//!
//! A job is read in layers (defaults, preset, file, command line) and validated once, here. After that the rest of
//! the system trusts it.

use crate::error::{Error, Result};
use section::{Key, Section};
use serde::Serialize;
use setting::{Auto, Held};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use toml::Value;

pub mod bucket;
pub mod clip;
pub mod data;
pub mod delimiter;
pub mod difference;
pub mod engine;
pub mod factors;
pub mod fault;
pub mod inject;
pub mod layers;
pub mod links;
pub mod model;
pub mod nearest;
pub mod optimizer;
pub mod paths;
pub mod preset;
mod reproducible;
pub mod schedule;
pub mod section;
pub mod setting;
pub mod strategy;
pub mod train;

pub use layers::{Layers, Origin};
pub use preset::Preset;

/// Version of the job format; a job may say `format = 1`.
pub const FORMAT: i64 = 1;

/// The key by which a job may name its runs, at the top beside `format`.
pub const NAME: &str = "name";

macro_rules! job {
    ($($field:ident: $type:ty,)+) => {
        /// A job with every value filled in.
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

            /// Every section and what it is about.
            pub fn sections() -> Vec<(&'static str, &'static str)> {
                vec![$((<$type>::NAME, <$type>::ABOUT),)+]
            }

            fn read(layers: &Layers, complaints: &mut Vec<String>) -> JobSpec {
                JobSpec { $($field: <$type as Section>::read(layers, complaints),)+ }
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
    scheduling: strategy::SchedulingSpec,
    exchange: strategy::ExchangeSpec,
    fault: fault::FaultSpec,
    engine: engine::EngineSpec,
    network: engine::NetworkSpec,
}

/// A validated job and where its values came from.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// The values.
    pub spec: JobSpec,
    /// Their origins.
    pub layers: Layers,
}

/// One line of `thalweg config`.
#[derive(Clone, Debug, Serialize)]
pub struct Resolved {
    /// `train.global_batch`.
    pub key: String,
    /// As it would be written in a job; nothing if unset.
    pub value: Option<Value>,
    /// Who said so.
    pub origin: String,
    /// What the key means.
    pub doc: String,
}

impl Job {
    /// Resolves what the file and the command line say. All complaints come at once.
    pub fn resolve(mut said: Layers) -> Result<Job> {
        let mut complaints = Vec::new();
        if let Some((value, origin)) = said.get("format")
            && value.as_integer() != Some(FORMAT)
        {
            complaints.push(format!("{origin}: format {value} is not known here; this is format {FORMAT}"));
        }
        complaints.extend(said.get(NAME).and_then(|(value, origin)| wrong_name(value, origin)));
        let keys = JobSpec::keys();
        let mut known: Vec<&str> = keys.iter().map(|key| key.path.as_str()).collect();
        known.extend(["format", NAME]);
        keys.iter().filter(|key| key.is_table).for_each(|key| said.fold(&key.path));
        keys.iter().filter(|key| key.is_list).for_each(|key| said.split_list(&key.path));
        complaints.extend(said.unknown_keys(&known));
        apply_preset(&mut said, &mut complaints);
        let spec = JobSpec::read(&said, &mut complaints);
        check(&spec, &said, &mut complaints);
        if complaints.is_empty() {
            return Ok(Job { spec, layers: said });
        }
        let count = complaints.len();
        let text = complaints.join("\n  ");
        Err(Error::job(match count {
            1 => text,
            _ => format!("{count} things are wrong with the job:\n  {text}"),
        }))
    }

    /// The ranks that serve, of a job whose number of workers is still to be set: whatever else is wrong with it is told
    /// when it is resolved.
    pub fn servers(mut said: Layers) -> usize {
        let mut complaints = Vec::new();
        apply_preset(&mut said, &mut complaints);
        JobSpec::read(&said, &mut complaints).servers()
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
    /// Every value that is set, section by section. A preset is named only if the dials are what it says: somebody who
    /// turned a dial away from the default preset has left it. Of the keys that say what the model is, the one that counts.
    pub fn values(&self) -> Vec<(String, Value)> {
        let mut values = self.show();
        let model = self.model.source();
        values.retain(|(path, _)| path == model || !model::ModelSpec::SOURCES.contains(&path.as_str()));
        let turned =
            |key: &str, dial: &Value| values.iter().any(|(path, value)| path == key && value != dial);
        if let Some(preset) = preset::find(&self.strategy.preset)
            && preset.values().any(|(key, dial)| turned(key, &dial))
        {
            values.retain(|(path, _)| path != "strategy.preset");
        }
        values
    }

    /// The whole job as a file that gives this job again.
    pub fn to_toml(&self) -> String {
        as_toml(&self.values())
    }

    /// What decides the result, as a file. That is all of it, unless the result is reproducible: then it does not matter
    /// where it was computed and by how many.
    pub fn recipe(&self) -> String {
        let mut values = self.values();
        if self.train.reproducible {
            let elsewhere = ["engine.", "fault.", "strategy."];
            values.retain(|(path, _)| !elsewhere.iter().any(|group| path.starts_with(group)));
        }
        as_toml(&values)
    }

    /// A digest by which ranks recognise that they run the same job. Where files are may differ from host to host: what
    /// is in them is compared by itself.
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

/// The highest rank there can be: workers that join later have ranks up to `fault.max_workers`, where the job says it.
fn last_rank(spec: &JobSpec) -> usize {
    let most = match spec.fault.max_workers {
        Auto::Is(most) if spec.is_elastic() => most,
        _ => 0,
    };
    spec.ranks().max(most).saturating_sub(1)
}

/// A complaint about a name that cannot be that of a folder.
fn wrong_name(value: &Value, origin: &Origin) -> Option<String> {
    let usable = |name: &&str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    let usable = value.as_str().filter(usable).is_some();
    (!usable).then(|| {
        format!("{origin}: {NAME}: expected a name for the run folder, such as \"iris\", got {value}")
    })
}

fn as_toml(values: &[(String, Value)]) -> String {
    let mut text = format!("format = {FORMAT}\n");
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

/// Sets what the preset sets. An explicit value that says otherwise is refused; without an explicit preset the dials
/// speak for themselves.
fn apply_preset(said: &mut Layers, complaints: &mut Vec<String>) {
    let Some((Value::String(name), origin)) = said.get("strategy.preset") else { return };
    let (name, origin) = (name.clone(), origin.clone());
    let Some(preset) = preset::find(&name) else {
        let names = preset::all().map(|preset| preset.name);
        complaints.push(format!("{origin}: strategy.preset: {}", nearest::unknown("preset", &name, names)));
        return;
    };
    for (key, value) in preset.values() {
        match said.get(key) {
            Some((other, origin)) if *other != value => complaints.push(format!(
                "{origin}: {key} = {other} conflicts with preset `{name}`, which sets {value}; drop one of the two"
            )),
            Some(_) => {}
            None => said.set(key, value, Origin::Preset(name.clone())),
        }
    }
}

/// The rules between values.
fn check(spec: &JobSpec, layers: &Layers, complaints: &mut Vec<String>) {
    let mut complain = |key: &str, reason: String| {
        complaints.push(format!("{}: {key}: {reason}", layers.origin(key)));
    };
    let workers = spec.engine.workers;
    if workers == 0 || workers > 4096 {
        complain("engine.workers", format!("must be between 1 and 4096, is {workers}"));
    }
    if spec.train.global_batch == 0 {
        complain("train.global_batch", "must be at least 1".into());
    }
    if spec.train.epochs == 0 {
        complain("train.epochs", "must be at least 1".into());
    }
    if spec.train.max_steps == Some(0) {
        complain("train.max_steps", "must be at least 1".into());
    }
    if spec.train.accumulate == 0 {
        complain("train.accumulate", "must be at least 1".into());
    }
    for (key, value) in [("train.l1", spec.train.l1), ("train.l2", spec.train.l2)] {
        if !(value >= 0.0 && (value as f32).is_finite()) {
            complain(key, format!("must be at least 0 and finite in single precision, is {value}"));
        }
    }
    if spec.data.window == 0 {
        complain("data.window", "must be at least 1".into());
    }
    if let Some(Held::Share(share)) = spec.data.validation
        && !(0.0..1.0).contains(&share)
    {
        complain("data.validation", format!("must be at least 0 and below 1, is {share}"));
    }
    if let Auto::Is(ways) = spec.parallelism.data
        && ways != workers
    {
        complain(
            "strategy.parallelism.data",
            format!("is {ways}, but there are {workers} workers; set engine.workers or drop this key"),
        );
    }
    paths::check(spec, &mut complain);
    strategy::check(spec, &mut complain);
    engine::check(spec, &mut complain);
    reproducible::check(spec, &mut complain);
    // A preset without an exchange says one worker too: that conflict was told already.
    let by_preset = matches!(layers.origin("strategy.exchange.kind"), Origin::Preset(_));
    if spec.exchange.kind == strategy::Exchange::None && workers > 1 && !by_preset {
        complain(
            "strategy.exchange.kind",
            format!("`none` is for one worker, but there are {workers}; use `allreduce` or --workers 1"),
        );
    }
    let deadlines =
        [("step_deadline", spec.fault.step_deadline), ("prepare_deadline", spec.fault.prepare_deadline)];
    for (key, deadline) in deadlines {
        if deadline.is_zero() {
            complain(&format!("fault.{key}"), "must be above 0".into());
        }
    }
    if let Auto::Is(deadline) = spec.fault.join_deadline
        && deadline.is_zero()
    {
        complain("fault.join_deadline", "must be above 0".into());
    }
    if spec.fault.join_piece == Auto::Is(setting::Bytes(0)) {
        complain("fault.join_piece", "must be above 0".into());
    }
    if spec.fault.min_workers == 0 {
        complain("fault.min_workers", "must be at least 1".into());
    }
    let last = last_rank(spec);
    if let Some(fault) = spec.fault.inject.0.iter().find(|fault| fault.rank > last) {
        let reason =
            format!("there is no rank {}: ranks are 0 to {last}; correct it, or unset it with", fault.rank);
        complain("fault.inject", format!("{reason} --set fault.inject="));
    }
    if let Auto::Is(most) = spec.fault.max_workers
        && most < workers.max(spec.fault.min_workers)
    {
        complain(
            "fault.max_workers",
            format!("is {most}, below the workers that the job begins with or needs"),
        );
    }
    if spec.fault.checkpoint_keep == 0 {
        complain("fault.checkpoint_keep", "must be at least 1".into());
    }
    for (key, value) in [("accuracy", spec.target.accuracy), ("loss", spec.target.loss)] {
        if value.is_some_and(|value| value < 0.0 || (key == "accuracy" && value > 1.0)) {
            complain(&format!("train.target.{key}"), "is out of range".into());
        }
    }
    spec.model.check(layers, complaints);
    spec.optimizer.check(layers, complaints);
    spec.schedule.check(spec, layers, complaints);
    spec.clip.check(layers, complaints);
}
