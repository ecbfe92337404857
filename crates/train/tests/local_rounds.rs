//! Strategies of local rounds: their steps against all-reduce, their update rules against a reference of a few lines,
//! resumption with the state of every worker.

mod harness;

use harness::{distance, parameters, train};
use std::path::Path;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::NoHooks;
use thalweg_core::{Model, Result};
use thalweg_data::{Data, Sampler, even_range};
use thalweg_graph::{Network, Options, Team};

const SGD: &str = "train.optimizer={kind='sgd', lr=0.1}";

fn finish(world: usize, folder: &Path, settings: &[&str]) -> Vec<Event> {
    let mut ended = train(world, folder, settings);
    for ended in &ended {
        assert_eq!(ended.result.as_ref().unwrap(), &Outcome::Completed, "{settings:?}");
    }
    let events = ended.swap_remove(0).events;
    for event in &events {
        if let Event::Epoch { audit, .. } = event {
            assert_eq!((audit.once, audit.missed, audit.repeated), (audit.expected, 0, 0), "{settings:?}");
        }
    }
    events
}

fn trained(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    finish(world, folder.path(), settings);
    parameters(folder.path())
}

/// Rounds of one plain step are the steps of all-reduce.
fn assert_all_reduce(dials: &[&str]) {
    for world in [1, 2, 3, 4] {
        let steps = [SGD, "train.max_steps=60"];
        let reduced = trained(world, &[&["strategy.preset=allreduce"], &steps[..]].concat());
        let merged = trained(world, &[dials, &["strategy.merge.every=1"], &steps[..]].concat());
        let apart = distance(&reduced, &merged);
        assert!(apart < 1e-4, "{world} workers, {dials:?}: {apart:e}");
    }
}

/// A run that is stopped between two rounds goes on to the same bits: every worker with its own optimizer state.
fn assert_resumes(preset: &str) {
    let settings = [preset, "train.optimizer={kind='adam', lr=0.002}", "strategy.merge.every=5"];
    let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    finish(3, whole.path(), &[&settings[..], &["train.max_steps=20"]].concat());
    finish(3, halves.path(), &[&settings[..], &["train.max_steps=10"]].concat());
    finish(3, halves.path(), &[&settings[..], &["train.max_steps=20"]].concat());
    assert_eq!(parameters(whole.path()), parameters(halves.path()), "{preset}");
    // With more workers, and with fewer.
    finish(5, halves.path(), &[&settings[..], &["train.max_steps=32"]].concat());
    finish(1, halves.path(), &[&settings[..], &["train.max_steps=45"]].concat());
}

fn assert_learns(preset: &str) {
    let folder = tempfile::tempdir().unwrap();
    let events = finish(4, folder.path(), &[preset, "strategy.merge.every=5", "train.epochs=20"]);
    let accuracy = events.iter().rev().find_map(|event| match event {
        Event::Done { last, .. } => last.get("accuracy").copied(),
        _ => None,
    });
    assert!(accuracy.unwrap() >= 0.93, "{preset}: {accuracy:?}");
}

/// Local training of two workers by plain gradient descent, and their mean weighted by rows.
struct Reference {
    data: Data,
    network: Network,
    sampler: Sampler,
    step: u64,
}

impl Reference {
    fn new() -> Reference {
        let mut layers = thalweg_core::spec::JobLayers::default();
        layers.add_assignment(SGD).unwrap();
        let job = thalweg_train::registry::resolve(layers).unwrap().spec;
        let mut data = Data::open(&job.data, job.train.seed).unwrap();
        if data.needs_statistics() {
            let all = data.statistics(0, 1).unwrap();
            data.fit(&[all]).unwrap();
        }
        let network = Network::for_schema(&job.model.layers, &data.schema, Options::of(&job)).unwrap();
        let network = network.with_team(Team::shared(job.engine.threads, 1));
        let sampler = Sampler::new(&data.training, job.train.seed, job.train.global_batch);
        Reference { data, network, sampler, step: 0 }
    }

    fn initial(&self) -> Vec<f32> {
        let mut parameters = vec![0.0; self.network.layout().len()];
        self.network.initialize(thalweg_core::JobSpec::default().train.seed, &mut parameters);
        parameters
    }

