//! The invariant of sum-weight gossip, checked throughout a simulated run: the weights of the workers and those in
//! messages in flight add up to 1.
//!
//! The account is kept from messages sent and received; each time a worker sends or synchronizes, its own weight is
//! compared with the account.

use super::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::Network as Simulated;
use thalweg_core::event::Outcome;
use thalweg_core::spec::JobLayers;
use thalweg_core::{JobSpec, Model, Schema};
use thalweg_data::Data;
use thalweg_graph::{Network, Options, Team};

/// The weight of each worker, and the messages in flight by sender and receiver, in the order of sending.
#[derive(Default)]
struct Account {
    held: BTreeMap<usize, f64>,
    in_flight: BTreeMap<(usize, usize), Vec<f64>>,
    /// Checks, and those with a message in flight.
    moments: [u64; 2],
}

/// The account of the one run that is watched.
static ACCOUNT: Mutex<Option<Account>> = Mutex::new(None);

/// Books something and adds up all weights.
fn book(change: impl FnOnce(&mut Account)) {
    let mut account = ACCOUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(account) = account.as_mut() else { return };
    change(account);
    let messages = || account.in_flight.values().flatten();
    let total: f64 = account.held.values().chain(messages()).sum();
    assert!((total - 1.0).abs() < 1e-12, "the weights add up to {total}");
    account.moments[0] += 1;
    account.moments[1] += u64::from(messages().count() > 0);
}

fn assert_held(account: &Account, worker: usize, believed: f64) {
    let held = account.held[&worker];
    assert!((held - believed).abs() < 1e-12, "worker {worker} has the weight {believed}, the account {held}");
}

/// A worker has sent this weight, half of its own.
pub(super) fn sent(worker: usize, other: usize, weight: f64) {
    book(|account| {
        assert_held(account, worker, 2.0 * weight);
        *account.held.entry(worker).or_default() -= weight;
        account.in_flight.entry((worker, other)).or_default().push(weight);
    });
}

/// A message has arrived: the oldest of those in flight between the two.
pub(super) fn received(worker: usize, from: usize, weight: f64) {
    book(|account| {
        let messages = account.in_flight.entry((from, worker)).or_default();
        assert!(!messages.is_empty(), "a message that was not sent");
        assert_eq!(messages.remove(0), weight, "from {from} to {worker}");
        *account.held.entry(worker).or_default() += weight;
    });
}

/// A worker synchronizes: no message to it is in flight.
pub(super) fn synchronized(worker: usize, weight: f64) {
    book(|account| {
        assert_held(account, worker, weight);
        let to = account.in_flight.iter().filter(|((_, to), _)| *to == worker);
        assert!(
            to.flat_map(|(_, messages)| messages).next().is_none(),
            "a message to {worker} was forgotten"
        );
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
    let dials = ["strategy.preset=gosgd", "train.epochs=4", "strategy.gossip.probability=0.5", &workers];
    dials.iter().for_each(|setting| layers.add_assignment(setting).expect("a setting"));
    let job = crate::registry::resolve(layers).expect("a job").spec;
    let components = Digits(job.clone());
    let (ended, _) = simulate(network, &[], &MembershipConfig::fixed(Duration::from_secs(30)), |rank| {
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
fn weights_add_up_to_one_at_every_moment_with_messages_in_flight() {
    for (seed, latency) in [50, 5_000, 500_000].map(Duration::from_micros).into_iter().enumerate() {
        let world = 5;
        let held = (0..world).map(|worker| (worker, 1.0 / world as f64)).collect();
        *ACCOUNT.lock().expect("the account") = Some(Account { held, ..Account::default() });
        let folder = tempfile::tempdir().expect("a folder");
        let network = Simulated { latency, jitter: 2.0, ..Simulated::ordinary(world, seed as u64) };
        gossip(network, folder.path());
        let account = ACCOUNT.lock().expect("the account").take().expect("an account");
        assert!(account.in_flight.values().all(Vec::is_empty), "a message was never received");
        let [all, busy] = account.moments;
        assert!(all > 50 && busy > all / 4, "{busy} of {all} moments had messages in flight");
    }
}
