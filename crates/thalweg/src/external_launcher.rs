//! A rank under another launcher: torchrun, mpirun, srun, Kubernetes or a shell script.

use crate::address_file::{self, AddressFile};
use crate::components::OpenedData;
use crate::fault_tolerance;
use crate::join_info::JoinInfo;
use crate::launch::{as_rank_failure, lock, outcome_code, rank_config, show_notices, train};
use crate::launcher_watch;
use crate::preflight::{self, Checked};
use crate::results::Results;
use crate::signals::Signals;
use crate::token;
use crate::trainer::{RunResult, Trainer};
use crate::view::Plain;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thalweg_cluster::engine::environment::{self, RankEnvironment, RendezvousEndpoint};
use thalweg_cluster::rendezvous::local_token;
use thalweg_cluster::session::{self, ExitReason, RankConfig, RankHooks, unix_time};
use thalweg_cluster::{Rank, set_threads_per_rank};
use thalweg_core::event::{Event, Level, Record};
use thalweg_core::spec::Job;
use thalweg_core::{Error, Kind, Result, hex};
use thalweg_train::Assignment;
use thalweg_train::registry;

/// Delay of ranks other than 0 before they exit after a failure: a launcher such as `mpirun` kills all ranks as soon as
/// one exits, and rank 0 still has to write the report.
const EXIT_DELAY: Duration = Duration::from_secs(1);

/// Runs one rank. Rank 0 owns the views and writes the results.
pub fn run_rank(trainer: &Trainer, job: &Job, rank_env: &RankEnvironment) -> Result<RunResult> {
    set_threads_per_rank(job.spec.engine.threads);
    let signals = Signals::install()?;
    launcher_watch::stop_with_launcher(&signals);
    let rank_config = rank_config(job, rank_env.local);
    let rank_env = &address_file::resolve_port(with_port(rank_env, job), trainer.address_file.as_deref())?;
    if environment::is_spread(rank_env) && rank_config.token.is_empty() {
        let message = format!("{} started ranks on several hosts, and there is no token", rank_env.launcher);
        return Err(Error::new(Kind::Rendezvous, message).hint(local_token::HOW_TO_SET));
    }
    let terminated = AtomicBool::new(false);
    // Every rank opens its data before it joins: those that are ready do not wait in the rendezvous for one still
    // reading.
    if rank_env.rank != 0 {
        let Checked { data, model, rows, .. } = preflight::check(&job.spec, &trainer.components, None, 1)?;
        let rank_config = RankConfig { model: hex::encode(&model).into_bytes(), data: rows, ..rank_config };
        let console = Mutex::new(Plain::stderr(trainer.quiet, None));
        let hooks = RankHooks {
            signals: Some(signals.forward()),
            on_record: Arc::new(move |record| show_notices(&mut *lock(&console), record)),
            on_forced_exit: Arc::new(|reason| {
                if let ExitReason::Aborted(error) = reason {
                    eprintln!("error: {error}");
                    std::thread::sleep(EXIT_DELAY);
                }
            }),
        };
        let components = OpenedData::new(&trainer.components, data);
        let assignment =
            Assignment { job: &job.spec, components: &components, folder: Path::new("."), resume: false };
        let program = |rank: &mut Rank| train(rank, &assignment, None, &terminated);
        let outcome = session::run(rank_env, &rank_config, hooks, program)
            .inspect_err(|_| std::thread::sleep(EXIT_DELAY));
        let code = outcome_code(outcome.map_err(as_rank_failure)?, &signals, &terminated);
        return Ok(RunResult { report: None, code });
    }
    let (mut results, Checked { data, model, rows, .. }) = Results::open(trainer, job, &signals)
        .inspect_err(|error| session::refuse_joins(rank_env, &rank_config, error))?;
    if let Some(message) =
        fault_tolerance::limitations(rank_env.launcher, rank_env.world, registry::is_elastic(&job.spec))
    {
        let event = Event::Notice { level: Level::Info, message };
        results.record(&Record { time: unix_time(), rank: None, event })?;
    }
    let rank_config = RankConfig { model: hex::encode(&model).into_bytes(), data: rows, ..rank_config };
    let (folder, resume) = (results.folder.path.clone(), results.folder.resumes);
    let results = Arc::new(Mutex::new(Some(results)));
    let (recorded, closing) = (Arc::clone(&results), Arc::clone(&results));
    let published = Arc::new(Mutex::new(PublishedAddress::new(trainer, job, rank_env, &folder)));
    let (listening, withdrawn) = (Arc::clone(&published), Arc::clone(&published));
    let hooks = RankHooks {
        signals: Some(signals.forward()),
        on_record: Arc::new(move |record| {
            if let Event::Listening { address } = &record.event {
                lock(&listening).write(address)?;
            }
            lock(&recorded).as_mut().map_or(Ok(()), |results| results.record(record))
        }),
        on_forced_exit: Arc::new(move |reason| {
            lock(&withdrawn).remove();
            close_on_exit(lock(&closing).take(), reason);
        }),
    };
    let components = OpenedData::new(&trainer.components, data);
    let assignment = Assignment { job: &job.spec, components: &components, folder: &folder, resume };
    let program = |rank: &mut Rank| train(rank, &assignment, None, &terminated);
    let outcome = session::run(rank_env, &rank_config, hooks, program);
    lock(&published).remove();
    let ended = outcome.map(|outcome| outcome_code(outcome, &signals, &terminated)).map_err(as_rank_failure);
    let results = lock(&results).take().ok_or_else(|| Error::internal("the results are closed already"))?;
    results.close(ended)
}

