//! Shares in proportion to speed, as a pure decision: from the work of each worker and the time it took, to its share.
//!
//! Times differ from step to step, so they are taken over several steps and smoothed. Shares stay as they are until others
//! would be clearly better. All workers take the same decision, as they see the same numbers.

/// Steps between two decisions.
const EVERY: u32 = 8;
/// The weight of a newly measured speed against the smoothed one.
const FRESH: f64 = 0.5;
/// New shares must make a step at least this much shorter.
const GAIN: f64 = 0.05;

/// What is known of the workers' speeds, and the shares that follow from it.
#[derive(Clone, Debug)]
pub(crate) struct Speed {
    /// What shares are in proportion to.
    weights: Vec<f64>,
    /// Work per millisecond, smoothed; nothing as long as nothing was measured.
    speeds: Vec<Option<f64>>,
    /// Work and milliseconds since the last decision.
    lately: Vec<(f64, f64)>,
    steps: u32,
}

impl Speed {
    /// `workers` workers without measurements.
    pub(crate) fn unknown(workers: usize) -> Speed {
        Speed {
            weights: vec![1.0; workers],
            speeds: vec![None; workers],
            lately: vec![(0.0, 0.0); workers],
            steps: 0,
        }
    }

    /// The number of pieces of each worker.
    pub(crate) fn shares(&self, pieces: usize) -> Vec<usize> {
        apportion(pieces, &self.weights)
    }

    /// A step is done: how many pieces of work each worker had, and how long they took. Says whether shares change.
    pub(crate) fn observe(&mut self, pieces: &[usize], milliseconds: &[f32]) -> bool {
        for ((lately, pieces), milliseconds) in self.lately.iter_mut().zip(pieces).zip(milliseconds) {
            let milliseconds = f64::from(*milliseconds);
            if *pieces > 0 && milliseconds > 0.0 && milliseconds.is_finite() {
                lately.0 += *pieces as f64;
                lately.1 += milliseconds;
            }
        }
        self.steps += 1;
        if self.steps < EVERY {
            return false;
        }
        self.steps = 0;
        self.decide(pieces)
    }

    fn decide(&mut self, pieces: &[usize]) -> bool {
        for (speed, lately) in self.speeds.iter_mut().zip(&mut self.lately) {
            let (done, took) = std::mem::take(lately);
            if took > 0.0 {
                let measured = done / took;
                *speed = Some(speed.map_or(measured, |known| FRESH * measured + (1.0 - FRESH) * known));
            }
        }
        let known: Vec<f64> = self.speeds.iter().flatten().copied().collect();
        // A worker without work so far counts as an average one.
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        if known.is_empty() {
            return false;
        }
        let speeds: Vec<f64> = self.speeds.iter().map(|speed| speed.unwrap_or(mean)).collect();
        let total = pieces.iter().sum();
        let (now, then) =
            (longest(&self.shares(total), &speeds), longest(&apportion(total, &speeds), &speeds));
        let better = then < (1.0 - GAIN) * now;
        if better {
            self.weights = speeds;
        }
        better
    }
}

/// When the last worker is done.
fn longest(shares: &[usize], speeds: &[f64]) -> f64 {
    shares.iter().zip(speeds).map(|(share, speed)| *share as f64 / speed).fold(0.0, f64::max)
}

