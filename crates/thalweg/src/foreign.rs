//! A rank that another launcher started: torchrun, mpirun, srun, pods or shells.

use crate::address_file::{self, AddressFile};
use crate::invitation::Invitation;
use crate::launch::{after_start, code_of_outcome, hexadecimal, lock, quietly, terms, train};
use crate::parent;
use crate::preflight::{self, Checked};
use crate::recipe::Opened;
use crate::results::Results;
use crate::signals::Signals;
use crate::survival;
use crate::token;
use crate::trainer::{Finish, Trainer};
use crate::view::Plain;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thalweg_cluster::engine::environment::{self, Meeting, Place};
use thalweg_cluster::rendezvous::local_token;
use thalweg_cluster::session::{self, Leaving, Surroundings, Terms, unix_time};
use thalweg_cluster::{Rank, declare_threads};
use thalweg_core::event::{Event, Level, Record};
use thalweg_core::spec::Job;
use thalweg_core::{Error, Kind, Result};
use thalweg_train::Assignment;

/// How much longer than rank 0 the others stay after a failure: a launcher such as `mpirun` ends all ranks as soon as one
/// has ended, and rank 0 still has the report to write.
const AFTER_RANK_0: Duration = Duration::from_secs(1);

/// A rank that another launcher started. Rank 0 has the views and writes the results.
pub fn as_rank(trainer: &Trainer, job: &Job, place: &Place) -> Result<Finish> {
    declare_threads(job.spec.engine.threads);
    let signals = Signals::watch()?;
    parent::end_with_launcher(&signals);
    let terms = terms(job, place.local);
    let place = &address_file::look_in(with_port(place, job), trainer.address_file.as_deref())?;
    if environment::is_spread(place) && terms.token.is_empty() {
        let words = format!("{} started ranks on several hosts, and there is no token", place.launcher);
        return Err(Error::new(Kind::Rendezvous, words).hint(local_token::HOW_TO_SET));
    }
    let terminated = AtomicBool::new(false);
    // Every rank looks at its data before it joins, so that nobody waits for somebody who is still reading.
    if place.rank != 0 {
        let Checked { data, model, rows, .. } = preflight::check(&job.spec, &trainer.recipe, None, 1)?;
        let terms = Terms { model: hexadecimal(&model), data: rows, ..terms };
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
        let program = |rank: &mut Rank| train(rank, &assignment, None, &terminated);
        let outcome = session::run(place, &terms, surroundings, program)
            .inspect_err(|_| std::thread::sleep(AFTER_RANK_0));
        let code = code_of_outcome(outcome.map_err(after_start)?, &signals, &terminated);
        return Ok(Finish { report: None, code });
    }
    let (mut results, Checked { data, model, rows, .. }) =
        Results::open(trainer, job, &signals).inspect_err(|error| session::refuse(place, &terms, error))?;
    if let Some(message) = survival::limits(place.launcher, place.world, job.spec.is_elastic()) {
        let event = Event::Notice { level: Level::Info, message };
        results.record(&Record { time: unix_time(), rank: None, event })?;
    }
    let terms = Terms { model: hexadecimal(&model), data: rows, ..terms };
    let (folder, resume) = (results.folder.path.clone(), results.folder.resumes);
    let results = Arc::new(Mutex::new(Some(results)));
    let (told, left) = (Arc::clone(&results), Arc::clone(&results));
    let announcement = Arc::new(Mutex::new(Announcement::new(trainer, job, place, &folder)));
    let (listening, silent) = (Arc::clone(&announcement), Arc::clone(&announcement));
    let surroundings = Surroundings {
        signals: Some(signals.pass_on()),
        on_record: Arc::new(move |record| {
            if let Event::Listening { address } = &record.event {
                lock(&listening).write(address)?;
            }
            lock(&told).as_mut().map_or(Ok(()), |results| results.record(record))
        }),
        on_leave: Arc::new(move |leaving| {
            lock(&silent).take_back();
            leave(lock(&left).take(), leaving);
        }),
    };
    let recipe = Opened::new(&trainer.recipe, data);
    let assignment = Assignment { job: &job.spec, recipe: &recipe, folder: &folder, resume };
    let program = |rank: &mut Rank| train(rank, &assignment, None, &terminated);
    let outcome = session::run(place, &terms, surroundings, program);
    lock(&announcement).take_back();
    let ended = outcome.map(|outcome| code_of_outcome(outcome, &signals, &terminated)).map_err(after_start);
    let results = lock(&results).take().ok_or_else(|| Error::internal("the results are closed already"))?;
    results.close(ended)
}

/// What a rank 0 without a launcher of ours says of where it listens: to those who are to come, and to those who may join.
struct Announcement {
    folder: PathBuf,
    address_file: Option<PathBuf>,
    meeting: Meeting,
    elastic: bool,
    written: Option<AddressFile>,
}

impl Announcement {
    fn new(trainer: &Trainer, job: &Job, place: &Place, folder: &Path) -> Announcement {
        Announcement {
            folder: folder.to_path_buf(),
            address_file: trainer.address_file.clone(),
            meeting: place.meeting.clone(),
            elastic: job.spec.is_elastic(),
            written: None,
        }
    }

    fn write(&mut self, bound: &str) -> Result<()> {
        let address = address_file::reachable(bound, &self.meeting);
        if let Some(path) = &self.address_file {
            self.written = Some(AddressFile::write(path, &address)?);
        }
        if self.elastic {
            let token = token::of_job(std::env::var_os("THALWEG_TOKEN"), bound);
            Invitation { address, token }.write(&self.folder)?;
        }
        Ok(())
    }

    fn take_back(&mut self) {
        self.written = None;
        Invitation::remove(&self.folder);
    }
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

/// The job's own port counts where the launcher says none, or holds the one it says.
fn with_port(place: &Place, job: &Job) -> Place {
    let mut place = place.clone();
    if let Meeting::At { port, last, .. } = &mut place.meeting
        && job.spec.engine.port != 0
        && (port != last || std::env::var_os("MASTER_PORT").is_none())
    {
        *port = u16::try_from(job.spec.engine.port).unwrap_or(*port);
        *last = *port;
    }
    place
}
