//! Strategies of local rounds: their steps against all-reduce, their update rules against a reference of a few lines,
//! resumption with the state of every worker.

mod harness;

use harness::{distance, parameters, train};
use std::path::Path;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::NoHooks;
use thalweg_core::spec::merge::OptimizerState::{self, Average, Keep, Reset};
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
fn assert_resumes(dials: &[&str]) {
    let settings = [dials, &["train.optimizer={kind='adam', lr=0.002}", "strategy.merge.every=5"]].concat();
    let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    finish(3, whole.path(), &[&settings[..], &["train.max_steps=20"]].concat());
    finish(3, halves.path(), &[&settings[..], &["train.max_steps=10"]].concat());
    finish(3, halves.path(), &[&settings[..], &["train.max_steps=20"]].concat());
    assert_eq!(parameters(whole.path()), parameters(halves.path()), "{dials:?}");
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

/// Workers of a replay: 64 rows are shares of 22, 21 and 21, so that the mean is not the plain one.
const WORKERS: usize = 3;

/// An inner rule: gradient, parameter, slots, updates before this one, learning rate of a rule that has no fixed one.
type Rule = fn(f32, &mut f32, &mut [f32; 2], u64, f32);

const MOMENTUM: (&str, Rule) =
    ("train.optimizer={kind='momentum', lr=0.1}", |gradient, w, [velocity, _], _, rate| {
        *velocity = 0.9 * *velocity + gradient;
        *w -= rate * *velocity;
    });

const ADAMW: (&str, Rule) =
    ("train.optimizer={kind='adamw', lr=0.002}", |gradient, w, [first, second], updates, _| {
        let [rate, beta1, beta2, decay] = [0.002, 0.9, 0.999, 0.01f32].map(f64::from);
        let corrected = |beta: f64| 1.0 - beta.powf(updates as f64 + 1.0);
        *first += (1.0 - beta1) as f32 * (gradient - *first);
        *second = 0.999 * *second + (1.0 - beta2) as f32 * (gradient * gradient);
        let scale = (1.0 / corrected(beta2).sqrt()) as f32;
        let change = (rate / corrected(beta1)) as f32 * (*first / (second.sqrt() * scale + 1e-8));
        *w = *w * (1.0 - rate * decay) as f32 - change;
    });

/// Local training of all workers, and their mean weighted by rows, summed in the order of ranks.
struct Reference {
    data: Data,
    network: Network,
    sampler: Sampler,
    rule: Rule,
    /// Of each worker, by parameter.
    slots: Vec<Vec<[f32; 2]>>,
    step: u64,
    rate: f32,
}

impl Reference {
    fn new(rule: Rule) -> Reference {
        let mut layers = thalweg_core::spec::JobLayers::default();
        layers.add_assignment("engine.threads=1").unwrap();
        let job = thalweg_train::registry::resolve(layers).unwrap().spec;
        let mut data = Data::open(&job.data, job.train.seed).unwrap();
        if data.needs_statistics() {
            let all = data.statistics(0, 1).unwrap();
            data.fit(&[all]).unwrap();
        }
        let network = Network::for_schema(&job.model.layers, &data.schema, Options::of(&job)).unwrap();
        let network = network.with_team(Team::shared(1, 1));
        let sampler = Sampler::new(&data.training, job.train.seed, job.train.global_batch);
        let slots = vec![vec![[0.0; 2]; network.layout().len()]; WORKERS];
        Reference { data, network, sampler, rule, slots, step: 0, rate: 0.1 }
    }

    fn initial(&self) -> Vec<f32> {
        let mut parameters = vec![0.0; self.network.layout().len()];
        self.network.initialize(thalweg_core::JobSpec::default().train.seed, &mut parameters);
        parameters
    }

    /// A step with the sum of all workers' gradients.
    fn reduce(&mut self, w: &mut [f32]) -> Result<()> {
        let mut batch = self.data.training.empty_batch();
        let (mut sum, mut gradient) = (vec![0.0; w.len()], vec![0.0; w.len()]);
        let (step, epoch) = (self.step, self.sampler.steps_per_epoch());
        for worker in 0..WORKERS {
            let all = self.sampler.rows(step / epoch, step % epoch);
            let (mine, scale) = (&all[even_range(all.len(), worker, WORKERS)], 1.0 / all.len() as f32);
            self.data.training.load(mine, step / epoch, &mut batch)?;
            self.network.gradient(w, &batch, scale, &mut gradient, &mut NoHooks)?;
            sum.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g);
        }
        for ((w, slots), g) in w.iter_mut().zip(&mut self.slots[0]).zip(&sum) {
            (self.rule)(*g, w, slots, step, self.rate);
        }
        let slots = self.slots[0].clone();
        self.slots.fill(slots);
        self.step += 1;
        Ok(())
    }

    /// The mean after `steps` local steps of all workers from `start`, with the slots of the round before, their mean or
    /// new ones.
    fn round(&mut self, start: &[f32], steps: u64, at_merge: OptimizerState) -> Result<Vec<f32>> {
        let (mut batch, mut gradient) = (self.data.training.empty_batch(), vec![0.0; start.len()]);
        let (mut mean, mut total) = (vec![0.0; start.len()], 0.0);
        let mut mean_slots = vec![[0.0; 2]; start.len()];
        for worker in 0..WORKERS {
            let (mut own, mut trained, slots) = (start.to_vec(), 0, &mut self.slots[worker]);
            if at_merge == Reset {
                slots.fill([0.0; 2]);
            }
            for done in 0..steps {
                let (step, epoch) = (self.step + done, self.sampler.steps_per_epoch());
                let all = self.sampler.rows(step / epoch, step % epoch);
                let mine = &all[even_range(all.len(), worker, WORKERS)];
                self.data.training.load(mine, step / epoch, &mut batch)?;
                let scale = 1.0 / mine.len() as f32;
                self.network.gradient(&own, &batch, scale, &mut gradient, &mut NoHooks)?;
                let updates = if at_merge == Reset { done } else { step };
                for ((w, slots), g) in own.iter_mut().zip(&mut *slots).zip(&gradient) {
                    (self.rule)(*g, w, slots, updates, self.rate);
                }
                trained += mine.len();
            }
            let weight = trained as f32 / (64 * steps) as f32;
            mean.iter_mut().zip(&own).for_each(|(sum, w)| *sum += weight * w);
            let own = mean_slots.as_flattened_mut().iter_mut().zip(slots.as_flattened());
            own.for_each(|(sum, slot)| *sum += weight * slot);
            total += weight;
        }
        mean.iter_mut().for_each(|sum| *sum /= total);
        mean_slots.as_flattened_mut().iter_mut().for_each(|sum| *sum /= total);
        if at_merge == Average {
            self.slots.fill(mean_slots);
        }
        self.step += steps;
        Ok(mean)
    }
}

