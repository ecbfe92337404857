//! The law of sum-weight gossip, checked at every moment of a simulated run: the weights that the workers hold and those
//! in letters under way add up to 1.
//!
//! The account is kept from what is told and heard, letter by letter, not from what the workers believe; each time a
//! worker tells or meets the others, the weight it believes in is compared with the account.

use super::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::simulated::fixed_group;
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::event::Outcome;
use thalweg_core::spec::JobLayers;
use thalweg_core::{Job, JobSpec, Model, Schema};
use thalweg_data::Data;
use thalweg_graph::{Network, Options, Team};

/// Who holds how much, and which letters from and to whom are under way, in the order they were sent.
#[derive(Default)]
struct Account {
    held: BTreeMap<usize, f64>,
    under_way: BTreeMap<(usize, usize), Vec<f64>>,
    /// Moments at which all was added up, and those with a letter under way.
    moments: [u64; 2],
}

/// The account of the one run that is watched.
static ACCOUNT: Mutex<Option<Account>> = Mutex::new(None);

/// Books something and adds up all weights.
fn book(change: impl FnOnce(&mut Account)) {
    let mut account = ACCOUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(account) = account.as_mut() else { return };
    change(account);
    let letters = || account.under_way.values().flatten();
    let total: f64 = account.held.values().chain(letters()).sum();
    assert!((total - 1.0).abs() < 1e-12, "the weights add up to {total}");
    account.moments[0] += 1;
    account.moments[1] += u64::from(letters().count() > 0);
}

fn assert_held(account: &Account, worker: usize, believed: f64) {
    let held = account.held[&worker];
    assert!((held - believed).abs() < 1e-12, "worker {worker} believes in {believed}, but holds {held}");
}

/// A worker has sent this much, half of what it had.
pub(super) fn told(worker: usize, other: usize, weight: f64) {
    book(|account| {
        assert_held(account, worker, 2.0 * weight);
        *account.held.entry(worker).or_default() -= weight;
        account.under_way.entry((worker, other)).or_default().push(weight);
    });
}

/// A letter has arrived: the oldest of those under way between the two.
pub(super) fn heard(worker: usize, from: usize, weight: f64) {
    book(|account| {
        let letters = account.under_way.entry((from, worker)).or_default();
        assert!(!letters.is_empty(), "a letter that nobody sent");
        assert_eq!(letters.remove(0), weight, "from {from} to {worker}");
        *account.held.entry(worker).or_default() += weight;
    });
}

/// A worker meets the others: nothing to it is under way.
pub(super) fn meets(worker: usize, weight: f64) {
    book(|account| {
        assert_held(account, worker, weight);
        let to = account.under_way.iter().filter(|((_, to), _)| *to == worker);
        assert!(to.flat_map(|(_, letters)| letters).next().is_none(), "a letter to {worker} was forgotten");
    });
}

struct Digits(JobSpec);

impl crate::JobComponents for Digits {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        Data::open(&job.data, job.train.seed)
    }

    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        let network = Network::for_schema(&self.0.model.layers, schema, Options::of(&self.0))?;
        Ok(Box::new(network.with_team(Arc::clone(team))))
    }

    fn layers(&self, _: &Schema) -> Result<Vec<String>> {
        Ok(self.0.model.layers.clone())
    }
}

fn gossip(network: Simulated, folder: &Path) {
    let mut layers = JobLayers::default();
    let workers = format!("engine.workers={}", network.world);
    let dials = ["strategy.preset=gosgd", "train.epochs=4", "strategy.exchange.probability=0.5", &workers];
    dials.iter().for_each(|setting| layers.add_assignment(setting).expect("a setting"));
    let job = Job::resolve(layers).expect("a job").spec;
    let components = Digits(job.clone());
    let (ended, _) = fixed_group::simulate(network, &[], Duration::from_secs(30), |rank| {
        crate::run(
            rank,
            &crate::Assignment { job: &job, components: &components, folder, resume: false },
            None,
        )
    });
    for ended in ended {
        assert_eq!(ended.result, Ok(Outcome::Completed));
    }
}

#[test]
fn weights_add_up_to_one_at_every_moment_with_letters_under_way() {
    for (seed, latency) in [50, 5_000, 500_000].map(Duration::from_micros).into_iter().enumerate() {
        let world = 5;
        let held = (0..world).map(|worker| (worker, 1.0 / world as f64)).collect();
        *ACCOUNT.lock().expect("the account") = Some(Account { held, ..Account::default() });
        let folder = tempfile::tempdir().expect("a folder");
        let network = Simulated { latency, jitter: 2.0, ..Simulated::ordinary(world, seed as u64) };
        gossip(network, folder.path());
        let account = ACCOUNT.lock().expect("the account").take().expect("an account");
        assert!(account.under_way.values().all(Vec::is_empty), "a letter was never heard");
        let [all, busy] = account.moments;
        assert!(all > 50 && busy > all / 4, "{busy} of {all} moments had letters under way");
    }
}
