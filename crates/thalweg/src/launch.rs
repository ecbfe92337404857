//! Roles of a process: launcher of local workers, one of those workers, or a worker that joins a running job. For a
//! rank under another launcher see `external_launcher`.

use crate::address_file::AddressFile;
use crate::fault_tolerance;
use crate::join_info::JoinInfo;
use crate::preflight::{self, Checked};
use crate::results::Results;
use crate::signals::Signals;
use crate::token;
use crate::trainer::{RunResult, Trainer};
use crate::view::formatting::counted;
use crate::view::{Plain, View};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::environment::{PORT, RankEnvironment, RendezvousEndpoint};
use thalweg_cluster::engine::local::{self, LaunchControl, LaunchOutcome, LaunchPlan};
use thalweg_cluster::interruption::Signal;
use thalweg_cluster::linux;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::rendezvous::message::Status;
use thalweg_cluster::rendezvous::{self, local_token};
use thalweg_cluster::session::{self, ExitReason, RankConfig, RankHooks, unix_time};
use thalweg_cluster::{Rank, launcher_connection, set_threads_per_rank};
use thalweg_core::event::{Event, Level, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::spec::strategy::TransportChoice;
use thalweg_core::{Error, Kind, Result, hex};
use thalweg_data::even_range;
use thalweg_train::registry;
use thalweg_train::{Assignment, Prepared, kept};

/// How long `join` tries to reach the coordinator.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The same for `status`, which probes call repeatedly.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Environment variables from the launcher to its workers: the run folder.
const FOLDER: &str = "THALWEG_RUN_FOLDER";
/// Fingerprint of the model, from the launcher's preflight check.
const MODEL: &str = "THALWEG_RUN_MODEL";
/// Digest of the rows: the coordinator compares it with that of workers that join.
const ROWS: &str = "THALWEG_RUN_ROWS";
/// Set if the workers resume from a checkpoint.
const RESUMES: &str = "THALWEG_RUN_RESUMES";

/// Starts the workers of this host and waits until the job ends.
pub fn run_launcher(trainer: &Trainer, job: &Job) -> Result<RunResult> {
    let signals = Signals::install()?;
    if trainer.nodes.as_ref().is_some_and(|nodes| nodes.index > 0) {
        return run_other_host(trainer, job, &signals);
    }
    let (mut results, checked) = Results::open(trainer, job, &signals)?;
    let plan = match plan(trainer, job, &checked, &results.folder.path, results.folder.resumes) {
        Ok(plan) => plan,
        Err(error) => return results.close(Err(error)),
    };
    drop(checked);
    let event = Event::Launched {
        name: trainer.name.clone(),
        workers: job.spec.engine.workers,
        strategy: job.spec.strategy.preset.clone(),
    };
    let mut address_file = None;
    let several =
        trainer.nodes.as_ref().is_some_and(|nodes| nodes.count > 1) && registry::is_elastic(&job.spec);
    let notice =
        several.then(|| Event::Notice { level: Level::Info, message: fault_tolerance::SEVERAL_HOSTS.into() });
    let ended = [Some(event), notice]
        .into_iter()
        .flatten()
        .try_for_each(|event| results.record(&Record { time: unix_time(), rank: None, event }))
        .and_then(|()| {
            let (incoming, mut limit) = (signals.forward(), trainer.time_limit);
            let mut directing = trainer.director.as_ref().map(|director| lock(director));
            let director = directing.as_mut().map(|director| &mut **director as &mut dyn LaunchControl);
            local::launch(&plan, &incoming, director, &mut |record| {
                if let Event::Listening { address } = &record.event {
                    if let Some(path) = &trainer.address_file {
                        address_file = Some(AddressFile::write(path, address)?);
                    }
                    if plan.elastic {
                        let token = token::of_plan(&plan, address);
                        JoinInfo { address: address.clone(), token }.write(&results.folder.path)?;
                    }
                }
                if let (Event::Step { step, .. }, Some((steps, time))) = (&record.event, limit)
                    && *step >= steps
                {
                    signals.stop_after(time);
                    limit = None;
                }
                results.record(record)
            })
        })
        .map_err(as_rank_failure);
    drop(address_file);
    JoinInfo::remove(&results.folder.path);
    results.close(ended.map(exit_code))
}

/// The join request of a process that only queries the coordinator.
fn query(join_info: &JoinInfo, deadline: Duration) -> rendezvous::JoinConfig {
    rendezvous::JoinConfig {
        rank: 0,
        world: 0,
        job: [0; 32],
        text: String::new(),
        run: String::new(),
        model: Vec::new(),
        data: String::new(),
        token: join_info.token.clone().into_bytes(),
        host: linux::host_name(),
        anywhere: true,
        deadline,
        carrier: TransportChoice::Auto,
    }
}

/// Queries the status of a running job.
pub fn status(join_info: &JoinInfo) -> Result<Status> {
    rendezvous::query::query_status(&query(join_info, STATUS_TIMEOUT), &join_info.address)
}

/// Requests the job's text, and the member id of a worker that joins.
pub fn request_join(join_info: &JoinInfo) -> Result<(String, usize)> {
    rendezvous::query::query_job(&query(join_info, JOIN_TIMEOUT), &join_info.address, &|message| {
        eprintln!("{message}")
    })
}

/// Runs a worker that joins a running job.
pub fn run_joining_worker(
    mut trainer: Trainer,
    job: &Job,
    join_info: &JoinInfo,
    member: usize,
) -> Result<u8> {
    set_threads_per_rank(job.spec.engine.threads);
    let signals = Signals::install()?;
    let (host, port) = join_info.address.rsplit_once(':').unwrap_or((&join_info.address, ""));
    let port =
        port.parse().map_err(|_| Error::job(format!("{}: `{port}` is not a port", join_info.address)))?;
    let host = host.trim_matches(['[', ']']).to_string();
    let local = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let rank_env = RankEnvironment {
        rank: member,
        world: registry::ranks(&job.spec),
        endpoint: RendezvousEndpoint::at(host, port),
        local,
        launcher: session::JOIN,
        joins: true,
        run: String::new(),
    };
    let rank_config = RankConfig { token: join_info.token.clone().into_bytes(), ..rank_config(job, local) };
    trainer.components.from_job = Some(crate::components::SpecComponents::new(&job.spec));
    let assignment =
        Assignment { job: &job.spec, components: &trainer.components, folder: Path::new("."), resume: false };
    let prepared = Prepared::alone(&assignment)?;
    let rank_config = with_digests(rank_config, &prepared);
    let quiet = trainer.quiet;
    let console = Mutex::new(Plain::stderr(quiet, None));
    let hooks = RankHooks {
        signals: Some(signals.forward()),
        on_record: Arc::new(move |record| show_notices(&mut *lock(&console), record)),
        on_forced_exit: Arc::new(|reason| {
            if let ExitReason::Aborted(error) = reason {
                eprintln!("error: {error}");
            }
        }),
    };
    let terminated = AtomicBool::new(false);
    let program = |rank: &mut Rank| {
        if !quiet {
            eprintln!("joined as rank {member}; {} now", counted(rank.size() as u64, "worker"));
        }
        train(rank, &assignment, Some(prepared), &terminated)
    };
    let outcome = session::run(&rank_env, &rank_config, hooks, program).map_err(as_rank_failure)?;
    if !quiet {
        eprintln!("{}", last_words(outcome, signals.has_received()));
    }
    Ok(outcome_code(outcome, &signals, &terminated))
}

/// How the job ended for a worker that joined it. One that leaves has received a signal, and the job goes on.
fn last_words(outcome: Outcome, signalled: bool) -> &'static str {
    match outcome {
        Outcome::Interrupted => "the job was stopped",
        _ if signalled => "this worker has left; the job goes on without it",
        _ => "the job is complete",
    }
}

