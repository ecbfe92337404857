//! GoSGD against a reference: what the workers of a simulated run do is recorded in the order in which it happens, and
//! done again by the few lines of the paper's pseudo-code.

use super::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::simulated::simulate;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::{Network as Simulated, SimulatedFault, SimulatedFaultKind};
use thalweg_core::event::Outcome;
use thalweg_core::spec::JobLayers;
use thalweg_core::{Batch, Hooks, JobSpec, Layout, Model, NoHooks, Schema, Tally};
use thalweg_data::Data;
use thalweg_graph::{Network, Options, Team};

/// What a worker has done; workers are named by member id.
pub(in crate::decentralized) enum Recorded {
    /// In a new group, with this weight and these parameters.
    Began(f64, Vec<f32>),
    Received(usize, f64),
    /// By the gradient of these rows.
    Updated(Vec<u64>),
    Sent(usize, f64),
    /// Met the others with this weight and these parameters.
    Met(f64, Vec<f32>),
}

/// The record of the one run that is watched: one simulated worker runs at a time.
static RECORD: Mutex<Option<Vec<(usize, Recorded)>>> = Mutex::new(None);

/// Lets one run be watched at a time.
static WATCH: Mutex<()> = Mutex::new(());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(in crate::decentralized) fn record(worker: usize, what: impl FnOnce() -> Recorded) {
    if let Some(record) = lock(&RECORD).as_mut() {
        record.push((worker, what()));
    }
}

pub(crate) struct Digits {
    pub(crate) job: JobSpec,
    /// Added to the initial parameters.
    pub(crate) offset: f32,
}

impl crate::JobComponents for Digits {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        Data::open(&job.data, job.train.seed)
    }

    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        let network = Network::for_schema(&self.job.model.layers, schema, Options::of(&self.job))?;
        Ok(Box::new(Moved { network: network.with_team(Arc::clone(team)), offset: self.offset }))
    }

    fn layers(&self, _: &Schema) -> Result<Vec<String>> {
        Ok(self.job.model.layers.clone())
    }
}

/// A network that begins elsewhere.
struct Moved {
    network: Network,
    offset: f32,
}

impl Model for Moved {
    fn layout(&self) -> &Layout {
        self.network.layout()
    }
    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        self.network.initialize(seed, parameters);
        parameters.iter_mut().for_each(|value| *value += self.offset);
    }
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.network.gradient(parameters, batch, scale, gradient, hooks)
    }
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        self.network.evaluate(parameters, batch)
    }
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.network.predict(parameters, batch, outputs)
    }
    fn flops_per_row(&self) -> u64 {
        self.network.flops_per_row()
    }
}

pub(in crate::decentralized) fn job(settings: &[&str]) -> JobSpec {
    let mut layers = JobLayers::default();
    let own = ["strategy.preset=gosgd", "train.optimizer={kind='sgd', lr=0.1}"];
    own.iter().chain(settings).for_each(|setting| layers.add_assignment(setting).expect("a setting"));
    crate::registry::resolve(layers).expect("a job").spec
}

/// What the workers did, the members that finished the job, and when. Worker i begins `i * offset` from the others.
pub(in crate::decentralized) fn gossip(
    job: &JobSpec,
    network: Simulated,
    faults: &[SimulatedFault],
    offset: f32,
) -> (Vec<(usize, Recorded)>, Vec<usize>, Duration) {
    let _watch = lock(&WATCH);
    let folder = tempfile::tempdir().expect("a folder");
    *lock(&RECORD) = Some(Vec::new());
    let deadline = Duration::from_secs(30);
    let limits = Limits { min: 1, max: 64, timeout: 10 * deadline, unit: u64::MAX };
    let config = MembershipConfig { elastic: true, limits, ..MembershipConfig::fixed(deadline) };
    let (ended, trace) = simulate(network, faults, &config, |rank| {
        let components = Digits { job: job.clone(), offset: offset * rank.index() as f32 };
        let assignment =
            crate::Assignment { job, components: &components, folder: folder.path(), resume: false };
        crate::run(rank, &assignment, None)
    });
    let record = lock(&RECORD).take().expect("a record");
    let finished = ended.iter().enumerate().filter(|(_, outcome)| match &outcome.result {
        Ok(outcome) => *outcome == Outcome::Completed,
        Err(error) => {
            let changes = ended.iter().flat_map(|ended| &ended.events);
            let changes: Vec<_> = changes.filter(|event| matches!(event, Event::Regrouped { .. })).collect();
            assert!(error.message.ends_with("was killed"), "{error}: {changes:#?}");
            false
        }
    });
    let span = trace.entries.last().map_or(Duration::ZERO, |entry| entry.time);
    (record, finished.map(|(rank, _)| rank).collect(), span)
}

