//! Gossip learning against a reference: a simulated run is done again by the pseudo-code, in the order in which it happened.

use super::recorded::{Recorded, gossip, job};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::{JobSpec, Model, NoHooks};
use thalweg_data::Data;
use thalweg_graph::{Network, Options};

const LEARNING: [&str; 3] =
    ["strategy.preset=gossip-learning", "strategy.gossip.probability=0.5", "strategy.gossip.cache=3"];

/// A worker of the pseudo-code: the model at hand, the last visitor, the models that have left.
struct Worker {
    w: Vec<f32>,
    v: Vec<f32>,
    cache: VecDeque<Vec<f32>>,
    /// Whether the model at hand is a copy of one that has left, or of visitors since.
    has_left: bool,
    is_copy: bool,
}

/// Replays a record of workers that stay. Returns the first models, those published in the end, and the number of visits.
fn replay(job: &JobSpec, rate: f32, record: &[(usize, Recorded)]) -> (Vec<Vec<f32>>, Vec<Vec<f32>>, usize) {
    let data = Data::open(&job.data, job.train.seed).expect("rows");
    let mut model = Network::for_schema(&job.model.layers, &data.schema, Options::of(job)).expect("a model");
    let (mut batch, mut gradient) = (data.training.empty_batch(), vec![0.0; model.layout().len()]);
    let (mut first, mut published) = (Vec::new(), Vec::new());
    let mut workers: BTreeMap<usize, Worker> = BTreeMap::new();
    let mut walking: BTreeMap<(usize, usize), VecDeque<Vec<f32>>> = BTreeMap::new();
    let mut visits = 0;
    for (i, recorded) in record {
        match recorded {
            Recorded::Began(_, w) => {
                first.push(w.clone());
                workers.insert(
                    *i,
                    Worker {
                        w: w.clone(),
                        v: w.clone(),
                        cache: VecDeque::new(),
                        has_left: false,
                        is_copy: false,
                    },
                );
            }
            Recorded::Received(j, _) => {
                let visitor = walking.get_mut(&(*j, *i)).and_then(VecDeque::pop_front).expect("a model");
                let worker = workers.get_mut(i).expect("a worker");
                assert!(worker.has_left, "the model at hand has not left");
                worker.is_copy = false;
                worker.w =
                    visitor.iter().zip(&worker.v).map(|(visitor, last)| (visitor + last) / 2.0).collect();
                worker.v = visitor;
                visits += 1;
            }
            Recorded::Updated(rows) => {
                data.training.load(rows, 0, &mut batch).expect("rows");
                let worker = workers.get_mut(i).expect("a worker");
                (worker.has_left, worker.is_copy) = (false, false);
                let (own, scale) = (&mut worker.w, 1.0 / rows.len() as f32);
                model.gradient(own, &batch, scale, &mut gradient, &mut NoHooks).expect("a gradient");
                own.iter_mut().zip(&gradient).for_each(|(own, gradient)| *own -= rate * gradient);
            }
            Recorded::Sent(j, _) => {
                let worker = workers.get_mut(i).expect("a worker");
                walking.entry((*i, *j)).or_default().push_back(worker.w.clone());
                worker.cache.push_back(worker.w.clone());
                (worker.has_left, worker.is_copy) = (true, true);
            }
            Recorded::Met(_, models) => {
                published.clear();
                for Worker { w, cache, is_copy, .. } in workers.values() {
                    published.push(w.clone());
                    let copies = usize::from(*is_copy);
                    published.extend(cache.iter().rev().skip(copies).take(2).cloned());
                }
                let all: Vec<f32> = published.iter().flatten().copied().collect();
                assert_eq!(all.len(), models.len(), "as many models");
                let worst = all.iter().zip(models).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-6, "{worst} from the reference");
            }
        }
    }
    (first, published, visits)
}

#[test]
fn gossip_learning_follows_its_reference() {
    for (seed, latency) in [50, 2_000, 10_000].map(Duration::from_micros).into_iter().enumerate() {
        let job = job(&[&LEARNING[..], &["train.epochs=4", "engine.workers=5"]].concat());
        let network = Simulated { latency, jitter: 2.0, speed: 1e8, ..Simulated::ordinary(5, seed as u64) };
        let (record, finished, _) = gossip(&job, network, &[], 0.0);
        assert_eq!(finished.len(), 5);
        let (_, published, visits) = replay(&job, 0.1, &record);
        assert!(visits > 20 && published.len() == 15, "{visits} visits, {} models", published.len());
    }
}

#[test]
fn without_a_gradient_walking_models_stay_in_the_convex_hull() {
    for seed in 0..5 {
        let mut job = job(&[&LEARNING[..], &["train.epochs=8", "engine.workers=5"]].concat());
        job.optimizer.lr = 0.0;
        let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(5, seed) };
        let (record, finished, _) = gossip(&job, network, &[], 1.0);
        assert_eq!(finished.len(), 5);
        let (first, last, _) = replay(&job, 0.0, &record);
        let column = |models: &[Vec<f32>], k: usize| -> (f32, f32) {
            let values = models.iter().map(|model| model[k]);
            values.fold((f32::MAX, f32::MIN), |(least, most), value| (least.min(value), most.max(value)))
        };
        for k in 0..first[0].len() {
            let ((least, most), (low, high)) = (column(&first, k), column(&last, k));
            assert!(low >= least - 1e-5 && high <= most + 1e-5, "{low} to {high} of {least} to {most}");
            assert!(high - low < 0.1 * (most - least), "models have come together: {low} to {high}");
        }
    }
}