/// Adds the digests of model and rows, which the coordinator compares before it admits the worker.
fn with_digests(rank_config: RankConfig, prepared: &Prepared) -> RankConfig {
    RankConfig {
        model: hex::encode(prepared.model()).into_bytes(),
        data: prepared.rows().to_string(),
        ..rank_config
    }
}

/// The launcher of a host other than the first: prints the warnings of its own workers and writes no results.
fn run_other_host(trainer: &Trainer, job: &Job, signals: &Signals) -> Result<RunResult> {
    let checked = preflight::check(&job.spec, &trainer.components, None, 1)?;
    let mut console = Plain::stderr(trainer.quiet, None);
    let plan = plan(trainer, job, &checked, Path::new("."), false)?;
    drop(checked);
    let ended =
        local::launch(&plan, &signals.forward(), None, &mut |record| show_notices(&mut console, record));
    Ok(RunResult { report: None, code: exit_code(ended.map_err(as_rank_failure)?) })
}

/// Passes on warnings and stop notices only: rank 0 or its launcher shows the rest.
pub(crate) fn show_notices(console: &mut impl View, record: &Record) -> Result<()> {
    match record.event {
        Event::Notice { .. } | Event::Stopping { .. } => console.record(record),
        _ => Ok(()),
    }
}

/// Runs one of the launcher's workers and exits.
pub fn run_worker(trainer: &Trainer, job: &Job, rank_env: &RankEnvironment) -> Result<RunResult> {
    set_threads_per_rank(job.spec.engine.threads);
    // First: without a handler SIGUSR1 kills the process, and preparation may take long.
    let signals = Signals::install()?;
    let folder = std::env::var_os(FOLDER).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let resume = std::env::var_os(RESUMES).is_some();
    remove_join_info_with_launcher(folder.clone());
    let assignment = Assignment { job: &job.spec, components: &trainer.components, folder: &folder, resume };
    // A worker that joins prepares before the rendezvous, so that the running ranks do not wait for it.
    let prepared = rank_env.joins.then(|| Prepared::alone(&assignment)).transpose()?;
    // Events go to the launcher over its control connection.
    let hooks = RankHooks {
        signals: Some(signals.forward()),
        on_record: Arc::new(|_| Ok(())),
        on_forced_exit: Arc::new(|_| {}),
    };
    let rank_config = rank_config(job, rank_env.local);
    let rank_config = prepared.iter().fold(rank_config, with_digests);
    let terminated = AtomicBool::new(false);
    let program = |rank: &mut Rank| train(rank, &assignment, prepared, &terminated);
    let result = session::run(rank_env, &rank_config, hooks, program);
    std::process::exit(i32::from(match result {
        Ok(Outcome::Interrupted) if terminated.load(Ordering::Relaxed) => Signal::Terminate.exit_code(),
        Ok(Outcome::Interrupted) => Signal::Interrupt.exit_code(),
        Ok(_) => 0,
        Err(error) => as_rank_failure(error).exit_code(),
    }))
}

