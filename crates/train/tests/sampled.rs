//! Sampled rows of each step: the steps of a reference of a few lines, and an account of every row.

mod harness;

use harness::{distance, parameters, simulate, train};
use std::path::Path;
use thalweg_cluster::engine::threads::RankOutcome;
use thalweg_cluster::sim::Network as Simulated;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::NoHooks;
use thalweg_core::report::Audit;
use thalweg_core::rng::Rng;
use thalweg_core::spec::JobLayers;
use thalweg_core::{JobSpec, Model};
use thalweg_data::{Data, Sampler};
use thalweg_graph::{Network, Options};
use thalweg_train::registry;

const PRESET: &str = "strategy.preset=spark-mllib";
const SETTINGS: [&str; 4] =
    ["train.optimizer={kind='sgd', lr=0.3}", "train.epochs=2", "train.sample=0.3", "train.global_batch=100"];

fn audits(ended: &[RankOutcome<Outcome>]) -> Vec<Audit> {
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{:?}", ended[0].result);
    let audit = |event: &Event| match event {
        Event::Epoch { audit, .. } => Some(audit.clone()),
        _ => None,
    };
    ended.iter().flat_map(|ended| &ended.events).filter_map(audit).collect()
}

/// Mini-batch gradient descent as Spark has it, on a single machine.
fn reference() -> Vec<f32> {
    let mut layers = JobLayers::default();
    [PRESET].iter().chain(&SETTINGS).for_each(|setting| layers.add_assignment(setting).unwrap());
    let job: JobSpec = registry::resolve(layers).unwrap().spec;
    let data = Data::open(&job.data, job.train.seed).unwrap();
    let mut model = Network::for_schema(&job.model.layers, &data.schema, Options::of(&job)).unwrap();
    let mut w = vec![0.0; model.layout().len()];
    let mut gradient = w.clone();
    model.initialize(job.train.seed, &mut w);
    let mut sampler = Sampler::new(&data.training, job.train.seed, job.train.global_batch);
    let (mut batch, steps) = (data.training.empty_batch(), sampler.steps_per_epoch());
    for step in 0..2 * steps {
        let mut rows = sampler.rows(step / steps, step % steps).to_vec();
        Rng::keyed(job.train.seed, "sample", &[step]).shuffle(&mut rows);
        rows.truncate((0.3 * rows.len() as f64).ceil() as usize);
        data.training.load(&rows, step / steps, &mut batch).unwrap();
        model.gradient(&w, &batch, 1.0 / rows.len() as f32, &mut gradient, &mut NoHooks).unwrap();
        let rate = 0.3 / (step as f32 + 1.0).sqrt();
        w.iter_mut().zip(&gradient).for_each(|(value, g)| *value -= rate * g);
    }
    w
}

#[test]
fn spark_mllib_takes_the_steps_of_its_reference() {
    let expected = reference();
    let trained = |workers: usize, folder: &Path| {
        let ended =
            simulate(Simulated::ordinary(workers, 5), &[], folder, &[&[PRESET], &SETTINGS[..]].concat());
        (audits(&ended.0), parameters(folder))
    };
    for workers in [1, 2, 5, 9] {
        let folder = tempfile::tempdir().unwrap();
        let (audits, w) = trained(workers, folder.path());
        assert!(distance(&w, &expected) < 1e-5, "{workers} workers: {}", distance(&w, &expected));
        assert_eq!(audits.len(), 2);
        for Audit { expected, once, missed, repeated, dropped, .. } in audits {
            // Of 14 steps of 100 rows, and one of 38.
            assert_eq!((expected, once, dropped), (1438, 14 * 30 + 12, 14 * 70 + 26));
            assert_eq!((missed, repeated), (0, 0));
        }
    }
}

/// In the middle of an epoch, and with another number of workers.
#[test]
fn a_resumed_job_draws_the_same_rows() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let run = |workers: usize, folder: &Path, end: &str| {
        let own = [PRESET, SETTINGS[0], SETTINGS[2], SETTINGS[3], end, "fault.checkpoint_every=7"];
        audits(&train(workers, folder, &own))
    };
    let whole = run(3, folders[0].path(), "train.max_steps=30");
    run(3, folders[1].path(), "train.max_steps=7");
    let parts = run(2, folders[1].path(), "train.max_steps=30");
    assert_eq!(parts, whole[whole.len() - parts.len()..]);
    assert!(parts.iter().all(|audit| (audit.missed, audit.repeated) == (0, 0) && audit.dropped > 0));
    assert!(distance(&parameters(folders[0].path()), &parameters(folders[1].path())) < 1e-5);
}