/// Divides `pieces` in proportion to weights, such that the last worker is done as early as possible. While there are
/// enough pieces, every worker gets one: without work it could not show that it has become faster.
fn apportion(pieces: usize, weights: &[f64]) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let least = usize::from(pieces >= weights.len());
    let floor = |weight: &f64| ((pieces as f64 * weight / total) as usize).clamp(least, pieces.max(least));
    let mut shares: Vec<usize> = weights.iter().map(floor).collect();
    let mut given: usize = shares.iter().sum();
    // The first of those that take longest, or would be done first.
    while given > pieces {
        let time = |place: usize| shares[place] as f64 / weights[place];
        let slowest = (0..shares.len())
            .filter(|&place| shares[place] > least)
            .reduce(|best, place| if time(place) > time(best) { place } else { best });
        let Some(slowest) = slowest else { break };
        shares[slowest] -= 1;
        given -= 1;
    }
    while given < pieces {
        let time = |place: usize| (shares[place] + 1) as f64 / weights[place];
        let first =
            (0..shares.len()).reduce(|best, place| if time(place) < time(best) { place } else { best });
        let Some(first) = first else { break };
        shares[first] += 1;
        given += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs steps on workers with these milliseconds per piece; returns the final shares, and how often they changed.
    fn run(
        pieces: usize,
        costs: &[f64],
        steps: usize,
        noise: impl Fn(usize, usize) -> f64,
    ) -> (Vec<usize>, usize) {
        let mut speed = Speed::unknown(costs.len());
        let mut changes = 0;
        for step in 0..steps {
            let shares = speed.shares(pieces);
            let time = |place: usize| (shares[place] as f64 * costs[place] * noise(step, place)) as f32;
            let times: Vec<f32> = (0..costs.len()).map(time).collect();
            changes += usize::from(speed.observe(&shares, &times));
        }
        (speed.shares(pieces), changes)
    }

    #[test]
    fn a_worker_three_times_slower_gets_a_third() {
        let (shares, changes) = run(64, &[1.0, 1.0, 3.0, 1.0], 100, |_, _| 1.0);
        assert_eq!((shares, changes), (vec![20, 19, 6, 19], 1));
        // Whole leaves: 30 milliseconds where even shares take 60.
        assert_eq!(run(8, &[10.0, 10.0, 30.0, 10.0], 100, |_, _| 1.0).0, [3, 2, 1, 2]);
    }

    #[test]
    fn equal_workers_keep_equal_shares_however_noisy() {
        let noise = |step: usize, place: usize| 1.0 + 0.2 * ((step * 7 + place * 13) % 10) as f64 / 10.0;
        assert_eq!(run(64, &[1.0; 4], 1000, noise), (vec![16; 4], 0));
    }

    #[test]
    fn a_worker_that_recovers_gets_its_share_back() {
        let mut speed = Speed::unknown(2);
        for step in 0..200 {
            let shares = speed.shares(60);
            let slow = if step < 100 { 4.0 } else { 1.0 };
            speed.observe(&shares, &[shares[0] as f32, slow * shares[1] as f32]);
            if step == 99 {
                assert_eq!(speed.shares(60), [48, 12]);
            }
        }
        assert!(speed.shares(60)[0].abs_diff(30) <= 1, "{:?}", speed.shares(60));
    }

    #[test]
    fn times_that_make_no_sense_change_nothing() {
        for time in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let mut speed = Speed::unknown(3);
            (0..50).for_each(|_| assert!(!speed.observe(&[5, 5, 5], &[time; 3])));
            assert_eq!(speed.shares(15), [5, 5, 5]);
        }
    }

    proptest! {
        #[test]
        fn shares_add_up_and_nobody_starves(
            pieces in 0usize..5000, weights in prop::collection::vec(1e-6f64..1e6, 1..40),
        ) {
            let shares = apportion(pieces, &weights);
            prop_assert_eq!(shares.iter().sum::<usize>(), pieces);
            prop_assert!(pieces < weights.len() || shares.iter().all(|share| *share >= 1));
        }

        #[test]
        fn they_come_near_to_the_best_there_is(
            pieces in 200usize..5000, costs in prop::collection::vec(1.0f64..8.0, 1..8),
        ) {
            let (shares, _) = run(pieces, &costs, 100, |_, _| 1.0);
            let speeds: Vec<f64> = costs.iter().map(|cost| 1.0 / cost).collect();
            let best = pieces as f64 / speeds.iter().sum::<f64>();
            // As near as the least gain, and one piece of the slowest.
            prop_assert!(longest(&shares, &speeds) <= best / (1.0 - GAIN) + 8.0, "{:?}", shares);
        }
    }
}
