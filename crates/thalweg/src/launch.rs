//! Parts a process can play: launcher of local workers, one of those workers, or one more worker for a job that runs. For a
//! rank of another launcher see `foreign`.

use crate::address_file::AddressFile;
use crate::invitation::Invitation;
use crate::preflight::{self, Checked};
use crate::results::Results;
use crate::signals::Signals;
use crate::survival;
use crate::token;
use crate::trainer::{Finish, Trainer};
use crate::view::wording::counted;
use crate::view::{Plain, View};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::environment::{Meeting, PORT, Place};
use thalweg_cluster::engine::local::{self, Director, Ended, Plan};
use thalweg_cluster::interruption::Signal;
use thalweg_cluster::linux;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::rendezvous::message::Status;
use thalweg_cluster::rendezvous::{self, local_token};
use thalweg_cluster::session::{self, Leaving, Surroundings, Terms, unix_time};
use thalweg_cluster::{Rank, declare_threads, uplink};
use thalweg_core::event::{Event, Level, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Kind, Result};
use thalweg_data::share;
use thalweg_train::{Assignment, Prepared, kept};

/// How long to try to reach a job that is to be joined.
const REACH: Duration = Duration::from_secs(10);

/// The same for a probe, which comes again.
const PROBE: Duration = Duration::from_secs(2);

/// The variable by which the launcher tells its workers the run folder.
const FOLDER: &str = "THALWEG_RUN_FOLDER";
/// The variable by which it tells them what is trained, as it found when it looked.
const MODEL: &str = "THALWEG_RUN_MODEL";
/// The variable by which it tells them the digest of the rows, for the one that lets others in.
const ROWS: &str = "THALWEG_RUN_ROWS";
/// The variable by which it tells them whether to go on from a checkpoint.
const RESUMES: &str = "THALWEG_RUN_RESUMES";

