//! What a strategy came to over its seeds: medians, the best learning rate, the ratio to one worker.

use super::figures::Figures;
use crate::view::formatting::headline;
use serde::Serialize;
use std::collections::BTreeMap;
use thalweg_core::event::Metrics;
use thalweg_core::report::Staleness;

/// One strategy of a comparison. Field names are the format of `--json`; numbers are medians over the seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) strategy: String,
    /// The simulated network, with `--networks`.
    pub(super) network: Option<&'static str>,
    pub(super) simulated: bool,
    /// Why the job refuses this strategy. Then there are no figures.
    pub(super) refused: Option<String>,
    pub(super) workers: usize,
    /// The preset fixes the number of workers.
    pub(super) own_workers: bool,
    /// The preset sets the optimizer.
    pub(super) own_optimizer: bool,
    /// Whether every strategy had the same grid of learning rates; this one's best factor of it.
    pub(super) rates_tuned: bool,
    pub(super) rate_factor: Option<f64>,
    pub(super) learning_rate: f64,
    pub(super) runs: usize,
    pub(super) failed: usize,
    pub(super) failure: Option<String>,
    /// Runs that reached the target.
    pub(super) reached: usize,
    /// None unless more than half of the runs reached it.
    pub(super) time_to_target_s: Option<f64>,
    pub(super) rows_to_target: Option<f64>,
    #[serde(rename = "final")]
    pub(super) last: Metrics,
    pub(super) wall_s: f64,
    pub(super) train_s: f64,
    pub(super) samples_per_s: f64,
    pub(super) steps: f64,
    pub(super) updates: f64,
    pub(super) staleness: Option<Ages>,
    pub(super) bytes_sent_per_worker: f64,
    pub(super) compute_share: f64,
    pub(super) exchange_share: f64,
    pub(super) wait_share: f64,
    pub(super) missed: f64,
    pub(super) repeated: f64,
    pub(super) dropped: f64,
    pub(super) steps_redone: f64,
    /// The time of one worker to the target, divided by this one's; the product of the next two.
    pub(super) speedup: Option<f64>,
    pub(super) rows_ratio: Option<f64>,
    pub(super) rows_per_s_ratio: Option<f64>,
    /// Smallest and largest value over the seeds.
    pub(super) spread: BTreeMap<&'static str, [f64; 2]>,
    /// Every rate that was tried.
    pub(super) rates: Vec<TriedRate>,
}

/// How old updates were: in updates of others, and in clocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Ages {
    pub(super) median: u64,
    pub(super) max: u64,
    pub(super) clocks: MedianAndMax,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MedianAndMax {
    pub(super) median: u64,
    pub(super) max: u64,
}

/// What one learning rate came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TriedRate {
    pub(super) factor: f64,
    pub(super) reached: usize,
    pub(super) failed: usize,
    pub(super) time_to_target_s: Option<f64>,
    #[serde(rename = "final")]
    pub(super) last: Metrics,
}

/// The median; of an even number the mean of the two in the middle. NaN without any.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// The median of what not every run has reached: those that have not count as later than all others. None if it is one of
/// them.
fn median_reached(values: Vec<Option<f64>>) -> Option<f64> {
    let median = median(values.into_iter().map(|value| value.unwrap_or(f64::INFINITY)).collect());
    median.is_finite().then_some(median)
}

