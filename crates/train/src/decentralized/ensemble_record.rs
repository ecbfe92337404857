//! Ensembles against a reference: each worker of a simulated run is plain descent by itself, on rows that no other one has.

use super::recorded::{Recorded, gossip, job};
use std::collections::{BTreeMap, BTreeSet};
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::{Model, NoHooks, Rng};
use thalweg_data::Data;
use thalweg_graph::{Network, Options};

#[test]
fn members_train_alone_on_shards_of_their_own() {
    let job = job(&["strategy.preset=ensemble", "train.epochs=3", "engine.workers=3"]);
    let network = Simulated { jitter: 2.0, speed: 1e8, ..Simulated::ordinary(3, 5) };
    let (record, finished, _) = gossip(&job, network, &[], 0.0);
    assert_eq!(finished.len(), 3);
    let data = Data::open(&job.data, job.train.seed).expect("rows");
    let mut model = Network::for_schema(&job.model.layers, &data.schema, Options::of(&job)).expect("a model");
    let (mut batch, mut gradient) = (data.training.empty_batch(), vec![0.0; model.layout().len()]);
    let mut w: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    let mut seen: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    let mut meetings = 0;
    for (i, recorded) in &record {
        match recorded {
            Recorded::Began(_, parameters) => {
                let mut start = vec![0.0; gradient.len()];
                model.initialize(
                    Rng::keyed(job.train.seed, "start of a member", &[*i as u64]).bits(),
                    &mut start,
                );
                assert_eq!(*parameters, start, "a start of its own");
                w.insert(*i, start);
            }
            Recorded::Updated(rows) => {
                seen.entry(*i).or_default().extend(rows);
                data.training.load(rows, 0, &mut batch).expect("rows");
                let (own, scale) = (w.get_mut(i).expect("a worker"), 1.0 / rows.len() as f32);
                model.gradient(own, &batch, scale, &mut gradient, &mut NoHooks).expect("a gradient");
                own.iter_mut().zip(&gradient).for_each(|(own, gradient)| *own -= 0.1 * gradient);
            }
            Recorded::Met(_, members) => {
                let all: Vec<f32> = w.values().flatten().copied().collect();
                let worst = all.iter().zip(members).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(all.len() == members.len() && worst < 1e-6, "{worst} from the reference");
                meetings += 1;
            }
            Recorded::Received(..) | Recorded::Sent(..) => panic!("nothing is sent"),
        }
    }
    assert_eq!(meetings, 9, "three workers in three epochs");
    let all: BTreeSet<u64> = seen.values().flatten().copied().collect();
    assert_eq!(seen.values().map(BTreeSet::len).sum::<usize>(), all.len(), "shards overlap");
}