/// Starts the workers of this host and stays until the end.
pub fn as_launcher(trainer: &Trainer, job: &Job) -> Result<Finish> {
    let signals = Signals::watch()?;
    if trainer.nodes.as_ref().is_some_and(|nodes| nodes.index > 0) {
        return as_further_host(trainer, job, &signals);
    }
    let (mut results, checked) = Results::open(trainer, job, &signals)?;
    let plan = plan(trainer, job, &checked, &results.folder.path, results.folder.resumes)?;
    drop(checked);
    let event = Event::Launched {
        name: trainer.name.clone(),
        workers: job.spec.engine.workers,
        strategy: job.spec.strategy.preset.clone(),
    };
    let mut told = None;
    let several = trainer.nodes.as_ref().is_some_and(|nodes| nodes.count > 1) && job.spec.is_elastic();
    let notice =
        several.then(|| Event::Notice { level: Level::Info, message: survival::SEVERAL_HOSTS.into() });
    let ended = [Some(event), notice]
        .into_iter()
        .flatten()
        .try_for_each(|event| results.record(&Record { time: unix_time(), rank: None, event }))
        .and_then(|()| {
            let (incoming, mut limit) = (signals.pass_on(), trainer.time_limit);
            let mut directing = trainer.director.as_ref().map(|director| director.borrow_mut());
            let director = directing.as_mut().map(|director| &mut **director as &mut dyn Director);
            local::launch(&plan, &incoming, director, &mut |record| {
                if let Event::Listening { address } = &record.event {
                    if let Some(path) = &trainer.address_file {
                        told = Some(AddressFile::write(path, address)?);
                    }
                    if plan.elastic {
                        let token = token::of_plan(&plan, address);
                        Invitation { address: address.clone(), token }.write(&results.folder.path)?;
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
        .map_err(after_start);
    drop(told);
    Invitation::remove(&results.folder.path);
    results.close(ended.map(code_of))
}

/// A digest as variables can hold it.
pub(crate) fn hexadecimal(digest: &[u8]) -> Vec<u8> {
    digest.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// What somebody brings to a job who only asks.
fn asking(invitation: &Invitation, deadline: Duration) -> rendezvous::Invitation {
    rendezvous::Invitation {
        rank: 0,
        world: 0,
        job: [0; 32],
        text: String::new(),
        run: String::new(),
        model: Vec::new(),
        data: String::new(),
        token: invitation.token.clone().into_bytes(),
        host: linux::host_name(),
        anywhere: true,
        deadline,
        carrier: Carrier::Auto,
    }
}

/// Asks a job that runs how it goes.
pub fn status(invitation: &Invitation) -> Result<Status> {
    rendezvous::join::ask_status(&asking(invitation, PROBE), &invitation.address)
}

/// Asks a job that runs what it is, and under which number one more worker may come.
pub fn ask(invitation: &Invitation) -> Result<(String, usize)> {
    rendezvous::join::ask(&asking(invitation, REACH), &invitation.address, &|message| eprintln!("{message}"))
}

/// One more worker for a job that runs.
pub fn as_newcomer(mut trainer: Trainer, job: &Job, invitation: &Invitation, number: usize) -> Result<u8> {
    declare_threads(job.spec.engine.threads);
    let signals = Signals::watch()?;
    let (host, port) = invitation.address.rsplit_once(':').unwrap_or((&invitation.address, ""));
    let port =
        port.parse().map_err(|_| Error::job(format!("{}: `{port}` is not a port", invitation.address)))?;
    let host = host.trim_matches(['[', ']']).to_string();
    let local = host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let place = Place {
        rank: number,
        world: job.spec.ranks(),
        meeting: Meeting::at(host, port),
        local,
        launcher: session::JOIN,
        joins: true,
        run: String::new(),
    };
    let terms = Terms { token: invitation.token.clone().into_bytes(), ..terms(job, local) };
    trainer.recipe.from_job = Some(crate::recipe::JobRecipe::new(&job.spec));
    let assignment =
        Assignment { job: &job.spec, recipe: &trainer.recipe, folder: Path::new("."), resume: false };
    let prepared = Prepared::alone(&assignment)?;
    let terms = newcomer(terms, &prepared);
    let quiet = trainer.quiet;
    let console = Mutex::new(Plain::stderr(quiet, None));
    let surroundings = Surroundings {
        signals: Some(signals.pass_on()),
        on_record: Arc::new(move |record| quietly(&mut *lock(&console), record)),
        on_leave: Arc::new(|leaving| {
            if let Leaving::Verdict(error) = leaving {
                eprintln!("error: {error}");
            }
        }),
    };
    let terminated = AtomicBool::new(false);
    let program = |rank: &mut Rank| {
        if !quiet {
            eprintln!("joined as rank {number}; {} now", counted(rank.world() as u64, "worker"));
        }
        train(rank, &assignment, Some(prepared), &terminated)
    };
    let outcome = session::run(&place, &terms, surroundings, program).map_err(after_start)?;
    Ok(code_of_outcome(outcome, &signals, &terminated))
}

/// What one that comes later says of the rows and the model it brings.
fn newcomer(terms: Terms, prepared: &Prepared) -> Terms {
    Terms { model: hexadecimal(prepared.model()), data: prepared.rows().to_string(), ..terms }
}

/// The launcher of another host than the first: it shows what its own workers complain about and writes nothing.
fn as_further_host(trainer: &Trainer, job: &Job, signals: &Signals) -> Result<Finish> {
    let checked = preflight::check(&job.spec, &trainer.recipe, None, 1)?;
    let mut console = Plain::stderr(trainer.quiet, None);
    let plan = plan(trainer, job, &checked, Path::new("."), false)?;
    drop(checked);
    let ended = local::launch(&plan, &signals.pass_on(), None, &mut |record| quietly(&mut console, record));
    Ok(Finish { report: None, code: code_of(ended.map_err(after_start)?) })
}

pub(crate) fn quietly(console: &mut impl View, record: &Record) -> Result<()> {
    match record.event {
        Event::Notice { .. } | Event::Stopping { .. } => console.record(record),
        _ => Ok(()),
    }
}

/// One of the launcher's workers: does its part and ends the process.
pub fn as_worker(trainer: &Trainer, job: &Job, place: &Place) -> Result<Finish> {
    declare_threads(job.spec.engine.threads);
    // Before anything else: without a handler SIGUSR1 ends a process, and preparing may take long.
    let signals = Signals::watch()?;
    let folder = std::env::var_os(FOLDER).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let resume = std::env::var_os(RESUMES).is_some();
    take_back_invitation(folder.clone());
    let assignment = Assignment { job: &job.spec, recipe: &trainer.recipe, folder: &folder, resume };
    // Those who are at work need not wait for what can be prepared without them.
    let prepared = place.joins.then(|| Prepared::alone(&assignment)).transpose()?;
    // The launcher hears everything on its line; there is nobody else to tell.
    let surroundings = Surroundings {
        signals: Some(signals.pass_on()),
        on_record: Arc::new(|_| Ok(())),
        on_leave: Arc::new(|_| {}),
    };
    let terms = terms(job, place.local);
    let terms = prepared.iter().fold(terms, newcomer);
    let terminated = AtomicBool::new(false);
    let program = |rank: &mut Rank| train(rank, &assignment, prepared, &terminated);
    let result = session::run(place, &terms, surroundings, program);
    std::process::exit(i32::from(match result {
        Ok(Outcome::Interrupted) if terminated.load(Ordering::Relaxed) => Signal::Terminate.exit_code(),
        Ok(Outcome::Interrupted) => Signal::Interrupt.exit_code(),
        Ok(_) => 0,
        Err(error) => after_start(error).exit_code(),
    }))
}

/// A launcher that was killed cannot take back where its job can be joined, and with which secret.
fn take_back_invitation(folder: PathBuf) {
    if let (Ok(Some(launcher)), Ok(token)) = (linux::Grip::on_parent(), std::env::var("THALWEG_TOKEN")) {
        std::thread::spawn(move || {
            launcher.await_end();
            Invitation::remove_own(&folder, &token);
        });
    }
}

/// Trains, and notes whether a stop was asked for by SIGTERM, of this rank or of another.
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a rank met in the data is its failure once the ranks have started; exit code 2 means that nothing started.
pub(crate) fn after_start(mut error: Error) -> Error {
    if error.kind == Kind::Data {
        error.kind = Kind::RankFailed;
    }
    error
}

fn plan(trainer: &Trainer, job: &Job, checked: &Checked, folder: &Path, resumes: bool) -> Result<Plan> {
    let world = job.spec.ranks();
    let (ranks, master) = match &trainer.nodes {
        Some(nodes) => (share(world, nodes.index, nodes.count), Some((nodes.host.clone(), nodes.port))),
        None => (0..world, None),
    };
    let hosts = trainer.nodes.as_ref().map_or(1, |nodes| nodes.count);
    if world < hosts {
        return Err(Error::job(format!(
            "no worker is left for some hosts: {world} in all, on {hosts} hosts"
        ))
        .hint("raise --workers: it counts all hosts"));
    }
    let model = String::from_utf8_lossy(&hexadecimal(&checked.model)).into_owned();
    let mut variables = vec![
        (FOLDER.to_string(), folder.as_os_str().to_owned()),
        (MODEL.to_string(), model.into()),
        (ROWS.to_string(), checked.rows.clone().into()),
    ];
    if resumes {
        variables.push((RESUMES.into(), "1".into()));
    }
    if trainer.nodes.as_ref().is_some_and(|nodes| nodes.index > 0) && job.spec.is_elastic() {
        variables.push((uplink::LEAVES.into(), "1".into()));
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
    let Terms { step_deadline, join_deadline, prepare_deadline, .. } = terms(job, trainer.nodes.is_none());
    Ok(Plan {
        command,
        variables,
        ranks,
        world,
        master,
        step_deadline,
        join_deadline,
        prepare_deadline,
        elastic: job.spec.is_elastic(),
        respawn: job.spec.fault.respawn,
    })
}

pub(crate) fn terms(job: &Job, local: bool) -> Terms {
    let deadline = if local { Duration::from_secs(30) } else { Duration::from_secs(600) };
    Terms {
        job: job.spec.hash(),
        text: kept(&job.spec).to_toml(),
        model: std::env::var_os(MODEL).unwrap_or_default().into_encoded_bytes(),
        data: std::env::var(ROWS).unwrap_or_default(),
        elastic: job.spec.is_elastic(),
        limits: Limits {
            least: job.spec.fault.min_workers,
            most: job.spec.fault.max_workers.or(usize::MAX),
            patience: job.spec.fault.join_deadline.or(deadline),
        },
        seed: job.spec.train.seed,
        token: std::env::var_os("THALWEG_TOKEN").unwrap_or_default().into_encoded_bytes(),
        step_deadline: job.spec.fault.step_deadline,
        join_deadline: job.spec.fault.join_deadline.or(deadline),
        prepare_deadline: job.spec.fault.prepare_deadline,
        carrier: job.spec.exchange.transport,
        port: u16::try_from(job.spec.engine.port).unwrap_or(PORT),
    }
}

fn code_of(ended: Ended) -> u8 {
    match ended {
        Ended::Done => 0,
        Ended::Interrupted(signal) => signal.exit_code(),
    }
}

pub(crate) fn code_of_outcome(outcome: Outcome, signals: &Signals, terminated: &AtomicBool) -> u8 {
    match outcome {
        Outcome::Interrupted if terminated.load(Ordering::Relaxed) => signals.code_or(Signal::Terminate),
        Outcome::Interrupted => signals.code(),
        _ => 0,
    }
}