impl Summary {
    /// Adds the figures of all seeds. A failed run has no figures of its own, and has not reached the target.
    pub(super) fn with(mut self, runs: &[Figures]) -> Summary {
        self.runs = runs.len();
        self.failed = runs.iter().filter(|run| run.failure.is_some()).count();
        self.failure = runs.iter().find_map(|run| run.failure.clone());
        self.reached = runs.iter().filter(|run| run.failure.is_none() && run.reached.is_some()).count();
        let ended: Vec<&Figures> = runs.iter().filter(|run| run.failure.is_none()).collect();
        let reached = |of: fn(&Figures) -> Option<f64>| {
            median_reached(runs.iter().map(|run| of(run).filter(|_| run.failure.is_none())).collect())
        };
        self.time_to_target_s = reached(|run| run.reached.as_ref().map(|at| at.train_s));
        self.rows_to_target = reached(|run| run.reached.as_ref().map(|at| at.rows as f64));
        if ended.is_empty() {
            return self;
        }
        let mut all = |name: &'static str, of: &dyn Fn(&Figures) -> f64| {
            let values: Vec<f64> = ended.iter().map(|run| of(run)).collect();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if !name.is_empty() {
                self.spread.insert(name, [least, most]);
            }
            median(values)
        };
        self.wall_s = all("", &|run| run.wall_s);
        self.train_s = all("train_s", &|run| run.train_s);
        self.samples_per_s = all("samples_per_s", &|run| run.rows / run.train_s.max(1e-9));
        self.steps = all("", &|run| run.steps as f64);
        self.updates = all("updates", &|run| run.updates as f64);
        self.bytes_sent_per_worker = all("bytes_sent_per_worker", &|run| run.bytes_sent);
        let share = |run: &Figures, of: usize| run.shares[of] / run.shares.iter().sum::<f64>().max(1e-9);
        self.compute_share = all("", &|run| share(run, 0));
        self.exchange_share = all("", &|run| share(run, 1));
        self.wait_share = all("", &|run| share(run, 2));
        self.missed = all("", &|run| run.missed as f64);
        self.repeated = all("", &|run| run.repeated as f64);
        self.dropped = all("", &|run| run.dropped as f64);
        self.steps_redone = all("", &|run| run.steps_redone as f64);
        if let Some((main, _)) = ended.first().and_then(|run| headline(&run.last)) {
            let main = main.to_string();
            all("final", &|run| run.last.get(&main).copied().unwrap_or(f64::NAN));
        }
        for name in ended.iter().flat_map(|run| run.last.keys()) {
            let values = ended.iter().filter_map(|run| run.last.get(name).copied()).collect();
            self.last.insert(name.clone(), median(values));
        }
        let times: Vec<f64> = ended.iter().filter_map(|run| Some(run.reached.as_ref()?.train_s)).collect();
        let rows: Vec<f64> = ended.iter().filter_map(|run| Some(run.reached.as_ref()?.rows as f64)).collect();
        for (name, values) in [("time_to_target_s", times), ("rows_to_target", rows)] {
            if let Some(least) = values.iter().copied().reduce(f64::min) {
                self.spread.insert(name, [least, values.into_iter().fold(least, f64::max)]);
            }
        }
        self.staleness = ages(&ended);
        self
    }

    /// The strategy at the best of its learning rates; each summary is of one.
    pub(super) fn best(tried: Vec<Summary>) -> Option<Summary> {
        let rates: Vec<TriedRate> = tried.iter().filter_map(TriedRate::of).collect();
        let better = |one: Summary, other: Summary| if other.is_better_than(&one) { other } else { one };
        Some(Summary { rates, ..tried.into_iter().reduce(better)? })
    }

    /// By seeds that reached the target, then by the time to it, then by the final metric.
    fn is_better_than(&self, other: &Summary) -> bool {
        let time = |of: &Summary| of.time_to_target_s.unwrap_or(f64::INFINITY);
        let last = |of: &Summary| match headline(&of.last) {
            Some(("accuracy", value)) => value,
            Some((_, value)) => -value,
            None => f64::NEG_INFINITY,
        };
        let order = self.reached.cmp(&other.reached);
        let order = order.then(other.failed.cmp(&self.failed));
        order.then(time(other).total_cmp(&time(self))).then(last(self).total_cmp(&last(other))).is_gt()
    }

    /// Adds the ratio to one worker.
    pub(super) fn compare_to(&mut self, single: &Summary) {
        let to_target = |of: &Summary| Some((of.time_to_target_s?, of.rows_to_target?));
        if let (Some((time, rows)), Some((single_time, single_rows))) = (to_target(self), to_target(single)) {
            self.speedup = Some(single_time / time);
            self.rows_ratio = Some(single_rows / rows);
            self.rows_per_s_ratio = Some(rows / time / (single_rows / single_time));
        }
    }
}

impl TriedRate {
    fn of(summary: &Summary) -> Option<TriedRate> {
        Some(TriedRate {
            factor: summary.rate_factor?,
            reached: summary.reached,
            failed: summary.failed,
            time_to_target_s: summary.time_to_target_s,
            last: summary.last.clone(),
        })
    }
}

/// Of the updates of all seeds.
fn ages(runs: &[&Figures]) -> Option<Ages> {
    let mut all: Option<Staleness> = None;
    for staleness in runs.iter().filter_map(|run| run.staleness.as_ref()) {
        all.get_or_insert_default().merge(staleness);
    }
    let all = all?;
    let (updates, clocks) = (median_and_max(&all.updates), median_and_max(&all.clocks));
    Some(Ages { median: updates.median, max: updates.max, clocks })
}

