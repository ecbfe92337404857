//! The job of one strategy in a comparison: what differs from the others, and what is made equal.

use super::entries::Entry;
use super::networks::Network;
use std::path::PathBuf;
use std::time::Duration;
use thalweg_core::spec::preset::{self, DialKind};
use thalweg_core::spec::setting::Setting;
use thalweg_core::spec::{JobLayers, Origin};
use thalweg_core::{Error, Job, JobSpec, Result};
use thalweg_train::registry;

const WORKERS: &str = "engine.workers";
const EVALUATE_EVERY: &str = "train.evaluate_every";

/// Steps between two evaluations, unless the job says how many rows.
const STEPS_BETWEEN: u64 = 32;

/// What all strategies of a comparison share.
pub(super) struct Shared {
    /// Of the job file and the flags.
    pub(super) layers: JobLayers,
    /// Factors of the learning rate; empty if rates are not tuned.
    pub(super) rates: Vec<f64>,
    pub(super) seeds: u64,
    /// Metric and value.
    pub(super) target: Option<(String, f64)>,
}

/// One strategy on one network, with all rates and seeds.
pub(super) struct Candidate<'a> {
    pub(super) entry: &'a Entry,
    pub(super) network: Network,
    /// Without a factor of the rate, and with the job's own seed.
    layers: JobLayers,
    pub(super) job: Job,
    pub(super) own_workers: bool,
    pub(super) own_optimizer: bool,
}

/// One run of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Variant {
    /// A factor of the learning rate, where rates are tuned.
    pub(super) rate: Option<f64>,
    pub(super) seed: u64,
}

impl<'a> Candidate<'a> {
    /// The job of that strategy.
    pub(super) fn new(shared: &Shared, entry: &'a Entry, network: Network) -> Result<Candidate<'a>> {
        let mut layers = shared.layers.clone();
        let of_job = Job::peek(layers.clone());
        let before = layers.get("strategy.preset").and_then(|(name, _)| name.as_str()).map(String::from);
        let origin = Origin::Flag(format!("--strategies {}", entry.label()));
        layers.set("strategy.preset", entry.preset.clone().into(), origin.clone());
        preset::drop_replaced_dials(&mut layers, before.as_deref());
        let mut settings = JobLayers::default();
        for setting in &entry.settings {
            settings
                .add_assignment(&format!("strategy.{setting}"))
                .map_err(|error| Error::job(format!("{origin}: {error}")))?;
        }
        settings.iter().for_each(|(key, value, _)| layers.set(key, value.clone(), origin.clone()));
        preset::prefer_optimizer(&mut layers);
        let own_workers = set_own_workers(&mut layers, &of_job, &entry.preset)?;
        if let Some((metric, value)) = &shared.target {
            let origin = Origin::Flag(format!("--target {metric}={value}"));
            layers.set(format!("train.target.{metric}"), (*value).into(), origin);
        }
        if layers.get(EVALUATE_EVERY).is_none() {
            let rows = STEPS_BETWEEN.saturating_mul(global_batch(&of_job));
            layers.set(EVALUATE_EVERY, show(&rows), Origin::Flag("compare".into()));
        }
        network.into_iter().for_each(|network| network.apply(&mut layers));
        let job = registry::resolve(layers.clone())?;
        let own_optimizer = matches!(job.layers.origin("train.optimizer.kind"), Origin::Preset { .. });
        Ok(Candidate { entry, network, layers, job, own_workers, own_optimizer })
    }

    /// All its runs: by rate, then by seed.
    pub(super) fn variants(&self, shared: &Shared) -> Vec<Vec<Variant>> {
        let first = self.job.spec.train.seed;
        let rates = match shared.rates.as_slice() {
            [] => vec![None],
            rates => rates.iter().copied().map(Some).collect(),
        };
        let seeds = |rate| (0..shared.seeds).map(move |n| Variant { rate, seed: first.wrapping_add(n) });
        rates.into_iter().map(|rate| seeds(rate).collect()).collect()
    }

    /// The job of one run.
    pub(super) fn layers_of(&self, variant: Variant) -> JobLayers {
        let (mut layers, origin) = (self.layers.clone(), Origin::Flag("compare".into()));
        layers.set("train.seed", show(&variant.seed), origin.clone());
        if let Some(factor) = variant.rate {
            layers.set("train.optimizer.lr", (self.job.spec.optimizer.lr * factor).into(), origin);
        }
        layers
    }

    /// The folder of one run, below that of the comparison.
    pub(super) fn folder(&self, variant: Variant) -> PathBuf {
        let mut folder: PathBuf = self.network.iter().map(|network| network.folder).collect();
        folder.push(self.entry.folder());
        folder.extend(variant.rate.map(|rate| format!("rate-{rate}")));
        folder.push(format!("seed-{}", variant.seed));
        folder
    }
}

/// A preset that fixes the number of workers runs with that, on hosts of the same speed and with the same batch.
fn set_own_workers(layers: &mut JobLayers, of_job: &JobSpec, name: &str) -> Result<bool> {
    let fixes = |dial: &&preset::Dial| dial.key == WORKERS && dial.kind == DialKind::Fixed;
    let Some(dial) = preset::find(name).and_then(|preset| preset.dials.iter().find(fixes)) else {
        return Ok(false);
    };
    let (before, origin) = (of_job.engine.workers, Origin::Preset { name: name.into(), formula: None });
    let value = dial.value.with(before);
    let workers = value.as_integer().and_then(|workers| usize::try_from(workers).ok()).unwrap_or(before);
    layers.set(WORKERS, value, origin.clone());
    // An even share of a step is another number of rows then.
    if let Some(pace) = of_job.engine.pace {
        let pace: Duration = pace.mul_f64(before as f64 / workers.max(1) as f64);
        layers.set("engine.pace", show(&pace), origin.clone());
    }
    if of_job.train.local_batch.is_some() {
        layers.set("train.global_batch", show(&global_batch(of_job)), origin);
    }
    for key in ["train.local_batch", "strategy.parallelism.data", "fault.min_workers", "fault.max_workers"] {
        layers.add_assignment(&format!("{key}=")).map_err(Error::job)?;
    }
    Ok(workers != before)
}

/// Rows of a step of a job that is not resolved.
fn global_batch(job: &JobSpec) -> u64 {
    let of_workers = |local: usize| local.saturating_mul(job.engine.workers);
    job.train.local_batch.map_or(job.train.global_batch, of_workers) as u64
}

fn show(value: &impl Setting) -> toml::Value {
    value.show().unwrap_or(toml::Value::Boolean(false))
}

#[cfg(test)]
mod tests {
    use super::super::entries::parse;
    use super::*;

