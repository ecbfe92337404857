//! Elastic averaging: centre and workers, with their velocities; what merges alone do.

use super::{RATE, Recorded, Replay, Run, different, job, run};
use std::collections::BTreeSet;
use thalweg_core::JobSpec;
use thalweg_data::{Sampler, even_range};

const EASGD: [&str; 2] = ["strategy.preset=easgd", "train.optimizer={kind='sgd', lr=0.05}"];
/// Nesterov momentum in PyTorch's form.
const EAMSGD: [&str; 2] =
    ["strategy.preset=eamsgd", "train.optimizer={kind='nesterov', lr=0.05, momentum=0.9}"];
const SYNCHRONOUS: &str = "strategy.scheduling.kind=bsp";
const WORKERS: usize = 4;
/// min(0.9/n, 1/2), and the centre's.
const ALPHA: f32 = 0.225;

/// A worker's model and velocity.
#[derive(Clone)]
struct Worker {
    w: Vec<f32>,
    v: Vec<f32>,
}

impl Worker {
    fn at(w: &[f32]) -> Worker {
        Worker { w: w.to_vec(), v: vec![0.0; w.len()] }
    }

    /// A local step: the mean gradient of these rows.
    fn step(&mut self, replay: &mut Replay, rows: &[u64], momentum: f32) {
        let gradient = replay.gradient(&self.w, rows, rows.len());
        for ((w, v), g) in self.w.iter_mut().zip(&mut self.v).zip(gradient) {
            *v = momentum * *v + g;
            *w -= RATE * (g + momentum * *v);
        }
    }
}

/// A job of each variant, with its momentum.
fn variants(more: &[&str]) -> [(JobSpec, f32); 2] {
    [(EASGD, 0.0), (EAMSGD, 0.9)].map(|(preset, momentum)| {
        let own = ["strategy.merge.every=3", "train.epochs=3", "engine.workers=4"];
        (job(&[&preset[..], &own, more].concat()), momentum)
    })
}

/// Replays a job; `alpha` gives the rate of a worker's merge from the norms of its differences so far.
fn assert_replayed(job: &JobSpec, momentum: f32, beta: f32, alpha: impl Fn(&[f64]) -> f32) {
    let Run { record, parameters, .. } = run(job, (2.0, 2), |_| 0.0);
    let mut replay = Replay::of(job);
    let mut centre = replay.initial.clone();
    let mut workers = vec![Worker::at(&centre); WORKERS];
    let mut norms = vec![Vec::new(); WORKERS];
    for recorded in &record {
        let Recorded::Applied { member, pieces, .. } = recorded else { panic!("{recorded:?}") };
        let worker = &mut workers[*member];
        pieces.iter().for_each(|(rows, _)| worker.step(&mut replay, rows, momentum));
        let differences: Vec<f32> = worker.w.iter().zip(&centre).map(|(w, c)| w - c).collect();
        norms[*member].push(differences.iter().map(|d| f64::from(*d).powi(2)).sum::<f64>().sqrt());
        let alpha = alpha(&norms[*member]);
        for ((w, c), difference) in worker.w.iter_mut().zip(&mut centre).zip(differences) {
            *c += beta * difference;
            *w -= alpha * difference;
        }
    }
    assert!(record.len() > 50, "{} merges", record.len());
    assert_eq!(different(&centre, &parameters), 0, "momentum {momentum}");
}

#[test]
fn elastic_averaging_follows_its_reference() {
    for (job, momentum) in variants(&[]) {
        assert_replayed(&job, momentum, ALPHA, |_| ALPHA);
    }
}

#[test]
fn an_adaptive_alpha_follows_its_reference() {
    let preset = ["strategy.preset=deepspark", "train.optimizer={kind='sgd', lr=0.05}"];
    let own = ["strategy.merge.every=3", "train.epochs=3", "engine.workers=4"];
    let job = job(&[&preset[..], &own].concat());
    assert_replayed(&job, 0.0, ALPHA / 2.0, |norms| {
        let earlier = norms[..norms.len() - 1].iter();
        let usual = earlier.fold(norms[0], |usual, norm| 0.9 * usual + 0.1 * norm);
        (0.225 * norms[norms.len() - 1] / usual).clamp(0.1125, 0.5) as f32
    });
}