/// What is in flight, by sender and receiver, in the order of sending.
type InFlight<T> = BTreeMap<(usize, usize), VecDeque<T>>;

/// The pseudo-code, for all workers.
#[derive(Default)]
struct Reference {
    /// Parameters and weight.
    workers: BTreeMap<usize, (Vec<f32>, f64)>,
    messages: InFlight<(Vec<f32>, f64)>,
}

impl Reference {
    fn receive(&mut self, i: usize, j: usize) -> f64 {
        let (theirs, a_j) = self.messages.get_mut(&(j, i)).and_then(VecDeque::pop_front).expect("a message");
        let (w_i, a_i) = self.workers.get_mut(&i).expect("a worker");
        let share = (a_j / (*a_i + a_j)) as f32;
        w_i.iter_mut().zip(theirs).for_each(|(own, theirs)| *own += share * (theirs - *own));
        *a_i += a_j;
        a_j
    }

    fn update(&mut self, i: usize, rate: f32, gradient: &[f32]) {
        let (w_i, _) = self.workers.get_mut(&i).expect("a worker");
        w_i.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= rate * gradient);
    }

    fn send(&mut self, i: usize, j: usize) -> f64 {
        let (w_i, a_i) = self.workers.get_mut(&i).expect("a worker");
        *a_i /= 2.0;
        self.messages.entry((i, j)).or_default().push_back((w_i.clone(), *a_i));
        *a_i
    }

    /// All weights, with those in flight, and those of or to these members alone.
    fn weights(&self, of: impl Fn(usize) -> bool) -> f64 {
        let held = self.workers.iter().filter(|(i, _)| of(**i)).map(|(_, (_, weight))| weight);
        let flying = self.messages.iter().filter(|((_, to), _)| of(*to)).flat_map(|(_, queue)| queue);
        held.sum::<f64>() + flying.map(|(_, weight)| weight).sum::<f64>()
    }
}

fn assert_equal(worker: usize, replayed: &[f32], parameters: &[f32]) {
    let worst = replayed.iter().zip(parameters).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-6, "worker {worker} is {worst} from the reference");
}

/// Replays a record of workers that stay; returns the number of messages in flight at a time, at most.
fn replay(job: &JobSpec, rate: f32, record: &[(usize, Recorded)]) -> (Reference, usize) {
    let data = Data::open(&job.data, job.train.seed).expect("rows");
    let mut model = Network::for_schema(&job.model.layers, &data.schema, Options::of(job)).expect("a model");
    let (mut batch, mut reference) = (data.training.empty_batch(), Reference::default());
    let (mut gradient, mut most) = (vec![0.0; model.layout().len()], 0);
    for (i, recorded) in record {
        match recorded {
            Recorded::Began(weight, parameters) => {
                reference.workers.insert(*i, (parameters.clone(), *weight));
            }
            Recorded::Received(j, weight) => assert_eq!(reference.receive(*i, *j), *weight),
            Recorded::Updated(rows) => {
                data.training.load(rows, 0, &mut batch).expect("rows");
                let at = &reference.workers[i].0;
                let scale = 1.0 / rows.len() as f32;
                model.gradient(at, &batch, scale, &mut gradient, &mut NoHooks).expect("a gradient");
                reference.update(*i, rate, &gradient);
            }
            Recorded::Sent(j, weight) => assert_eq!(reference.send(*i, *j), *weight),
            Recorded::Met(weight, parameters) => {
                let (replayed, held) = &reference.workers[i];
                assert_eq!(held, weight);
                assert_equal(*i, replayed, parameters);
            }
        }
        if reference.workers.len() == job.engine.workers {
            let sum = reference.weights(|_| true);
            assert!((sum - 1.0).abs() < 1e-12, "the weights add up to {sum}");
        }
        most = most.max(reference.messages.values().map(VecDeque::len).sum());
    }
    (reference, most)
}

