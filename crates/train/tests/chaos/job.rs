//! The job that is trained under faults: small, but all of it real.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::simulated;
use thalweg_cluster::engine::threads::RankOutcome;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_comm::transport::sim::{Network, SimulatedFault, Trace};
use thalweg_core::batch::Targets;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::model::Hooks;
use thalweg_core::spec::JobLayers;
use thalweg_core::{Batch, JobSpec, Layout, Model, Result, Rng, Schema, Tally};
use thalweg_data::Data;
use thalweg_graph::{Network as Net, Options, Team};
use thalweg_train::registry;
use thalweg_train::{Assignment, JobComponents};

use crate::schedule::STEP_DEADLINE;

/// Few training rows, and enough validation rows that every rank evaluates a block of them.
const ROWS: usize = 448;
const VALIDATION: f64 = 0.86;
const WIDTH: usize = 4;
pub const EPOCHS: u64 = 10;

/// The result of a rank's program: its outcome, and the parameters it evaluated last.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub outcome: Outcome,
    pub parameters: Vec<u32>,
}

/// The result of a run.
pub struct Run {
    pub ended: Vec<RankOutcome<Finished>>,
    pub trace: Trace,
}

impl Run {
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.ended.iter().flat_map(|ended| &ended.events)
    }

    /// Loss and accuracy in the end.
    pub fn last(&self, metric: &str) -> Option<f64> {
        self.events().find_map(|event| match event {
            Event::Done { last, .. } => last.get(metric).copied(),
            _ => None,
        })
    }

    pub fn duration(&self) -> Duration {
        self.trace.entries.last().map_or(Duration::ZERO, |entry| entry.time)
    }
}

/// Sums differ by rounding from world to world.
static ORDINARY: LazyLock<&JobSpec> = LazyLock::new(|| job(&[]));
/// They do not.
static REPRODUCIBLE: LazyLock<&JobSpec> = LazyLock::new(|| job(&["train.reproducible=true"]));

/// An all-reduce.
pub fn ordinary() -> &'static JobSpec {
    *ORDINARY
}

/// The job with these settings beside its own.
pub fn job(more: &[&str]) -> &'static JobSpec {
    let mut layers = JobLayers::default();
    let epochs = format!("train.epochs={EPOCHS}");
    let own = [
        "model.layers=['dense 6 tanh', 'dense auto']",
        "train.global_batch=12",
        "train.optimizer={kind='momentum', lr=0.3}",
        "engine.threads=1",
        "engine.workers=4",
        "fault.checkpoint_every=0",
        // A new member receives the state in four steps.
        "fault.join_piece=96B",
        &epochs,
    ];
    for setting in own.iter().chain(more) {
        layers.add_assignment(setting).unwrap();
    }
    Box::leak(Box::new(registry::resolve(layers).unwrap().spec))
}

/// Points, and on which side of a bent surface they are.
static POINTS: LazyLock<(Vec<f32>, Vec<u32>)> = LazyLock::new(|| {
    let mut random = Rng::keyed(5, "points", &[]);
    let features: Vec<f32> = (0..ROWS * WIDTH).map(|_| random.below(2001) as f32 / 1000.0 - 1.0).collect();
    let side = |point: &[f32]| u32::from(point[0] + point[1] * point[1] > 0.3 + point[2] / 2.0);
    let classes = features.chunks(WIDTH).map(side).collect();
    (features, classes)
});

/// The parameters a rank has validated last.
type Seen = Arc<Mutex<Vec<u32>>>;

struct Points {
    job: &'static JobSpec,
    seen: Seen,
}

impl JobComponents for Points {
    fn data(&self, job: &JobSpec) -> Result<Data> {
        let (features, classes) = POINTS.clone();
        Data::in_memory(WIDTH, features, Targets::Classes(classes), VALIDATION, job.train.seed)
    }

    fn model(&self, schema: &Schema, team: &Arc<Team>) -> Result<Box<dyn Model>> {
        let net = Net::for_schema(&self.job.model.layers, schema, Options::of(self.job))?;
        Ok(Box::new(Observed { net: net.with_team(Arc::clone(team)), seen: Arc::clone(&self.seen) }))
    }
}

/// A network that remembers what it was evaluated at.
struct Observed {
    net: Net,
    seen: Seen,
}

impl Model for Observed {
    fn layout(&self) -> &Layout {
        self.net.layout()
    }
    fn initialize(&self, seed: u64, parameters: &mut [f32]) {
        self.net.initialize(seed, parameters);
    }
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        scale: f32,
        gradient: &mut [f32],
        hooks: &mut dyn Hooks,
    ) -> Result<Tally> {
        self.net.gradient(parameters, batch, scale, gradient, hooks)
    }
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Tally> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) =
            parameters.iter().map(|value| value.to_bits()).collect();
        self.net.evaluate(parameters, batch)
    }
    fn predict(&mut self, parameters: &[f32], batch: &Batch, outputs: &mut Vec<f32>) -> Result<()> {
        self.net.predict(parameters, batch, outputs)
    }
    fn flops_per_row(&self) -> u64 {
        self.net.flops_per_row()
    }
}

/// Trains on `world` simulated ranks with these faults. `prologue` runs on every rank's thread first.
pub fn run(seed: u64, world: usize, faults: &[SimulatedFault], prologue: impl Fn() + Sync) -> Run {
    run_job(*ORDINARY, seed, world, faults, prologue)
}

/// The same with sums that do not depend on the world.
pub fn run_reproducible(seed: u64, world: usize, faults: &[SimulatedFault]) -> Run {
    run_job(*REPRODUCIBLE, seed, world, faults, || ())
}

/// The same with any job.
pub fn run_job(
    job: &'static JobSpec,
    seed: u64,
    world: usize,
    faults: &[SimulatedFault],
    prologue: impl Fn() + Sync,
) -> Run {
    run_on(network(world, seed), job, faults, prologue)
}

/// Steps of some milliseconds, so that there is a moment for everything.
pub fn network(world: usize, seed: u64) -> Network {
    Network { latency: Duration::from_micros(500), jitter: 0.5, speed: 1e7, ..Network::ordinary(world, seed) }
}

/// The same on any network.
pub fn run_on(
    network: Network,
    job: &'static JobSpec,
    faults: &[SimulatedFault],
    prologue: impl Fn() + Sync,
) -> Run {
    let folder = folder();
    let rules = MembershipConfig {
        elastic: true,
        limits: Limits {
            min: 1 + registry::servers(job),
            max: 64,
            timeout: 10 * STEP_DEADLINE,
            unit: registry::steps_apart(job),
        },
        servers: registry::server_ids(job),
        step_deadline: STEP_DEADLINE,
        prepare_deadline: 2 * STEP_DEADLINE,
        epoch: 0.0,
    };
    let (ended, trace) = simulated::simulate(network, faults, &rules, |rank| {
        prologue();
        let components = Points { job, seen: Seen::default() };
        let assignment = Assignment { job, components: &components, folder: folder.path(), resume: false };
        let outcome = thalweg_train::run(rank, &assignment, None)?;
        let parameters = components.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Finished { outcome, parameters })
    });
    Run { ended, trace }
}

/// Where nothing has to wait for a disk, if there is such a place.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}