/// Compares rounds of 4, 4 and 2 steps, of which the last one ends with the job: parameters are equal to the bit, as
/// a binomial tree of three adds in the order of ranks too.
fn assert_replayed(
    dials: &[&str],
    (optimizer, rule): (&str, Rule),
    mut merge: impl FnMut(&mut Reference, &mut Vec<f32>, u64),
) {
    let mut reference = Reference::new(rule);
    let mut w = reference.initial();
    for steps in [4, 4, 2] {
        merge(&mut reference, &mut w, steps);
    }
    let order = ["engine.threads=1", "strategy.exchange.algorithm=binomial-tree"];
    let settings = [optimizer, "train.max_steps=10", "strategy.merge.every=4"];
    let merged = trained(WORKERS, &[dials, &order, &settings].concat());
    assert_eq!(merged.len(), w.len());
    let different = merged.iter().zip(&w).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    assert_eq!(different, 0, "{dials:?}: parameters of {}, apart {:e}", w.len(), distance(&merged, &w));
}

/// MPCA-SGD with plain descent, rounds of 4, 4 and 2 steps: all models at once. The published model is their mean.
#[test]
fn mpca_sgd_follows_its_reference() {
    let (rho, gamma, rate) = (0.4, 0.5, 0.1);
    let mut reference = Reference::new(MOMENTUM.1);
    let initial = reference.initial();
    let mut w = vec![initial.clone(); WORKERS];
    let (mut mean, mut movement) = (initial.clone(), vec![0.0; initial.len()]);
    let (mut weights, mut gradient) = (vec![1.0; WORKERS], vec![0.0; initial.len()]);
    let mean_of = |w: &[Vec<f32>], weights: &[f32]| -> Vec<f32> {
        let sum = |index: usize| w.iter().zip(weights).map(|(w, weight)| weight * w[index]).sum::<f32>();
        (0..initial.len()).map(|index| sum(index) / weights.iter().sum::<f32>()).collect()
    };
    let Reference { data, network, sampler, .. } = &mut reference;
    let (mut batch, mut first) = (data.training.empty_batch(), 0);
    for tau in [4, 4, 2] {
        let summed = mean_of(&w, &weights);
        for (worker, w) in w.iter_mut().enumerate() {
            let mut rows = 0;
            for k in 0..tau {
                let all = sampler.rows(0, first + k);
                let mine = &all[even_range(all.len(), worker, WORKERS)];
                data.training.load(mine, 0, &mut batch).unwrap();
                let scale = 1.0 / mine.len() as f32;
                network.gradient(w, &batch, scale, &mut gradient, &mut NoHooks).unwrap();
                for (index, w) in w.iter_mut().enumerate() {
                    let ahead = gamma * (1.0 + k as f32 / tau as f32) * movement[index];
                    *w -= rate * (gradient[index] + rho * (*w - (mean[index] + ahead)));
                }
                rows += mine.len();
            }
            weights[worker] = rows as f32 / (64 * tau) as f32;
        }
        movement = summed.iter().zip(&mean).map(|(summed, mean)| summed - mean).collect();
        (mean, first) = (summed, first + tau);
    }
    let dials =
        ["strategy.preset=mpca-sgd", "strategy.merge.penalty=0.4", "strategy.merge.extrapolation=0.5"];
    let settings = [SGD, "engine.threads=1", "train.max_steps=10", "strategy.merge.every=4"];
    let trained = trained(WORKERS, &[&dials[..], &settings].concat());
    let (apart, moved) = (distance(&trained, &mean_of(&w, &weights)), distance(&trained, &initial));
    assert!(apart < 1e-4 * moved, "{apart:e} from the reference, after {moved}");
}

