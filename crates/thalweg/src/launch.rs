//! The three parts a process can play: launcher of local workers, one of those workers, or a rank of another launcher.

use crate::invitation::Invitation;
use crate::preflight::{self, Checked};
use crate::recipe::Opened;
use crate::results::Results;
use crate::signals::Signals;
use crate::trainer::{Finish, Trainer};
use crate::view::wording::counted;
use crate::view::{Plain, View};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_cluster::engine::environment::{Meeting, PORT, Place};
use thalweg_cluster::engine::local::{self, Director, Ended, Plan, STOPPED};
use thalweg_cluster::linux;
use thalweg_cluster::membership::Limits;
use thalweg_cluster::rendezvous;
use thalweg_cluster::session::{self, Leaving, Surroundings, Terms, unix_time};
use thalweg_cluster::{Rank, declare_threads};
use thalweg_core::event::{Event, Outcome, Record};
use thalweg_core::spec::Job;
use thalweg_core::spec::strategy::Carrier;
use thalweg_core::{Error, Kind, Result};
use thalweg_data::share;
use thalweg_train::{Assignment, Prepared, kept};

/// How long to try to reach a job that is to be joined.
const REACH: Duration = Duration::from_secs(10);

/// The variable by which the launcher tells its workers the run folder.
const FOLDER: &str = "THALWEG_RUN_FOLDER";
/// The variable by which it tells them what is trained, as it found when it looked.
const MODEL: &str = "THALWEG_RUN_MODEL";
/// The variable by which it tells them whether to go on from a checkpoint.
const RESUMES: &str = "THALWEG_RUN_RESUMES";

