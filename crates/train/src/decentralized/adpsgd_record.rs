//! AD-PSGD against a reference: a simulated run is done again by the pseudo-code, in the order in which it happened.

use super::recorded::{Recorded, gossip, job};
use std::collections::BTreeMap;
use std::time::Duration;
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::{JobSpec, Model, NoHooks};
use thalweg_data::Data;
use thalweg_graph::{Network, Options};

const ADPSGD: &str = "strategy.preset=adpsgd";

/// Replays a record of workers that stay, in one generation. Returns their first and last models, and the number of averaged pairs.
fn replay(
    job: &JobSpec,
    rate: f32,
    record: &[(usize, Recorded)],
) -> (Vec<Vec<f32>>, BTreeMap<usize, Vec<f32>>, usize) {
    let data = Data::open(&job.data, job.train.seed).expect("rows");
    let mut model = Network::for_schema(&job.model.layers, &data.schema, Options::of(job)).expect("a model");
    let (mut batch, mut gradient) = (data.training.empty_batch(), vec![0.0; model.layout().len()]);
    let mut first: Vec<Vec<f32>> = Vec::new();
    let (mut w, mut at) = (BTreeMap::<usize, Vec<f32>>::new(), BTreeMap::<usize, Vec<f32>>::new());
    let mut averages: BTreeMap<(usize, usize), Vec<f32>> = BTreeMap::new();
    let mut pairs = 0;
    for (i, recorded) in record {
        match recorded {
            Recorded::Began(_, model) => {
                first.push(model.clone());
                assert!(w.insert(*i, model.clone()).is_none(), "a generation ended");
            }
            // The gradient is computed at this model.
            Recorded::Sent(..) => drop(at.insert(*i, w[i].clone())),
            // Worker i answers j: both have the average.
            Recorded::Received(j, 0.0) => {
                let average: Vec<f32> =
                    w[i].iter().zip(&w[j]).map(|(own, theirs)| (own + theirs) / 2.0).collect();
                averages.insert((*i, *j), average.clone());
                w.insert(*i, average);
                pairs += 1;
            }
            Recorded::Received(j, _) => drop(w.insert(*i, averages.remove(&(*j, *i)).expect("an answer"))),
            Recorded::Updated(rows) => {
                data.training.load(rows, 0, &mut batch).expect("rows");
                let scale = 1.0 / rows.len() as f32;
                model.gradient(&at[i], &batch, scale, &mut gradient, &mut NoHooks).expect("a gradient");
                let own = w.get_mut(i).expect("a worker").iter_mut().zip(&gradient);
                own.for_each(|(own, gradient)| *own -= rate * gradient);
            }
            Recorded::Met(_, model) => {
                let worst = w[i].iter().zip(model).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-6, "worker {i} is {worst} from the reference");
            }
        }
    }
    assert!(averages.is_empty(), "an answer was not taken");
    (first, w, pairs)
}

#[test]
fn adpsgd_follows_its_reference() {
    for (seed, latency) in [50, 5_000, 100_000].map(Duration::from_micros).into_iter().enumerate() {
        for graph in ["ring", "complete"] {
            let graph = format!("strategy.neighbours.graph={graph}");
            let job = job(&[ADPSGD, &graph, "train.epochs=3", "engine.workers=5"]);
            let network =
                Simulated { latency, jitter: 2.0, speed: 1e8, ..Simulated::ordinary(5, seed as u64) };
            let (record, finished, _) = gossip(&job, network, &[], 0.0);
            assert_eq!(finished.len(), 5);
            let (_, _, pairs) = replay(&job, 0.1, &record);
            assert!(pairs > 5, "{pairs} pairs");
        }
    }
}

/// Averages of pairs keep the mean, and all models come to it.
#[test]
fn without_a_gradient_pairs_come_to_the_mean_of_all_models() {
    for seed in 0..20 {
        let mut job = job(&[ADPSGD, "train.epochs=6", "engine.workers=6"]);
        job.optimizer.lr = 0.0;
        let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(6, seed) };
        let (record, finished, _) = gossip(&job, network, &[], 1.0);
        assert_eq!(finished.len(), 6);
        let (first, last, _) = replay(&job, 0.0, &record);
        let mean = first.iter().map(|model| model[0]).sum::<f32>() / 6.0;
        let after = last.values().map(|model| model[0]).sum::<f32>() / 6.0;
        assert!((mean - after).abs() < 1e-4, "seed {seed}: the mean moved from {mean} to {after}");
        for model in last.values() {
            assert!((model[0] - mean).abs() < 0.05, "seed {seed}: {} and {mean}", model[0]);
        }
    }
}
