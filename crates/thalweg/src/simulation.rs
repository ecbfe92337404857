//! `engine.kind = "sim"`: all ranks of a job in this process, on a simulated network and in virtual time.
//!
//! The training is real; only time is simulated, from the network's figures and the floating-point operations of each
//! step. Events have the times of the simulation. Faults of `fault.inject` and of `thalweg chaos` strike ranks, and the
//! others go on as in a job of processes; workers that join come from a reserve. Two runs of a job give the
//! same model, byte for byte, and the same `trace.txt`.

use crate::components::OpenedData;
use crate::launch::{as_rank_failure, lock};
use crate::results::Results;
use crate::signals::Signals;
use crate::trainer::{RunResult, Trainer};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thalweg_cluster::RankStatus;
use thalweg_cluster::engine::environment::RankEnvironment;
use thalweg_cluster::engine::local::LaunchAction;
use thalweg_cluster::engine::simulated::simulate_observed;
use thalweg_cluster::engine::threads::RankObserver;
use thalweg_cluster::interruption::{Interruption, Request};
use thalweg_cluster::membership::Limits;
use thalweg_cluster::membership_policy::MembershipConfig;
use thalweg_cluster::session::unix_time;
use thalweg_cluster::sim::{LinkParameters, Network, SimulationControl, Trace};
use thalweg_core::event::{Event, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::spec::inject::FaultKind;
use thalweg_core::spec::links::LinkSpecs;
use thalweg_core::{Error, JobSpec, Kind, Result};
use thalweg_train::Assignment;
use thalweg_train::registry;

/// Trace of the simulated network in the run folder.
pub const TRACE: &str = "trace.txt";

/// Simulated ranks are there at once, so it only matters for `fault.min_workers`.
const JOIN_DEADLINE: Duration = Duration::from_secs(30);

/// Runs all ranks until the job ends.
pub fn run(trainer: &Trainer, job: &Job, rank_env: Option<&RankEnvironment>) -> Result<RunResult> {
    check_supported(trainer, rank_env)?;
    let signals = Signals::install()?;
    let (results, checked) = Results::open(trainer, job, &signals)?;
    let (folder, resume) = (results.folder.path.clone(), results.folder.resumes);
    let shared = Arc::new(SharedResults { results: Mutex::new(Some(results)), view_error: Mutex::new(None) });
    let config = membership(&job.spec);
    let (name, strategy) = (trainer.name.clone(), job.spec.strategy.preset.clone());
    let event = Event::Launched { name, workers: job.spec.engine.workers, strategy };
    shared.record(&Record { time: config.epoch, rank: None, event });
    let reserved = trainer.director.as_ref().map_or(0, |director| lock(director).max_started());
    let rank_statuses: Vec<Arc<RankStatus>> =
        (0..registry::ranks(&job.spec) + reserved).map(|_| RankStatus::new()).collect();
    forward_signals(&signals, &rank_statuses, &shared);
    let components = &trainer.components;
    let observer = |rank: usize, simulation: &SimulationControl| {
        let (results, simulation, epoch) = (Arc::clone(&shared), simulation.clone(), config.epoch);
        let director = trainer.director.clone().map(|control| (control, rank_statuses.clone()));
        let emit = move |event| {
            let time = epoch + simulation.now().as_secs_f64();
            let record = Record { time, rank: Some(rank), event };
            results.record(&record);
            if let Some((control, rank_statuses)) = &director {
                let actions = lock(control).on_record(&record);
                actions.into_iter().for_each(|action| act(action, rank_statuses, &simulation));
            }
        };
        RankObserver { emit: Arc::new(emit), rank_status: Arc::clone(&rank_statuses[rank]) }
    };
    let (ended, trace) = simulate_observed(network(&job.spec), (&[], reserved), &config, &observer, |rank| {
        let components = OpenedData::shared(components, &checked.data);
        thalweg_train::run(
            rank,
            &Assignment { job: &job.spec, components: &components, folder: &folder, resume },
            None,
        )
    });
    let written = write_trace(&trace, &folder);
    let code = |outcome| if outcome == Outcome::Interrupted { signals.code() } else { 0 };
    let ended = job_outcome(ended).map(code).map_err(as_rank_failure);
    let (results, view_error) = shared.take()?;
    results.close(view_error.map_or(ended, Err).and_then(|code| written.map(|()| code)))
}

/// Refuses jobs that cannot be simulated.
fn check_supported(trainer: &Trainer, rank_env: Option<&RankEnvironment>) -> Result<()> {
    let sim = "engine.kind = \"sim\"";
    if let Some(rank_env) = rank_env {
        return Err(Error::job(format!(
            "{sim} is all ranks in one process, but {} started this",
            rank_env.launcher
        ))
        .hint("run it by itself: `thalweg train`"));
    }
    if trainer.nodes.is_some() {
        return Err(Error::job(format!("{sim} is all ranks in one process: it has no hosts to share")));
    }
    Ok(())
}

/// What the job asks of its group.
fn membership(job: &JobSpec) -> MembershipConfig {
    let limits = Limits {
        min: job.fault.min_workers + registry::servers(job),
        max: job.fault.max_workers.or(usize::MAX).saturating_add(registry::servers(job)),
        timeout: job.fault.join_deadline.or(JOIN_DEADLINE),
        unit: registry::steps_apart(job),
    };
    MembershipConfig {
        elastic: registry::is_elastic(job),
        limits,
        servers: registry::server_ids(job),
        step_deadline: job.fault.step_deadline,
        prepare_deadline: job.fault.prepare_deadline,
        epoch: unix_time(),
    }
}

/// The simulated network of a job's `[network]` section.
fn network(job: &JobSpec) -> Network {
    Network {
        world: registry::ranks(job),
        latency: job.network.latency,
        jitter: job.network.variation,
        bandwidth: job.network.bandwidth.0 as f64,
        half_duplex: job.network.half_duplex,
        links: links(&job.network.links),
        speed: job.network.speed,
        buffered: true,
        seed: job.train.seed,
    }
}

/// Links with their own latency or bandwidth; of several entries for a link the last counts.
fn links(listed: &LinkSpecs) -> BTreeMap<(usize, usize), LinkParameters> {
    let mut links: BTreeMap<(usize, usize), LinkParameters> = BTreeMap::new();
    for entry in &listed.0 {
        for pair in entry.pairs() {
            let link = links.entry(pair).or_default();
            link.latency = entry.latency.or(link.latency);
            link.bandwidth = entry.bandwidth.map(|bandwidth| bandwidth.0 as f64).or(link.bandwidth);
        }
    }
    links
}

/// Does what a [`LaunchControl`](thalweg_cluster::engine::local::LaunchControl) asks for.
fn act(action: LaunchAction, rank_statuses: &[Arc<RankStatus>], simulation: &SimulationControl) {
    let finish = || rank_statuses.iter().for_each(|rank_status| rank_status.request_finish());
    match action {
        LaunchAction::Inject(fault) => {
            rank_statuses
                .get(fault.rank)
                .into_iter()
                .for_each(|rank_status| rank_status.inject(fault.clone()));
        }
        LaunchAction::StartWorker(fault) => {
            if simulation.start_rank(fault == Some(FaultKind::Unreachable)).is_none() {
                finish();
            }
        }
        LaunchAction::Finish => finish(),
    }
}

/// Applies a signal's request to all ranks.
fn forward_signals(signals: &Signals, rank_statuses: &[Arc<RankStatus>], shared: &Arc<SharedResults>) {
    let (incoming, rank_statuses, shared) =
        (signals.forward(), rank_statuses.to_vec(), Arc::downgrade(shared));
    std::thread::spawn(move || {
        let mut interruption = Interruption::default();
        for received in incoming {
            let ask = match interruption.on_signal(received, true) {
                Request::Stop => RankStatus::request_stop,
                Request::Checkpoint => RankStatus::request_checkpoint,
                Request::Exit => {
                    let code = received.signal.exit_code();
                    if let Some(results) = shared.upgrade().and_then(|shared| lock(&shared.results).take()) {
                        let _ = results.close(Ok(code));
                    }
                    std::process::exit(i32::from(code));
                }
                Request::Ignore => continue,
            };
            rank_statuses.iter().for_each(|rank_status| ask(rank_status));
        }
    });
}

/// The outcome of the first rank that reached the end of the job. Without any, the first failure that has its cause in
/// the rank's own program, else the first that blames another rank: lost ranks do not know why.
fn job_outcome(ended: Vec<Result<Outcome>>) -> Result<Outcome> {
    if let Some(outcome) = ended.iter().find_map(|ended| ended.as_ref().ok()) {
        return Ok(*outcome);
    }
    let failures =
        || ended.iter().enumerate().filter_map(|(rank, ended)| Some((rank, ended.as_ref().err()?)));
    let blames_other =
        |rank: usize, error: &Error| error.culprit.as_ref().is_some_and(|culprit| culprit.rank != rank);
    let own = failures().find(|(rank, error)| error.kind != Kind::RankFailed && !blames_other(*rank, error));
    match own
        .or_else(|| failures().find(|(rank, error)| blames_other(*rank, error)))
        .or_else(|| failures().next())
    {
        Some((_, error)) => Err(error.clone()),
        None => Err(Error::internal("a world without ranks")),
    }
}

/// Writes the trace, one line per entry.
fn write_trace(trace: &Trace, folder: &Path) -> Result<()> {
    let path = folder.join(TRACE);
    let write = || {
        let mut file = BufWriter::new(std::fs::File::create(&path)?);
        trace.entries.iter().try_for_each(|entry| writeln!(file, "{entry}"))?;
        file.flush()
    };
    write().map_err(|error| Error::io(format!("cannot write {}", path.display()), &error))
}

/// The results, shared by the threads of all ranks.
struct SharedResults {
    /// `None` once they are closed.
    results: Mutex<Option<Results>>,
    /// The first error of a view: the job ends with it.
    view_error: Mutex<Option<Error>>,
}

impl SharedResults {
    /// Failures are told by the end of the job.
    fn record(&self, record: &Record) {
        if matches!(record.event, Event::Heartbeat(_) | Event::Failed { .. }) {
            return;
        }
        let shown = lock(&self.results).as_mut().map_or(Ok(()), |results| results.record(record));
        if let Err(error) = shown {
            lock(&self.view_error).get_or_insert(error);
        }
    }

    fn take(&self) -> Result<(Results, Option<Error>)> {
        let results = lock(&self.results).take();
        let results = results.ok_or_else(|| Error::internal("the results are closed already"))?;
        Ok((results, lock(&self.view_error).take()))
    }
}
