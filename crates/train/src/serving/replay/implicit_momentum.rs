//! Asynchrony begets momentum (Mitliagkas et al. 2016, theorem 3): if the computation times of n workers are exponential,
//! the expected change of the parameters goes on as with a momentum of 1 - 1/n, at 1/n of the rate.
//!
//! The order of updates is that of simulated runs. In this order a quadratic function is descended, whose expected path
//! shows the momentum without noise of rows: `w = w - rate * (what the worker has read)`.

use super::{Recorded, Run, job, run};

/// Updates of a descent.
const LENGTH: usize = 80;
const RUNS: u64 = 6;

/// The ages of the updates of a run without those of its beginning, when all workers read the same.
fn ages(workers: usize, seed: u64) -> Vec<usize> {
    let job = job(&[
        "strategy.preset=parameter-server",
        "strategy.scheduling.kind=async",
        "train.epochs=1",
        "engine.jitter=1000",
        "engine.jitter_kind=exponential",
        &format!("train.seed={seed}"),
        &format!("train.global_batch={workers}"),
        &format!("engine.workers={workers}"),
    ]);
    let Run { record, .. } = run(&job, (0.0, seed), |_| 0.0);
    let age = |recorded: &Recorded| match recorded {
        Recorded::Applied { age, .. } => *age as usize,
        other => panic!("{other:?}"),
    };
    record.iter().map(age).skip(5 * workers).collect()
}

/// Momentum and rate that fit the mean path best: the least squares of `d[t + 1] = momentum * d[t] - rate * w[t]`.
fn fit(path: &[f64]) -> (f64, f64) {
    let (mut dd, mut dw, mut ww, mut next_d, mut next_w) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for three in path.windows(3) {
        let (d, w, next) = (three[1] - three[0], three[1], three[2] - three[1]);
        dd += d * d;
        dw -= d * w;
        ww += w * w;
        next_d += next * d;
        next_w -= next * w;
    }
    let determinant = dd * ww - dw * dw;
    ((next_d * ww - next_w * dw) / determinant, (next_w * dd - next_d * dw) / determinant)
}

#[test]
fn a_fit_finds_momentum_and_rate() {
    let mut path = vec![1.0, 0.9];
    for t in 1..40 {
        path.push(path[t] + 0.7 * (path[t] - path[t - 1]) - 0.02 * path[t]);
    }
    let (momentum, rate) = fit(&path);
    assert!((momentum - 0.7).abs() < 1e-9 && (rate - 0.02).abs() < 1e-9, "{momentum} {rate}");
}

#[test]
fn n_asynchronous_workers_have_the_momentum_of_theory() {
    for workers in [4, 16] {
        let n = workers as f64;
        let rate = 0.8 / n;
        let (mut path, mut count) = (vec![0.0; LENGTH + 1], 0.0);
        for seed in 0..RUNS {
            let ages = ages(workers, seed);
            for descent in (0..ages.len() - LENGTH).step_by(workers) {
                let mut w = vec![1.0];
                for (update, age) in ages[descent..descent + LENGTH].iter().enumerate() {
                    // Before the descent all was as at its beginning.
                    w.push(w[update] - rate * w[update.saturating_sub(*age)]);
                }
                path.iter_mut().zip(w).for_each(|(sum, w)| *sum += w);
                count += 1.0;
            }
        }
        path.iter_mut().for_each(|sum| *sum /= count);
        let (momentum, fitted) = fit(&path);
        println!(
            "{workers} workers: momentum {momentum:.3}, rate {fitted:.5} of {rate:.5}, {count} descents"
        );
        assert!((momentum - (1.0 - 1.0 / n)).abs() < 0.05, "{workers} workers: {momentum}");
        assert!((fitted / rate - 1.0 / n).abs() < 0.05, "{workers} workers: {fitted}");
    }
}