#[test]
fn mpca_sgd_resumes_and_learns() {
    let folder = tempfile::tempdir().unwrap();
    for (workers, steps) in [(3, 10), (3, 20), (5, 32), (1, 45)] {
        let steps = format!("train.max_steps={steps}");
        finish(workers, folder.path(), &["strategy.preset=mpca-sgd", "strategy.merge.every=5", &steps]);
    }
    assert_learns("strategy.preset=mpca-sgd");
}

#[test]
fn sparknet_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=sparknet"]);
    let preset = ["strategy.preset=sparknet"];
    assert_replayed(&preset, MOMENTUM, |reference, w, steps| *w = reference.round(w, steps, Keep).unwrap());
}

#[test]
fn merged_optimizer_state_follows_its_reference() {
    for (name, at_merge) in [("average", Average), ("reset", Reset)] {
        let dials = ["strategy.preset=sparknet", &format!("strategy.merge.optimizer_state={name}")];
        for rule in [MOMENTUM, ADAMW] {
            assert_replayed(&dials, rule, |reference, w, steps| {
                *w = reference.round(w, steps, at_merge).unwrap();
            });
        }
        assert_resumes(&dials);
    }
}

#[test]
fn sparknet_resumes_and_learns() {
    assert_resumes(&["strategy.preset=sparknet"]);
    assert_learns("strategy.preset=sparknet");
}