    /// The mean after `steps` local steps of both workers from `start`.
    fn round(&mut self, start: &[f32], steps: u64) -> Result<Vec<f32>> {
        let (mut batch, mut gradient) = (self.data.training.empty_batch(), vec![0.0; start.len()]);
        let (mut sums, mut rows) = (vec![0.0f64; start.len()], 0.0);
        for worker in 0..2 {
            let (mut own, mut trained) = (start.to_vec(), 0.0);
            for step in self.step..self.step + steps {
                let epoch = self.sampler.steps_per_epoch();
                let all = self.sampler.rows(step / epoch, step % epoch);
                let mine = &all[even_range(all.len(), worker, 2)];
                self.data.training.load(mine, step / epoch, &mut batch)?;
                let scale = 1.0 / mine.len() as f32;
                self.network.gradient(&own, &batch, scale, &mut gradient, &mut NoHooks)?;
                own.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= 0.1 * g);
                trained += mine.len() as f64;
            }
            sums.iter_mut().zip(&own).for_each(|(sum, w)| *sum += trained * f64::from(*w));
            rows += trained;
        }
        self.step += steps;
        Ok(sums.iter().map(|sum| (sum / rows) as f32).collect())
    }
}

/// Rounds of 4, 4 and 2 steps: the last one ends with the job.
fn replay(mut merge: impl FnMut(&mut Reference, &mut Vec<f32>, u64)) -> Vec<f32> {
    let mut reference = Reference::new();
    let mut w = reference.initial();
    for steps in [4, 4, 2] {
        merge(&mut reference, &mut w, steps);
    }
    w
}

fn assert_replayed(expected: &[f32], dials: &[&str]) {
    let settings = [SGD, "train.max_steps=10", "strategy.merge.every=4"];
    let merged = trained(2, &[dials, &settings].concat());
    assert_eq!(merged.len(), expected.len());
    let worst = merged.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{dials:?}: {worst:e}");
}

#[test]
fn sparknet_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=sparknet"]);
    let expected = replay(|reference, w, steps| *w = reference.round(w, steps).unwrap());
    assert_replayed(&expected, &["strategy.preset=sparknet"]);
}

#[test]
fn sparknet_resumes_and_learns() {
    assert_resumes("strategy.preset=sparknet");
    assert_learns("strategy.preset=sparknet");
}

#[test]
fn block_momentum_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=block-momentum", "strategy.merge.momentum=0"]);
    // 1 - 1/n with two workers.
    let (eta, zeta) = (0.5, 1.2);
    let mut d = Vec::new();
    let expected = replay(|reference, w, steps| {
        d.resize(w.len(), 0.0);
        let start: Vec<f32> = w.iter().zip(&d).map(|(w, d)| w + eta * d).collect();
        let mean = reference.round(&start, steps).unwrap();
        for (((w, d), mean), start) in w.iter_mut().zip(&mut d).zip(mean).zip(start) {
            *d = eta * *d + zeta * (mean - start);
            *w += *d;
        }
    });
    assert_replayed(&expected, &["strategy.preset=block-momentum", "strategy.merge.rate=1.2"]);
}

#[test]
fn block_momentum_resumes_and_learns() {
    assert_resumes("strategy.preset=block-momentum");
    assert_learns("strategy.preset=block-momentum");
}

#[test]
fn diloco_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=diloco", "strategy.merge.momentum=0", "strategy.merge.rate=1"]);
    let (mu, rate) = (0.9, 0.7);
    let mut v = Vec::new();
    let expected = replay(|reference, w, steps| {
        v.resize(w.len(), 0.0);
        let mean = reference.round(w, steps).unwrap();
        for ((w, v), mean) in w.iter_mut().zip(&mut v).zip(mean) {
            let gradient = *w - mean;
            *v = mu * *v + gradient;
            *w -= rate * (gradient + mu * *v);
        }
    });
    assert_replayed(&expected, &["strategy.preset=diloco"]);
}

#[test]
fn diloco_resumes_and_learns() {
    assert_resumes("strategy.preset=diloco");
    assert_learns("strategy.preset=diloco");
}