/// Removes `join.json`, which holds the token, when the launcher exits without having done so (SIGKILL).
fn remove_join_info_with_launcher(folder: PathBuf) {
    if let (Ok(Some(launcher)), Ok(token)) = (linux::PidFd::of_parent(), std::env::var("THALWEG_TOKEN")) {
        std::thread::spawn(move || {
            launcher.wait_for_exit();
            JoinInfo::remove_own(&folder, &token);
        });
    }
}

/// Trains, and stores whether SIGTERM to any rank stopped the job.
pub(crate) fn train(
    rank: &mut Rank,
    assignment: &Assignment<'_>,
    prepared: Option<Prepared>,
    terminated: &AtomicBool,
) -> Result<Outcome> {
    let outcome = thalweg_train::run(rank, assignment, prepared);
    terminated.store(rank.is_terminated(), Ordering::Relaxed);
    outcome
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns a data error into a rank failure (exit code 3): exit code 2 means that nothing was started.
pub(crate) fn as_rank_failure(mut error: Error) -> Error {
    if error.kind == Kind::Data {
        error.kind = Kind::RankFailed;
    }
    error
}

fn plan(trainer: &Trainer, job: &Job, checked: &Checked, folder: &Path, resumes: bool) -> Result<LaunchPlan> {
    let world = registry::ranks(&job.spec);
    let workers = job.spec.engine.workers;
    let (mut ranks, master): (Vec<usize>, _) = match &trainer.nodes {
        Some(nodes) => {
            (even_range(workers, nodes.index, nodes.count).collect(), Some((nodes.host.clone(), nodes.port)))
        }
        None => ((0..workers).collect(), None),
    };
    if trainer.nodes.as_ref().is_none_or(|nodes| nodes.index == 0) {
        // Servers have the last ranks, on the first host.
        ranks.extend(workers..world);
    }
    let hosts = trainer.nodes.as_ref().map_or(1, |nodes| nodes.count);
    if workers < hosts {
        return Err(Error::job(format!(
            "no worker is left for some hosts: {workers} in all, on {hosts} hosts"
        ))
        .hint("raise --workers: it counts all hosts"));
    }
    let model = hex::encode(&checked.model);
    let mut variables = vec![
        (FOLDER.to_string(), folder.as_os_str().to_owned()),
        (MODEL.to_string(), model.into()),
        (ROWS.to_string(), checked.rows.clone().into()),
    ];
    if resumes {
        variables.push((RESUMES.into(), "1".into()));
    }
    if trainer.nodes.as_ref().is_some_and(|nodes| nodes.index > 0) && registry::is_elastic(&job.spec) {
        variables.push((launcher_connection::LEAVES.into(), "1".into()));
    }
    let no_token = token::of_user()?.is_none();
    if let (Some((host, port)), true) = (&master, no_token)
        && !(host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()))
    {
        return Err(local_token::missing(&format!("{host}:{port}")));
    }
    if trainer.nodes.is_none() && no_token {
        variables.push(("THALWEG_TOKEN".into(), local_token::fresh()?.into()));
    }
    let command = match &trainer.command {
        Some(command) => command.clone(),
        None => {
            let program =
                std::env::current_exe().map_err(|error| Error::io("cannot find this program", &error))?;
            std::iter::once(program.into_os_string()).chain(std::env::args_os().skip(1)).collect()
        }
    };
    let RankConfig { step_deadline, join_deadline, prepare_deadline, .. } =
        rank_config(job, trainer.nodes.is_none());
    Ok(LaunchPlan {
        command,
        variables,
        ranks,
        world,
        master,
        step_deadline,
        join_deadline,
        prepare_deadline,
        elastic: registry::is_elastic(&job.spec),
        respawn: job.spec.fault.respawn,
    })
}