/// Starts the workers of this host and stays until the end.
pub fn as_launcher(trainer: &Trainer, job: &Job) -> Result<Finish> {
    let signals = Signals::watch()?;
    if trainer.nodes.as_ref().is_some_and(|nodes| nodes.index > 0) {
        return as_further_host(trainer, job, &signals);
    }
    let (mut results, Checked { data, model, .. }) = Results::open(trainer, job, &signals)?;
    drop(data);
    let plan = plan(trainer, job, &model, &results.folder.path, results.folder.resumes)?;
    let event = Event::Launched {
        name: trainer.name.clone(),
        workers: job.spec.engine.workers,
        strategy: job.spec.strategy.preset.clone(),
    };
    let ended = results
        .record(&Record { time: unix_time(), rank: None, event })
        .and_then(|()| {
            let (incoming, mut limit) = (signals.pass_on(), trainer.time_limit);
            let mut directing = trainer.director.as_ref().map(|director| director.borrow_mut());
            let director = directing.as_mut().map(|director| &mut **director as &mut dyn Director);
            local::launch(&plan, &incoming, director, &mut |record| {
                if let Event::Listening { address } = &record.event
                    && plan.elastic
                {
                    let token = token_of(&plan);
                    Invitation { address: address.clone(), token }.write(&results.folder.path)?;
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
    Invitation::remove(&results.folder.path);
    results.close(ended.map(code_of))
}

/// A digest as variables can hold it.
fn hexadecimal(digest: &[u8]) -> Vec<u8> {
    digest.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// The secret of the workers of this launcher.
fn token_of(plan: &Plan) -> String {
    let made =
        plan.variables.iter().find(|(name, _)| name == "THALWEG_TOKEN").map(|(_, token)| token.clone());
    let token = made.or_else(|| std::env::var_os("THALWEG_TOKEN")).unwrap_or_default();
    token.to_string_lossy().into_owned()
}

/// Asks a job that runs what it is, and under which number one more worker may come.
pub fn ask(invitation: &Invitation) -> Result<(String, usize)> {
    let caller = rendezvous::Invitation {
        rank: 0,
        world: 0,
        job: [0; 32],
        model: Vec::new(),
        token: invitation.token.clone().into_bytes(),
        host: linux::host_name(),
        anywhere: true,
        deadline: REACH,
        carrier: Carrier::Auto,
    };
    rendezvous::join::ask(&caller, &invitation.address, &|message| eprintln!("{message}"))
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
    let meeting = Meeting::At { host, port };
    let place =
        Place { rank: number, world: job.spec.ranks(), meeting, local, launcher: session::JOIN, joins: true };
    let terms = Terms { token: invitation.token.clone().into_bytes(), ..terms(job, local) };
    trainer.recipe.from_job = Some(crate::recipe::JobRecipe::new(&job.spec));
    let assignment =
        Assignment { job: &job.spec, recipe: &trainer.recipe, folder: Path::new("."), resume: false };
    let prepared = Prepared::alone(&assignment)?;
    let terms = Terms { model: hexadecimal(prepared.model()), ..terms };
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
    let program = |rank: &mut Rank| {
        if !quiet {
            eprintln!("joined as rank {number}; {} now", counted(rank.world() as u64, "worker"));
        }
        thalweg_train::run(rank, &assignment, Some(prepared))
    };
    let outcome = session::run(&place, &terms, surroundings, program).map_err(after_start)?;
    Ok(code_of_outcome(outcome, &signals))
}

/// The launcher of another host than the first: it shows what its own workers complain about and writes nothing.
fn as_further_host(trainer: &Trainer, job: &Job, signals: &Signals) -> Result<Finish> {
    let Checked { model, .. } = preflight::check(&job.spec, &trainer.recipe, None)?;
    let mut console = Plain::stderr(trainer.quiet, None);
    let plan = plan(trainer, job, &model, Path::new("."), false)?;
    let ended = local::launch(&plan, &signals.pass_on(), None, &mut |record| quietly(&mut console, record));
    Ok(Finish { report: None, code: code_of(ended.map_err(after_start)?) })
}

fn quietly(console: &mut impl View, record: &Record) -> Result<()> {
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
    let assignment = Assignment { job: &job.spec, recipe: &trainer.recipe, folder: &folder, resume };
    // Those who are at work need not wait for what can be prepared without them.
    let prepared = place.joins.then(|| Prepared::alone(&assignment)).transpose()?;
    // The launcher hears everything on its line; there is nobody else to tell.
    let surroundings = Surroundings {
        signals: Some(signals.pass_on()),
        on_record: Arc::new(|_| Ok(())),
        on_leave: Arc::new(|_| {}),
    };
    let program = |rank: &mut Rank| thalweg_train::run(rank, &assignment, prepared);
    let result = session::run(place, &terms(job, place.local), surroundings, program);
    std::process::exit(i32::from(match result {
        Ok(Outcome::Interrupted) => STOPPED,
        Ok(_) => 0,
        Err(error) => after_start(error).exit_code(),
    }))
}

/// How much longer than rank 0 the others stay after a failure: a launcher such as `mpirun` ends all ranks as soon as one
/// has ended, and rank 0 still has the report to write.
const AFTER_RANK_0: Duration = Duration::from_secs(1);

/// A rank that another launcher started. Rank 0 has the views and writes the results.
pub fn as_rank(trainer: &Trainer, job: &Job, place: &Place) -> Result<Finish> {
    declare_threads(job.spec.engine.threads);
    let signals = Signals::watch()?;
    let terms = terms(job, place.local);
    let place = &with_port(place, job);
    // Every rank looks at its data before it joins, so that nobody waits for somebody who is still reading.
    if place.rank != 0 {
        let Checked { data, model, .. } = preflight::check(&job.spec, &trainer.recipe, None)?;
        let terms = Terms { model: hexadecimal(&model), ..terms };
        let console = Mutex::new(Plain::stderr(trainer.quiet, None));
        let surroundings = Surroundings {
            signals: Some(signals.pass_on()),
            on_record: Arc::new(move |record| quietly(&mut *lock(&console), record)),
            on_leave: Arc::new(|leaving| {
                if let Leaving::Verdict(error) = leaving {
                    eprintln!("error: {error}");
                    std::thread::sleep(AFTER_RANK_0);
                }
            }),
        };
        let recipe = Opened::new(&trainer.recipe, data);
        let assignment =
            Assignment { job: &job.spec, recipe: &recipe, folder: Path::new("."), resume: false };
        let program = |rank: &mut Rank| thalweg_train::run(rank, &assignment, None);
        let outcome = session::run(place, &terms, surroundings, program)
            .inspect_err(|_| std::thread::sleep(AFTER_RANK_0));
        return Ok(Finish { report: None, code: code_of_outcome(outcome.map_err(after_start)?, &signals) });
    }
    let (results, Checked { data, model, .. }) = Results::open(trainer, job, &signals)?;
    let terms = Terms { model: hexadecimal(&model), ..terms };
    let (folder, resume) = (results.folder.path.clone(), results.folder.resumes);
    let results = Arc::new(Mutex::new(Some(results)));
    let (told, left) = (Arc::clone(&results), Arc::clone(&results));
    let surroundings = Surroundings {
        signals: Some(signals.pass_on()),
        on_record: Arc::new(move |record| {
            lock(&told).as_mut().map_or(Ok(()), |results| results.record(record))
        }),
        on_leave: Arc::new(move |leaving| leave(lock(&left).take(), leaving)),
    };
    let recipe = Opened::new(&trainer.recipe, data);
    let assignment = Assignment { job: &job.spec, recipe: &recipe, folder: &folder, resume };
    let program = |rank: &mut Rank| thalweg_train::run(rank, &assignment, None);
    let outcome = session::run(place, &terms, surroundings, program);
    let ended = outcome.map(|outcome| code_of_outcome(outcome, &signals)).map_err(after_start);
    let results = lock(&results).take().ok_or_else(|| Error::internal("the results are closed already"))?;
    results.close(ended)
}

/// The process ends at once; its report is written all the same.
fn leave(results: Option<Results>, leaving: &Leaving) {
    let ended = match leaving {
        Leaving::Signal(signal) => Ok(signal.exit_code()),
        Leaving::Verdict(error) => Err(after_start(error.clone())),
    };
    if let Some(Err(error)) = results.map(|results| results.close(ended)) {
        eprintln!("error: {error}");
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The job's own port counts where the launcher says none.
fn with_port(place: &Place, job: &Job) -> Place {
    let mut place = place.clone();
    if let Meeting::At { port, .. } = &mut place.meeting
        && job.spec.engine.port != 0
        && std::env::var_os("MASTER_PORT").is_none()
    {
        *port = u16::try_from(job.spec.engine.port).unwrap_or(*port);
    }
    place
}

/// What a rank met in the data is its failure once the ranks have started; exit code 2 means that nothing started.
pub(crate) fn after_start(mut error: Error) -> Error {
    if error.kind == Kind::Data {
        error.kind = Kind::RankFailed;
    }
    error
}

fn plan(trainer: &Trainer, job: &Job, model: &[u8], folder: &Path, resumes: bool) -> Result<Plan> {
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
    let model = String::from_utf8_lossy(&hexadecimal(model)).into_owned();
    let mut variables =
        vec![(FOLDER.to_string(), folder.as_os_str().to_owned()), (MODEL.to_string(), model.into())];
    if resumes {
        variables.push((RESUMES.into(), "1".into()));
    }
    if trainer.nodes.is_none() && std::env::var_os("THALWEG_TOKEN").is_none_or(|token| token.is_empty()) {
        variables.push(("THALWEG_TOKEN".into(), fresh_token()?.into()));
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

/// A secret for the workers of one launcher.
pub(crate) fn fresh_token() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Error::internal(format!("no randomness: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn terms(job: &Job, local: bool) -> Terms {
    let deadline = if local { Duration::from_secs(30) } else { Duration::from_secs(600) };
    Terms {
        job: job.spec.hash(),
        text: kept(&job.spec).to_toml(),
        model: std::env::var_os(MODEL).unwrap_or_default().into_encoded_bytes(),
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

fn code_of_outcome(outcome: Outcome, signals: &Signals) -> u8 {
    if outcome == Outcome::Interrupted { signals.code() } else { 0 }
}