    fn shared(settings: &[&str]) -> Shared {
        let mut layers = JobLayers::default();
        let file =
            "[train]\nglobal_batch = 64\noptimizer = { kind = \"sgd\", lr = 0.3 }\n[engine]\nworkers = 4";
        layers.add_file("job.toml", file).unwrap();
        settings.iter().for_each(|setting| layers.add_assignment(setting).unwrap());
        Shared { layers, rates: Vec::new(), seeds: 2, target: Some(("accuracy".into(), 0.9)) }
    }

    fn candidate(shared: &Shared, list: &str) -> Candidate<'static> {
        let entry = Box::leak(Box::new(parse(list).unwrap().remove(0)));
        Candidate::new(shared, entry, None).unwrap()
    }

    #[test]
    fn every_strategy_gets_the_same_job() {
        let shared = shared(&["train.epochs=3"]);
        let spec = candidate(&shared, "sparknet[merge.every=5]").job.spec;
        assert_eq!((spec.merge.every, spec.train.epochs, spec.engine.workers), (5, 3, 4));
        assert_eq!((spec.optimizer.lr, spec.target.accuracy), (0.3, Some(0.9)));
        assert_eq!(spec.train.evaluate_every, Some(32 * 64));
        let own = self::shared(&["train.evaluate_every=100"]);
        assert_eq!(candidate(&own, "allreduce").job.spec.train.evaluate_every, Some(100));
    }

    #[test]
    fn a_preset_with_its_own_workers_has_hosts_of_the_same_speed_and_the_same_batch() {
        let settings = ["engine.pace=20ms", "train.global_batch=", "train.local_batch=16"];
        let single = candidate(&shared(&settings), "single");
        let spec = &single.job.spec;
        assert_eq!((spec.engine.workers, spec.engine.pace), (1, Some(Duration::from_millis(80))));
        assert_eq!((spec.train.global_batch, single.own_workers), (64, true));
        assert!(!candidate(&shared(&settings), "allreduce").own_workers);
    }

    #[test]
    fn the_optimizer_of_a_preset_wins_and_is_marked() {
        let diloco = candidate(&shared(&[]), "diloco");
        assert!(diloco.own_optimizer && diloco.job.spec.optimizer.kind.name() != "sgd");
        assert!(!candidate(&shared(&[]), "allreduce").own_optimizer);
    }

    #[test]
    fn runs_differ_in_rate_and_seed_and_have_folders_of_their_own() {
        let mut shared = shared(&[]);
        shared.rates = vec![0.5, 2.0];
        let candidate = candidate(&shared, "gosgd[gossip.probability=1]");
        let variants = candidate.variants(&shared).concat();
        let folders: Vec<String> =
            variants.iter().map(|variant| candidate.folder(*variant).display().to_string()).collect();
        assert_eq!(
            folders,
            [
                "gosgd-gossip.probability=1/rate-0.5/seed-7",
                "gosgd-gossip.probability=1/rate-0.5/seed-8",
                "gosgd-gossip.probability=1/rate-2/seed-7",
                "gosgd-gossip.probability=1/rate-2/seed-8"
            ]
        );
        let spec = registry::resolve(candidate.layers_of(variants[3])).unwrap().spec;
        assert_eq!((spec.optimizer.lr, spec.train.seed), (0.6, 8));
    }

    #[test]
    fn networks_are_simulated() {
        let (shared, entry) = (shared(&[]), Entry::preset("allreduce", true));
        for network in &super::super::networks::NETWORKS {
            let candidate = Candidate::new(&shared, &entry, Some(network)).unwrap();
            assert_eq!(candidate.job.spec.engine.kind, thalweg_core::spec::engine::EngineKind::Sim);
        }
        let wide = Candidate::new(&shared, &entry, Some(&super::super::networks::NETWORKS[3])).unwrap();
        assert_eq!(wide.job.spec.network.latency, Duration::from_millis(30));
        assert_eq!(wide.job.spec.network.bandwidth.0, 12_500_000);
        assert_eq!(
            wide.folder(Variant { rate: None, seed: 7 }).display().to_string(),
            "wide-area/allreduce/seed-7"
        );
    }
}