#[test]
fn block_momentum_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=block-momentum", "strategy.merge.momentum=0"]);
    let (eta, zeta) = ((1.0 - 1.0 / WORKERS as f64) as f32, 1.2);
    let mut d = Vec::new();
    let preset = ["strategy.preset=block-momentum", "strategy.merge.rate=1.2"];
    assert_replayed(&preset, MOMENTUM, |reference, w, steps| {
        d.resize(w.len(), 0.0);
        let start: Vec<f32> = w.iter().zip(&d).map(|(w, d)| w + eta * d).collect();
        let mean = reference.round(&start, steps, Reset).unwrap();
        for (((w, d), mean), start) in w.iter_mut().zip(&mut d).zip(mean).zip(start) {
            *d = eta * *d + zeta * (mean - start);
            *w += *d;
        }
    });
}

#[test]
fn block_momentum_resumes_and_learns() {
    assert_resumes(&["strategy.preset=block-momentum"]);
    assert_learns("strategy.preset=block-momentum");
}

#[test]
fn diloco_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=diloco", "strategy.merge.momentum=0", "strategy.merge.rate=1"]);
    let (mu, rate) = (0.9, 0.7);
    let mut v = Vec::new();
    assert_replayed(&["strategy.preset=diloco"], ADAMW, |reference, w, steps| {
        v.resize(w.len(), 0.0);
        let mean = reference.round(w, steps, Keep).unwrap();
        for ((w, v), mean) in w.iter_mut().zip(&mut v).zip(mean) {
            let gradient = *w - mean;
            *v = mu * *v + gradient;
            *w -= rate * (gradient + mu * *v);
        }
    });
}

#[test]
fn diloco_resumes_and_learns() {
    assert_resumes(&["strategy.preset=diloco"]);
    assert_learns("strategy.preset=diloco");
}

#[test]
fn slowmo_follows_its_reference() {
    let one = ["strategy.preset=slowmo", "strategy.merge.momentum=0", "strategy.merge.optimizer_state=keep"];
    assert_all_reduce(&one);
    // The rate changes from round to round.
    let schedule = "train.schedule={kind='step', step_every=4, gamma=0.5}";
    let preset = ["strategy.preset=slowmo", "strategy.merge.rate=0.9", schedule];
    let (beta, alpha) = (0.7, 0.9);
    let (mut u, mut rates) = (Vec::new(), [0.1, 0.05, 0.025].into_iter());
    assert_replayed(&preset, MOMENTUM, |reference, w, steps| {
        u.resize(w.len(), 0.0);
        reference.rate = rates.next().unwrap();
        let gamma = reference.rate;
        let mean = reference.round(w, steps, Reset).unwrap();
        for ((w, u), mean) in w.iter_mut().zip(&mut u).zip(mean) {
            *u = beta * *u + (*w - mean) / gamma;
            *w -= alpha * gamma * *u;
        }
    });
}

#[test]
fn slowmo_resumes_and_learns() {
    assert_resumes(&["strategy.preset=slowmo"]);
    assert_learns("strategy.preset=slowmo");
}

/// Four steps of an all-reduce of gradients, then two rounds.
#[test]
fn post_local_sgd_follows_its_reference() {
    assert_all_reduce(&["strategy.preset=post-local-sgd"]);
    assert_all_reduce(&["strategy.preset=post-local-sgd", "strategy.merge.start=1"]);
    let dials = ["strategy.preset=post-local-sgd", "strategy.merge.start=0.4"];
    for rule in [MOMENTUM, ADAMW] {
        assert_replayed(&dials, rule, |reference, w, steps| match reference.step {
            0 => (0..steps).for_each(|_| reference.reduce(w).unwrap()),
            _ => *w = reference.round(w, steps, Keep).unwrap(),
        });
    }
}

/// The phases follow the end of the job, which the halves do not share: each phase by itself.
#[test]
fn post_local_sgd_resumes_and_learns() {
    for start in ["0", "1"] {
        assert_resumes(&["strategy.preset=post-local-sgd", &format!("strategy.merge.start={start}")]);
    }
    assert_learns("strategy.preset=post-local-sgd");
}