#[test]
fn parameters_are_those_of_the_pseudo_code() {
    for (seed, latency) in [50, 5_000, 500_000].map(Duration::from_micros).into_iter().enumerate() {
        let job = job(&["train.epochs=6", "engine.workers=5", "strategy.gossip.probability=0.5"]);
        let network = Simulated { latency, jitter: 2.0, speed: 1e8, ..Simulated::ordinary(5, seed as u64) };
        let (record, finished, _) = gossip(&job, network, &[], 0.0);
        assert_eq!(finished.len(), 5);
        let count = |is: fn(&Recorded) -> bool| record.iter().filter(|(_, recorded)| is(recorded)).count();
        let messages = count(|recorded| matches!(recorded, Recorded::Received(..)));
        assert!(messages > 10, "{messages} messages");
        let (reference, in_flight) = replay(&job, 0.1, &record);
        assert!(in_flight > 1 && reference.messages.values().all(VecDeque::is_empty));
    }
}

#[test]
fn without_a_learning_rate_workers_with_different_models_agree_as_the_pseudo_code_does() {
    let mut job = job(&["train.epochs=6", "engine.workers=4", "strategy.gossip.probability=0.5"]);
    job.optimizer.lr = 0.0;
    let network = Simulated { speed: 1e8, ..Simulated::ordinary(4, 3) };
    let (record, finished, _) = gossip(&job, network, &[], 1.0);
    assert_eq!(finished.len(), 4);
    let (reference, _) = replay(&job, 0.0, &record);
    let spread = |workers: &BTreeMap<usize, (Vec<f32>, f64)>| {
        let first: Vec<f32> = workers.values().map(|(parameters, _)| parameters[0]).collect();
        first.iter().fold(f32::MIN, |most, value| most.max(*value))
            - first.iter().fold(f32::MAX, |least, value| least.min(*value))
    };
    assert!(spread(&reference.workers) < 1e-3, "{}", spread(&reference.workers));
    // The weighted mean stays where it was.
    let mean: f64 = reference.workers.values().map(|(w, a)| f64::from(w[0]) * a).sum();
    let began = record.iter().find_map(|(worker, recorded)| match recorded {
        Recorded::Began(_, parameters) if *worker == 0 => Some(f64::from(parameters[0])),
        _ => None,
    });
    assert!((mean - began.expect("a beginning") - 1.5).abs() < 1e-4, "{mean}");
}

/// Whoever is lost, with what was sent to it: the weights of the others add up to the rest. A new worker has half of its
/// giver's.
#[test]
fn weights_add_up_to_one_without_the_lost_mass() {
    let job = job(&["train.epochs=12", "engine.workers=4", "strategy.gossip.probability=0.5"]);
    let network = |seed| Simulated { speed: 1e7, ..Simulated::ordinary(4, seed) };
    let (_, _, span) = gossip(&job, network(0), &[], 0.0);
    for seed in 0..20 {
        let lost = seed as usize % 4;
        let faults = [
            SimulatedFault::at(
                span.mul_f64(0.2 + 0.01 * seed as f64),
                SimulatedFaultKind::Kill { rank: lost },
            ),
            SimulatedFault::at(span.mul_f64(0.5), SimulatedFaultKind::Join { rank: 4 }),
        ];
        let (record, finished, _) = gossip(&job, network(seed), &faults, 0.0);
        assert_eq!(
            finished,
            (0..5).filter(|rank| *rank != lost).collect::<Vec<_>>(),
            "seed {seed}, {span:?}"
        );
        let mut held: BTreeMap<usize, f64> = BTreeMap::new();
        let (mut in_flight, mut met): (InFlight<f64>, BTreeMap<usize, f64>) = Default::default();
        for (i, recorded) in &record {
            match recorded {
                Recorded::Began(weight, _) => drop(held.insert(*i, *weight)),
                Recorded::Received(j, weight) => {
                    assert_eq!(in_flight.get_mut(&(*j, *i)).and_then(VecDeque::pop_front), Some(*weight));
                    *held.entry(*i).or_default() += weight;
                }
                Recorded::Sent(j, weight) => {
                    *held.entry(*i).or_default() -= weight;
                    in_flight.entry((*i, *j)).or_default().push_back(*weight);
                }
                Recorded::Met(weight, _) => drop(met.insert(*i, *weight)),
                Recorded::Updated(_) => {}
            }
        }
        let stayed: BTreeSet<usize> = finished.iter().copied().collect();
        let rest: f64 = stayed.iter().map(|worker| met[worker]).sum();
        let gone: f64 =
            held.iter().filter(|(worker, _)| !stayed.contains(worker)).map(|(_, weight)| weight).sum();
        let lost: f64 = in_flight.values().flatten().sum();
        assert!(
            (rest + gone + lost - 1.0).abs() < 1e-12,
            "seed {seed}: {rest} of those that stay, {gone}, {lost}"
        );
    }
}

