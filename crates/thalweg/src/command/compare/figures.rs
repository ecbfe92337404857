//! What one run came to: the sum of its parts, as an interrupted run goes on in another.

use std::collections::BTreeMap;
use thalweg_core::JobSpec;
use thalweg_core::event::{Metrics, Outcome};
use thalweg_core::report::{Evaluation, RankReport, Report, Staleness};
use thalweg_train::roles::Roles;

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) seed: u64,
    /// Why it failed, if it did.
    pub(super) failure: Option<String>,
    /// The first evaluation that reached the target.
    pub(super) reached: Option<Evaluation>,
    pub(super) last: Metrics,
    pub(super) evaluations: Vec<Evaluation>,
    pub(super) wall_s: f64,
    pub(super) train_s: f64,
    pub(super) rows: f64,
    pub(super) steps: u64,
    /// Commit units.
    pub(super) updates: u64,
    pub(super) staleness: Option<Staleness>,
    /// Mean over the workers.
    pub(super) bytes_sent: f64,
    /// Seconds of all workers: computing, exchanging, waiting.
    pub(super) shares: [f64; 3],
    pub(super) missed: u64,
    pub(super) repeated: u64,
    pub(super) dropped: u64,
    pub(super) steps_redone: u64,
}

impl Figures {
    /// Of a run that ended, from the reports of its parts in their order.
    pub(super) fn of(job: &JobSpec, parts: &[Report]) -> Figures {
        let mut figures = Figures { seed: job.train.seed, ..Figures::default() };
        parts.iter().for_each(|part| figures.add(job, part));
        figures.reached = figures.evaluations.iter().find(|at| reaches(job, &at.metrics)).cloned();
        figures
    }

    /// Adds what a part did, and takes over what its report says of the whole run.
    fn add(&mut self, job: &JobSpec, part: &Report) {
        let roles = Roles::of(job);
        let workers: Vec<&RankReport> = part.ranks.iter().filter(|rank| !roles.serves(rank.rank)).collect();
        let total = |of: fn(&RankReport) -> f64| workers.iter().map(|rank| of(rank)).sum::<f64>();
        self.wall_s += part.wall_s;
        self.train_s += part.train_s;
        self.rows += part.samples_per_s * part.train_s;
        self.updates += part.units;
        self.bytes_sent += total(|rank| rank.bytes_sent as f64) / job.engine.workers.max(1) as f64;
        let seconds: [fn(&RankReport) -> f64; 3] =
            [|rank| rank.compute_s, |rank| rank.exchange_s, |rank| rank.wait_s];
        for (sum, of) in self.shares.iter_mut().zip(seconds) {
            *sum += total(of);
        }
        if let Some(staleness) = &part.staleness {
            self.staleness.get_or_insert_default().merge(staleness);
        }
        // Of all parts so far.
        self.steps = part.steps;
        self.last.clone_from(&part.last);
        self.evaluations.clone_from(&part.evaluations);
        self.missed = part.audit.iter().map(|audit| audit.missed).sum();
        self.repeated = part.audit.iter().map(|audit| audit.repeated).sum();
        self.dropped = part.audit.iter().map(|audit| audit.dropped).sum();
        self.steps_redone = part.failures.iter().map(|failure| failure.steps_redone).sum();
        self.failure = (part.outcome == Outcome::Failed).then(|| match &part.error {
            Some(error) => error.message.clone(),
            None => "failed".into(),
        });
    }
}

/// Whether metrics reach the target; false without one.
fn reaches(job: &JobSpec, metrics: &Metrics) -> bool {
    let (accuracy, loss) = (job.target.accuracy, job.target.loss);
    let is = |name: &str| metrics.get(name).copied();
    (accuracy.is_some() || loss.is_some())
        && accuracy.is_none_or(|least| is("accuracy").is_some_and(|is| is >= least))
        && loss.is_none_or(|most| is("loss").is_some_and(|is| is <= most))
}

/// The values of a job as a report has them.
pub(super) fn values(job: &JobSpec) -> BTreeMap<String, serde_json::Value> {
    let value = |value| serde_json::to_value(value).unwrap_or_default();
    job.values().into_iter().map(|(key, is)| (key, value(is))).collect()
}