#[test]
fn synchronous_elastic_averaging_follows_its_reference() {
    for (job, momentum) in variants(&[SYNCHRONOUS]) {
        let Run { record, parameters, .. } = run(&job, (8.0, 3), |_| 0.0);
        let mut replay = Replay::of(&job);
        let mut sampler = Sampler::new(&replay.data.training, job.train.seed, job.train.global_batch);
        let (steps, mut next) = (sampler.steps_per_epoch(), 0);
        let mut centre = replay.initial.clone();
        let mut workers = vec![Worker::at(&centre); WORKERS];
        let (mut arrived, mut orders) = (Vec::new(), BTreeSet::new());
        for recorded in &record {
            let Recorded::AppliedAll { step, pushed, published } = recorded else {
                let Recorded::Arrived(member) = recorded else { panic!("{recorded:?}") };
                arrived.push(*member);
                continue;
            };
            orders.insert(std::mem::take(&mut arrived));
            assert_eq!(*step, next);
            // A round ends with its epoch.
            let end = (next + 3).min((next / steps + 1) * steps);
            let mut sum = vec![0.0; centre.len()];
            for (i, worker) in workers.iter_mut().enumerate() {
                for step in next..end {
                    let rows = sampler.rows(step / steps, step % steps);
                    let mine = &rows[even_range(rows.len(), i, WORKERS)];
                    worker.step(&mut replay, mine, momentum);
                }
                assert_eq!(different(&worker.w, &pushed[i]), 0, "worker {i} at step {end}");
                for ((w, c), sum) in worker.w.iter_mut().zip(&centre).zip(&mut sum) {
                    *sum += *w - c;
                    *w -= ALPHA * (*w - c);
                }
            }
            centre.iter_mut().zip(sum).for_each(|(c, sum)| *c += ALPHA * sum);
            assert_eq!(different(&centre, published), 0, "the centre after step {end}");
            next = end;
        }
        assert_eq!(next, 3 * steps);
        assert!(orders.len() > 5, "models arrive in the orders {orders:?}");
        assert_eq!(different(&centre, &parameters), 0, "momentum {momentum}");
    }
}

/// A job that learns nothing.
fn merges(workers: usize, more: &[&str]) -> JobSpec {
    let own = ["strategy.merge.every=2", "train.epochs=3", &format!("engine.workers={workers}")];
    let mut job = job(&[&EASGD[..], &own, more].concat());
    job.optimizer.lr = 0.0;
    job
}

/// Models and centre: the first element of each, which stands for all.
struct Elements {
    workers: Vec<f64>,
    centre: f64,
}

impl Elements {
    /// Their distance from where they meet.
    fn spread(&self) -> f64 {
        let all = || self.workers.iter().chain([&self.centre]);
        let mean = all().sum::<f64>() / all().count() as f64;
        all().map(|value| (value - mean).powi(2)).sum::<f64>().sqrt()
    }

    /// `beta * sum of w_i + alpha * c`, over alpha = beta.
    fn weighted_sum(&self) -> f64 {
        self.workers.iter().sum::<f64>() + self.centre
    }
}

/// What each synchronous merge begins with: the models that were pushed, and the centre before them. Workers begin at
/// these offsets, the centre at the last.
fn synchronous_merges(job: &JobSpec, offsets: &[f32]) -> Vec<Elements> {
    let Run { record, .. } = run(job, (2.0, 5), |rank| offsets[rank]);
    let workers = offsets.len() - 1;
    let mut centre = f64::from(Replay::of(job).initial[0] + offsets[workers]);
    let merges = record.iter().filter_map(|recorded| match recorded {
        Recorded::AppliedAll { pushed, published, .. } => {
            let workers = pushed.iter().map(|model| f64::from(model[0])).collect();
            Some(Elements { workers, centre: std::mem::replace(&mut centre, f64::from(published[0])) })
        }
        _ => None,
    });
    merges.collect()
}