pub(crate) fn rank_config(job: &Job, local: bool) -> RankConfig {
    let deadline = if local { Duration::from_secs(30) } else { Duration::from_secs(600) };
    RankConfig {
        job: job.spec.hash(),
        text: kept(&job.spec).to_toml(),
        model: std::env::var_os(MODEL).unwrap_or_default().into_encoded_bytes(),
        data: std::env::var(ROWS).unwrap_or_default(),
        elastic: registry::is_elastic(&job.spec),
        limits: Limits {
            min: job.spec.fault.min_workers + registry::servers(&job.spec),
            max: job.spec.fault.max_workers.or(usize::MAX).saturating_add(registry::servers(&job.spec)),
            timeout: job.spec.fault.join_deadline.or(deadline),
            unit: registry::steps_apart(&job.spec),
        },
        servers: registry::server_ids(&job.spec),
        seed: job.spec.train.seed,
        token: std::env::var_os("THALWEG_TOKEN").unwrap_or_default().into_encoded_bytes(),
        step_deadline: job.spec.fault.step_deadline,
        join_deadline: job.spec.fault.join_deadline.or(deadline),
        prepare_deadline: job.spec.fault.prepare_deadline,
        carrier: job.spec.exchange.transport,
        port: u16::try_from(job.spec.engine.port).unwrap_or(PORT),
    }
}

fn exit_code(ended: LaunchOutcome) -> u8 {
    match ended {
        LaunchOutcome::Done => 0,
        LaunchOutcome::Interrupted(signal) => signal.exit_code(),
    }
}

pub(crate) fn outcome_code(outcome: Outcome, signals: &Signals, terminated: &AtomicBool) -> u8 {
    match outcome {
        Outcome::Interrupted if terminated.load(Ordering::Relaxed) => signals.code_or(Signal::Terminate),
        Outcome::Interrupted => signals.code(),
        _ => 0,
    }
}
