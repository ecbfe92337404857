//! EASGD Tree against a reference: a simulated run is done again by the pseudo-code, in the order in which it happened.

use super::recorded::{Recorded, gossip, job};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::{JobSpec, Model, NoHooks};
use thalweg_data::Data;
use thalweg_graph::{Network, Options};

const TREE: [&str; 3] = ["strategy.preset=tree-easgd", "strategy.tree.up=2", "strategy.tree.down=3"];

/// Replays a record of workers that stay. Returns their first and their last models, and the number of merges.
fn replay(
    job: &JobSpec,
    rate: f32,
    record: &[(usize, Recorded)],
) -> (Vec<Vec<f32>>, BTreeMap<usize, Vec<f32>>, usize) {
    let data = Data::open(&job.data, job.train.seed).expect("rows");
    let mut model = Network::for_schema(&job.model.layers, &data.schema, Options::of(job)).expect("a model");
    let (mut batch, mut gradient) = (data.training.empty_batch(), vec![0.0; model.layout().len()]);
    let (mut first, mut w): (Vec<Vec<f32>>, BTreeMap<usize, Vec<f32>>) = Default::default();
    let mut sent: BTreeMap<(usize, usize), VecDeque<Vec<f32>>> = BTreeMap::new();
    let (alpha, mut merges) = (job.merge.alpha(job.tree.children + 1) as f32, 0);
    for (i, recorded) in record {
        match recorded {
            Recorded::Began(_, model) => {
                first.push(model.clone());
                w.insert(*i, model.clone());
            }
            Recorded::Received(j, _) => {
                let theirs = sent.get_mut(&(*j, *i)).and_then(VecDeque::pop_front).expect("a message");
                let own = w.get_mut(i).expect("a worker").iter_mut();
                own.zip(theirs).for_each(|(own, theirs)| *own -= alpha * (*own - theirs));
                merges += 1;
            }
            Recorded::Updated(rows) => {
                data.training.load(rows, 0, &mut batch).expect("rows");
                let (own, scale) = (w.get_mut(i).expect("a worker"), 1.0 / rows.len() as f32);
                model.gradient(own, &batch, scale, &mut gradient, &mut NoHooks).expect("a gradient");
                own.iter_mut().zip(&gradient).for_each(|(own, gradient)| *own -= rate * gradient);
            }
            Recorded::Sent(j, _) => sent.entry((*i, *j)).or_default().push_back(w[i].clone()),
            Recorded::Met(_, model) => {
                let worst = w[i].iter().zip(model).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-6, "worker {i} is {worst} from the reference");
            }
        }
    }
    // In a tree of seven, models go along edges alone.
    let edge = |(i, j): &(usize, usize)| *i.max(j) > 0 && (i.max(j) - 1) / 2 == *i.min(j);
    assert!(sent.keys().all(edge), "{:?}", sent.keys());
    (first, w, merges)
}

#[test]
fn tree_easgd_follows_its_reference() {
    for (seed, latency) in [50, 5_000, 100_000].map(Duration::from_micros).into_iter().enumerate() {
        let job = job(&[&TREE[..], &["train.epochs=4", "engine.workers=7"]].concat());
        let network = Simulated { latency, jitter: 2.0, speed: 1e8, ..Simulated::ordinary(7, seed as u64) };
        let (record, finished, _) = gossip(&job, network, &[], 0.0);
        assert_eq!(finished.len(), 7);
        let (_, _, merges) = replay(&job, 0.1, &record);
        assert!(merges > 50, "{merges} merges");
    }
}

#[test]
fn without_a_gradient_models_stay_in_the_convex_hull() {
    for seed in 0..5 {
        let mut job = job(&[&TREE[..], &["train.epochs=8", "engine.workers=7"]].concat());
        job.optimizer.lr = 0.0;
        let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(7, seed) };
        let (record, finished, _) = gossip(&job, network, &[], 1.0);
        assert_eq!(finished.len(), 7);
        let (first, last, _) = replay(&job, 0.0, &record);
        let column = |models: &[&Vec<f32>], k: usize| -> (f32, f32) {
            let values = models.iter().map(|model| model[k]);
            values.fold((f32::MAX, f32::MIN), |(least, most), value| (least.min(value), most.max(value)))
        };
        let (first, last): (Vec<_>, Vec<_>) = (first.iter().collect(), last.values().collect());
        for k in 0..first[0].len() {
            let ((least, most), (low, high)) = (column(&first, k), column(&last, k));
            assert!(low >= least - 1e-5 && high <= most + 1e-5, "{low} to {high} of {least} to {most}");
            assert!(high - low < 0.1 * (most - least), "models have come together: {low} to {high}");
        }
    }
}