/// Of three workers two run at a time, as on two cores: the third stands still for about a hundred steps, each in turn. Weights
/// do not flow to where they are not trained: an update counts, on average, with 0.82 of a third of all weights. (0.756 when
/// a drawn worker was sent the parameters at once.) Some of the stops fall into evaluations.
#[test]
fn workers_that_stand_still_do_not_collect_the_weights() {
    let job = job(&["train.epochs=4", "train.global_batch=3", "engine.workers=3"]);
    let network = || Simulated { speed: 1e8, ..Simulated::ordinary(3, 5) };
    let updates = |record: &[(usize, Recorded)]| {
        record.iter().filter(|(_, recorded)| matches!(recorded, Recorded::Updated(_))).count()
    };
    let (record, _, span) = gossip(&job, network(), &[], 0.0);
    let slice = span.mul_f64(100.0 * 3.0 / updates(&record) as f64);
    let stops: Vec<SimulatedFault> = (1..100)
        .map(|turn| {
            let kind = SimulatedFaultKind::Stop { rank: turn as usize % 3, duration: slice };
            SimulatedFault::at(slice * turn, kind)
        })
        .collect();
    let (record, finished, _) = gossip(&job, network(), &stops, 0.0);
    assert_eq!(finished.len(), 3);
    let (mut held, mut effect) = (BTreeMap::<usize, f64>::new(), 0.0);
    for (i, recorded) in &record {
        match recorded {
            Recorded::Began(weight, _) => drop(held.insert(*i, *weight)),
            Recorded::Received(_, weight) => *held.entry(*i).or_default() += weight,
            Recorded::Sent(_, weight) => *held.entry(*i).or_default() -= weight,
            Recorded::Updated(_) => effect += held[i],
            Recorded::Met(..) => {}
        }
    }
    let effect = 3.0 * effect / updates(&record) as f64;
    assert!(effect > 0.8, "{effect}");
}

/// It gives weight away a third as often as the others, and gets as much as they do: the weight of a worker is as its steps
/// are long, so all have the same part in the mean.
#[test]
fn a_worker_that_is_three_times_slower_has_three_times_the_weight() {
    let job = job(&["train.epochs=100", "engine.workers=4", "engine.slow={ 2 = 3.0 }"]);
    let network = Simulated { speed: 1e8, ..Simulated::ordinary(4, 1) };
    let (record, finished, _) = gossip(&job, network, &[], 0.0);
    assert_eq!(finished.len(), 4);
    let (mut held, mut effect, mut updates) = ([0.25; 4], [0.0; 4], [0.0; 4]);
    for (i, recorded) in &record {
        match recorded {
            Recorded::Received(_, weight) => held[*i] += weight,
            Recorded::Sent(_, weight) => held[*i] -= weight,
            Recorded::Updated(_) => {
                effect[*i] += held[*i];
                updates[*i] += 1.0;
            }
            Recorded::Began(..) | Recorded::Met(..) => {}
        }
    }
    let others = |of: &[f64; 4]| (of[0] + of[1] + of[3]) / 3.0;
    let (steps, weight) = (others(&updates) / updates[2], effect[2] / updates[2]);
    assert!((2.5..3.1).contains(&steps), "{updates:?}");
    assert!((0.4..0.6).contains(&weight), "{weight}");
    assert!((0.8..1.25).contains(&(effect[2] / others(&effect))), "{effect:?}");
}