/// Of a histogram.
fn median_and_max(histogram: &[u64]) -> MedianAndMax {
    let (total, mut up_to) = (histogram.iter().sum::<u64>(), 0);
    let median = histogram.iter().position(|count| {
        up_to += count;
        2 * up_to >= total
    });
    let max = histogram.iter().rposition(|count| *count > 0);
    MedianAndMax { median: median.unwrap_or(0) as u64, max: max.unwrap_or(0) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::report::Evaluation;

    fn run(reached: Option<f64>, accuracy: f64) -> Figures {
        let metrics = Metrics::from([("accuracy".into(), accuracy)]);
        let at = |train_s: f64| Evaluation {
            step: 1,
            rows: 100 * train_s as u64,
            train_s,
            metrics: metrics.clone(),
        };
        Figures {
            reached: reached.map(at),
            last: metrics.clone(),
            train_s: 20.0,
            rows: 2000.0,
            shares: [6.0, 3.0, 1.0],
            ..Figures::default()
        }
    }

    fn summary(runs: &[Figures]) -> Summary {
        Summary::default().with(runs)
    }

    #[test]
    fn the_median_of_an_even_number_is_between() {
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn seeds_that_did_not_reach_the_target_count_as_late() {
        let two = summary(&[run(Some(4.0), 0.9), run(None, 0.8), run(Some(6.0), 0.91)]);
        assert_eq!((two.runs, two.reached, two.time_to_target_s), (3, 2, Some(6.0)));
        assert_eq!((two.rows_to_target, two.spread["time_to_target_s"]), (Some(600.0), [4.0, 6.0]));
        assert_eq!(two.last["accuracy"], 0.9);
        for runs in [vec![run(Some(4.0), 0.9), run(None, 0.8)], vec![run(None, 0.8)]] {
            assert_eq!(summary(&runs).time_to_target_s, None);
        }
        let shares = (two.compute_share, two.exchange_share, two.wait_share);
        assert_eq!((shares, two.samples_per_s), ((0.6, 0.3, 0.1), 100.0));
    }

    #[test]
    fn a_failed_run_has_not_reached_the_target_and_has_no_figures() {
        let failed = Figures { failure: Some("the loss is not finite".into()), ..run(Some(1.0), 0.1) };
        let one = summary(&[run(Some(4.0), 0.9), failed.clone()]);
        assert_eq!((one.reached, one.failed, one.time_to_target_s, one.last["accuracy"]), (1, 1, None, 0.9));
        let none = summary(&[failed]);
        assert_eq!((none.reached, none.last.len(), none.failure.is_some()), (0, 0, true));
    }

    #[test]
    fn the_best_rate_reaches_the_target_most_often_and_then_soonest() {
        let at =
            |factor, runs: &[Figures]| Summary { rate_factor: Some(factor), ..Summary::default() }.with(runs);
        let best = |tried: Vec<Summary>| Summary::best(tried).unwrap().rate_factor.unwrap();
        let slow = at(0.5, &[run(Some(9.0), 0.9), run(Some(9.0), 0.9)]);
        let fast = at(1.0, &[run(Some(4.0), 0.9), run(Some(5.0), 0.9)]);
        let rash = at(2.0, &[run(Some(1.0), 0.9), run(None, 0.5)]);
        assert_eq!(best(vec![slow.clone(), fast.clone(), rash.clone()]), 1.0);
        assert_eq!(best(vec![slow, rash]), 0.5);
        assert_eq!(best(vec![at(1.0, &[run(None, 0.8)]), at(2.0, &[run(None, 0.85)])]), 2.0);
        let tried = Summary::best(vec![fast.clone(), fast]).unwrap().rates;
        assert_eq!(tried.iter().map(|rate| rate.factor).collect::<Vec<_>>(), [1.0, 1.0]);
    }

    #[test]
    fn the_ratio_of_times_is_the_product_of_rows_and_of_rows_per_second() {
        let single = summary(&[run(Some(8.0), 0.9)]);
        let mut four = summary(&[run(Some(2.0), 0.9)]);
        four.rows_to_target = Some(1000.0);
        four.compare_to(&single);
        assert_eq!((four.speedup, four.rows_ratio, four.rows_per_s_ratio), (Some(4.0), Some(0.8), Some(5.0)));
        four.time_to_target_s = None;
        let mut never = Summary { speedup: None, rows_ratio: None, rows_per_s_ratio: None, ..four };
        never.compare_to(&single);
        assert_eq!(never.speedup, None);
    }

    #[test]
    fn ages_are_those_of_all_seeds() {
        let of = |updates: &[u64], clocks: &[u64]| Figures {
            staleness: Some(Staleness { updates: updates.to_vec(), clocks: clocks.to_vec() }),
            ..run(None, 0.5)
        };
        let ages = summary(&[of(&[5, 0, 1], &[6]), of(&[0, 9, 0, 0], &[4, 5])]).staleness.unwrap();
        assert_eq!((ages.median, ages.max), (1, 2));
        assert_eq!((ages.clocks.median, ages.clocks.max), (0, 1));
        assert_eq!(summary(&[run(None, 0.5)]).staleness, None);
    }

    /// Tools read these.
    #[test]
    fn the_keys_of_json_are_fixed() {
        let value = serde_json::to_value(summary(&[run(Some(4.0), 0.9)])).unwrap();
        for key in [
            "strategy",
            "runs",
            "reached",
            "time_to_target_s",
            "rows_to_target",
            "final",
            "wall_s",
            "samples_per_s",
            "updates",
            "staleness",
            "bytes_sent_per_worker",
            "compute_share",
            "exchange_share",
            "wait_share",
            "missed",
            "repeated",
            "dropped",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
    }
}