/// The files in which rank 0 publishes its address: `--address-file` for the other ranks, `join.json` for workers that
/// join later. With `thalweg train` the launcher writes them.
struct PublishedAddress {
    folder: PathBuf,
    address_file: Option<PathBuf>,
    endpoint: RendezvousEndpoint,
    elastic: bool,
    written: Option<AddressFile>,
}

impl PublishedAddress {
    fn new(trainer: &Trainer, job: &Job, rank_env: &RankEnvironment, folder: &Path) -> PublishedAddress {
        PublishedAddress {
            folder: folder.to_path_buf(),
            address_file: trainer.address_file.clone(),
            endpoint: rank_env.endpoint.clone(),
            elastic: registry::is_elastic(&job.spec),
            written: None,
        }
    }

    fn write(&mut self, bound: &str) -> Result<()> {
        let address = address_file::reachable(bound, &self.endpoint);
        if let Some(path) = &self.address_file {
            self.written = Some(AddressFile::write(path, &address)?);
        }
        if self.elastic {
            let token = token::of_job(std::env::var_os("THALWEG_TOKEN"), bound);
            JoinInfo { address, token }.write(&self.folder)?;
        }
        Ok(())
    }

    fn remove(&mut self) {
        self.written = None;
        JoinInfo::remove(&self.folder);
    }
}

/// Writes the report before the process exits without returning from training.
fn close_on_exit(results: Option<Results>, reason: &ExitReason) {
    let ended = match reason {
        ExitReason::Signal(signal) => Ok(signal.exit_code()),
        ExitReason::Aborted(error) => Err(as_rank_failure(error.clone())),
    };
    if let Some(Err(error)) = results.map(|results| results.close(ended)) {
        eprintln!("error: {error}");
    }
}

/// `engine.port` replaces the port of the rendezvous where the launcher sets none, or a range of ports.
fn with_port(rank_env: &RankEnvironment, job: &Job) -> RankEnvironment {
    let mut rank_env = rank_env.clone();
    if let RendezvousEndpoint::At { port, last, .. } = &mut rank_env.endpoint
        && job.spec.engine.port != 0
        && (port != last || std::env::var_os("MASTER_PORT").is_none())
    {
        *port = u16::try_from(job.spec.engine.port).unwrap_or(*port);
        *last = *port;
    }
    rank_env
}
