//! `engine.kind = "sim"`: all ranks of a job in this process, on a simulated network and in virtual time.
//!
//! What is trained is trained for real, only the time it takes is made up from the network's numbers and the work's
//! floating-point operations. Twice the same job gives the same model, byte by byte, and the same `trace.txt`.

use crate::launch::{after_start, lock};
use crate::recipe::JobRecipe;
use crate::results::Results;
use crate::signals::Signals;
use crate::trainer::{Finish, Trainer};
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use thalweg_cluster::Beacon;
use thalweg_cluster::engine::environment::Place;
use thalweg_cluster::engine::threads::{self, Watcher};
use thalweg_cluster::interruption::{Interruption, Request};
use thalweg_cluster::session::unix_time;
use thalweg_cluster::sim::{Link, Network, Trace};
use thalweg_core::event::{Event, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::spec::links::Links;
use thalweg_core::{Error, JobSpec, Result};
use thalweg_train::Assignment;

/// The name of the trace in the run folder.
pub const TRACE: &str = "trace.txt";

/// Runs all ranks to their end.
pub fn run(trainer: &Trainer, job: &Job, place: Option<&Place>) -> Result<Finish> {
    refuse(trainer, place)?;
    let signals = Signals::watch()?;
    let (results, data) = Results::open(trainer, job, &signals)?;
    drop(data);
    let (folder, resume) = (results.folder.path.clone(), results.folder.resumes);
    let stage = Arc::new(Stage { results: Mutex::new(Some(results)), refused: Mutex::new(None) });
    stage.record(
        None,
        Event::Launched {
            name: trainer.name.clone(),
            workers: job.spec.engine.workers,
            strategy: job.spec.strategy.preset.clone(),
        },
    );
    let beacons: Vec<Arc<Beacon>> = (0..job.spec.ranks()).map(|_| Beacon::new()).collect();
    pass_on(&signals, &beacons, &stage);
    let watcher = |rank: usize| {
        let told = Arc::clone(&stage);
        let emit = Arc::new(move |event| told.record(Some(rank), event));
        Watcher { emit, beacon: Arc::clone(&beacons[rank]) }
    };
    let (ended, trace) =
        threads::simulate_watched(network(&job.spec), job.spec.fault.step_deadline, &watcher, |rank| {
            let recipe = JobRecipe::new(&job.spec);
            thalweg_train::run(
                rank,
                &Assignment { job: &job.spec, recipe: &recipe, folder: &folder, resume },
                None,
            )
        });
    let kept = keep(&trace, &folder);
    let code = |outcome| if outcome == Outcome::Interrupted { signals.code() } else { 0 };
    let ended = first(ended).map(code).map_err(after_start);
    let (results, refused) = Stage::take(&stage)?;
    results.close(refused.map_or(ended, Err).and_then(|code| kept.map(|()| code)))
}

/// What cannot be simulated.
fn refuse(trainer: &Trainer, place: Option<&Place>) -> Result<()> {
    let sim = "engine.kind = \"sim\"";
    if let Some(place) = place {
        return Err(Error::job(format!(
            "{sim} is all ranks in one process, but {} started this",
            place.launcher
        ))
        .hint("run it by itself: `thalweg train`"));
    }
    if trainer.nodes.is_some() {
        return Err(Error::job(format!("{sim} is all ranks in one process: it has no hosts to share")));
    }
    match trainer.recipe.data.is_some() || trainer.recipe.model.is_some() {
        true => Err(Error::job(format!("{sim} takes data and model from the job, not from a program"))),
        false => Ok(()),
    }
}

/// The network of a job.
fn network(job: &JobSpec) -> Network {
    Network {
        world: job.ranks(),
        latency: job.network.latency,
        jitter: job.network.variation,
        bandwidth: job.network.bandwidth.0 as f64,
        links: links(&job.network.links),
        speed: job.network.speed,
        buffered: true,
        seed: job.train.seed,
    }
}

/// The links that are not like the others; what is said last of one counts.
fn links(listed: &Links) -> BTreeMap<(usize, usize), Link> {
    let mut links: BTreeMap<(usize, usize), Link> = BTreeMap::new();
    for entry in &listed.0 {
        for pair in entry.pairs() {
            let link = links.entry(pair).or_default();
            link.latency = entry.latency.or(link.latency);
            link.bandwidth = entry.bandwidth.map(|bandwidth| bandwidth.0 as f64).or(link.bandwidth);
        }
    }
    links
}

/// What a signal asks for is asked of all ranks.
fn pass_on(signals: &Signals, beacons: &[Arc<Beacon>], stage: &Arc<Stage>) {
    let (incoming, beacons, stage) = (signals.pass_on(), beacons.to_vec(), Arc::downgrade(stage));
    std::thread::spawn(move || {
        let mut interruption = Interruption::default();
        for received in incoming {
            let ask = match interruption.on_signal(received, true) {
                Request::Stop => Beacon::request_stop,
                Request::Checkpoint => Beacon::request_checkpoint,
                Request::Leave => {
                    let code = received.signal.exit_code();
                    if let Some(results) = stage.upgrade().and_then(|stage| lock(&stage.results).take()) {
                        let _ = results.close(Ok(code));
                    }
                    std::process::exit(i32::from(code));
                }
                Request::Nothing => continue,
            };
            beacons.iter().for_each(|beacon| ask(beacon));
        }
    });
}

/// The outcome of rank 0, or the failure of the rank that did not merely lose another.
fn first(ended: Vec<Result<Outcome>>) -> Result<Outcome> {
    let own = |rank: usize, error: &Error| error.culprit.as_ref().is_none_or(|culprit| culprit.rank == rank);
    let failures =
        || ended.iter().enumerate().filter_map(|(rank, ended)| Some((rank, ended.as_ref().err()?)));
    match failures().find(|(rank, error)| own(*rank, error)).or_else(|| failures().next()) {
        Some((_, error)) => Err(error.clone()),
        None => ended.into_iter().next().unwrap_or_else(|| Err(Error::internal("a world without ranks"))),
    }
}

/// Writes down what happened, one line each.
fn keep(trace: &Trace, folder: &Path) -> Result<()> {
    let path = folder.join(TRACE);
    let write = || {
        let mut file = BufWriter::new(std::fs::File::create(&path)?);
        trace.entries.iter().try_for_each(|entry| writeln!(file, "{entry}"))?;
        file.flush()
    };
    write().map_err(|error| Error::io(format!("cannot write {}", path.display()), &error))
}

/// What all ranks tell, one after another.
struct Stage {
    /// Nothing once they are closed.
    results: Mutex<Option<Results>>,
    /// The first complaint of a view: the job ends with it.
    refused: Mutex<Option<Error>>,
}

impl Stage {
    fn record(&self, rank: Option<usize>, event: Event) {
        if matches!(event, Event::Pulse(_)) {
            return;
        }
        let record = Record { time: unix_time(), rank, event };
        let shown = lock(&self.results).as_mut().map_or(Ok(()), |results| results.record(&record));
        if let Err(error) = shown {
            lock(&self.refused).get_or_insert(error);
        }
    }

    fn take(stage: &Stage) -> Result<(Results, Option<Error>)> {
        let results = lock(&stage.results).take();
        let results = results.ok_or_else(|| Error::internal("the results are closed already"))?;
        Ok((results, lock(&stage.refused).take()))
    }
}