/// Differences among workers shrink by 1 - alpha in each merge, those between the workers' mean and the centre by
/// |1 - (n + 1) alpha|, and all others by no less than the slower of both.
#[test]
fn synchronous_merges_contract_at_their_rate_and_conserve_the_weighted_sum() {
    // Offsets of workers and centre: of workers alone, of the centre alone, of all.
    let cases: [(f64, &[f32], bool, bool); 8] = [
        (0.3, &[2.0, 0.0], true, true),
        (0.5, &[2.0, 0.0], true, true),
        (0.45, &[4.0, -4.0, 0.0], true, false),
        (0.3, &[1.0, 1.0, 1.0, 5.0], false, true),
        (0.25, &[3.0, -1.0, 0.0, -2.0, 0.0], true, false),
        (0.225, &[0.0, 0.0, 0.0, 0.0, 8.0], false, true),
        (0.15, &[1.0, 4.0, -3.0, 6.0, 0.0], true, true),
        (0.2, &[1.0, 4.0, -3.0, 6.0, 0.5, 3.0], true, true),
    ];
    for (alpha, offsets, among_workers, with_centre) in cases {
        let n = offsets.len() - 1;
        let job = merges(n, &[SYNCHRONOUS, &format!("strategy.merge.alpha={alpha}")]);
        let merges = synchronous_merges(&job, offsets);
        let rates = (1.0 - alpha, (1.0 - (n as f64 + 1.0) * alpha).abs());
        let rate = match (n, among_workers, with_centre) {
            (1, ..) | (_, false, true) => rates.1,
            (_, true, false) => rates.0,
            _ => rates.0.max(rates.1),
        };
        let (first, mut checked) = (&merges[0], 0);
        for pair in merges.windows(2) {
            let [before, after] = [pair[0].spread(), pair[1].spread()];
            let sum = pair[1].weighted_sum();
            assert!((sum - first.weighted_sum()).abs() < 1e-4, "{alpha}, {offsets:?}: {sum}");
            // Until rounding is all that is left.
            if before > 0.05 {
                let contraction = after / before;
                let bound = rate + 1e-4;
                assert!(contraction <= bound, "{alpha}, {offsets:?}: {contraction} instead of {rate}");
                // One direction alone, or the slower one once the other has died down.
                if n == 1 || among_workers != with_centre || checked > 8 {
                    assert!(contraction >= rate - 1e-3, "{alpha}, {offsets:?}: {contraction}, not {rate}");
                }
                checked += 1;
            }
        }
        assert!(checked > 0 && merges.last().expect("a merge").spread() < 0.05, "{alpha}, {offsets:?}");
    }
}

/// Asynchronously too, whatever the rate of the centre; and they come together.
#[test]
fn asynchronous_merges_conserve_the_weighted_sum() {
    for (alpha, beta) in [(0.3, 0.3), (0.5, 0.1)] {
        let rates = [format!("strategy.merge.alpha={alpha}"), format!("strategy.merge.beta={beta}")];
        let job = merges(3, &[&rates[0], &rates[1]]);
        let offsets = [0.0, 1.0, 2.0, 3.0];
        let Run { record, parameters, .. } = run(&job, (2.0, 5), |rank| offsets[rank]);
        let initial = Replay::of(&job).initial[0];
        let mut values = offsets.map(|offset| f64::from(initial + offset));
        let conserved = |values: &[f64; 4]| beta * values[..3].iter().sum::<f64>() + alpha * values[3];
        let before = conserved(&values);
        for recorded in &record {
            let Recorded::Applied { member, .. } = recorded else { panic!("{recorded:?}") };
            let difference = values[*member] - values[3];
            values[3] += beta * difference;
            values[*member] -= alpha * difference;
        }
        assert!((conserved(&values) - before).abs() < 1e-9, "the reference itself");
        let meeting = before / (3.0 * beta + alpha);
        assert!(values.iter().all(|value| (value - meeting).abs() < 1e-2), "{values:?} at {meeting}");
        assert!((f64::from(parameters[0]) - values[3]).abs() < 1e-4, "{} and {values:?}", parameters[0]);
    }
}
