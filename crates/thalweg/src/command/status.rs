//! `thalweg status`: the state of a job, for people and for the probes of a cluster.

use super::{print, print_json};
use crate::cli::JobArgs;
use crate::folder::{self, JOB};
use crate::join_info::JoinInfo;
use crate::launch;
use crate::token;
use crate::view::formatting::counted;
use crate::view::jsonl;
use clap::Args;
use serde::Serialize;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;
use thalweg_cluster::regular_file;
use thalweg_cluster::rendezvous::message::Status;
use thalweg_cluster::session::unix_time;
use thalweg_core::event::{Event, Phase, Record};
use thalweg_core::{Error, Kind, Result};
use thalweg_train::registry;

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Run folder of a job, or the address of its coordinator (with its THALWEG_TOKEN)
    #[arg(value_name = "RUN|HOST:PORT")]
    target: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Exit codes, for `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    the job waits for ranks, prepares, trains, or is done
  3    it failed, was killed, or made no progress within its deadlines
  4    no job is found there
  130  it was interrupted";

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum JobState {
    Waiting,
    Preparing,
    Training,
    Stalled,
    Completed,
    Interrupted,
    Failed,
    Killed,
}

/// Status of a job; fields that are unknown are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct JobStatus {
    state: JobState,
    /// Ranks in the group.
    joined: Option<usize>,
    /// Ranks of the job.
    expected: Option<usize>,
    step: Option<u64>,
    /// Seconds since the last progress.
    progress_s: Option<f64>,
    /// Seconds without progress after which the job counts as stalled.
    deadline_s: Option<f64>,
}

/// Prints the status; returns the exit code.
pub fn run(args: &StatusArgs) -> Result<u8> {
    let found = find(&args.target)?;
    if args.json {
        print_json(&found)?;
    } else {
        print(&format!("{}\n", describe(&found)))?;
    }
    Ok(code(found.state))
}

fn find(target: &str) -> Result<JobStatus> {
    let run = Path::new(target);
    if !run.is_dir() {
        let join_info = JoinInfo::find(target, token::of_user()?)?;
        return launch::status(&join_info).map(of_coordinator);
    }
    if folder::is_in_use(run) == Some(false) || !run.join(JOB).exists() {
        return ended(run);
    }
    // The coordinator knows more than the files, but a job that is not elastic closes its port after the rendezvous.
    let answer = JoinInfo::read(run).and_then(|join_info| launch::status(&join_info).ok());
    answer.map_or_else(|| of_files(run), |status| Ok(of_coordinator(status)))
}

fn of_coordinator(status: Status) -> JobStatus {
    let state = match status.phase {
        _ if status.progress_s > status.deadline_s => JobState::Stalled,
        _ if status.generation == 0 => JobState::Waiting,
        // After step 0, reading data or writing a checkpoint is part of training.
        Phase::Starting | Phase::Preparing if status.step == 0 => JobState::Preparing,
        _ => JobState::Training,
    };
    JobStatus {
        state,
        joined: Some(status.joined),
        expected: Some(status.expected),
        step: Some(status.step),
        progress_s: Some(status.progress_s),
        deadline_s: Some(status.deadline_s),
    }
}

/// Status of a run whose folder no job holds.
fn ended(run: &Path) -> Result<JobStatus> {
    let missing = || {
        Error::new(Kind::Rendezvous, format!("{} holds no run", run.display()))
            .hint("give the folder that `thalweg train` writes to, such as runs/digits-1, or HOST:PORT")
    };
    if !run.join(JOB).exists() {
        return Err(missing());
    }
    let text = regular_file::read_to_string(&run.join("report.json")).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let state = match report["outcome"].as_str() {
        Some("interrupted") => JobState::Interrupted,
        Some("failed") => JobState::Failed,
        Some(_) => JobState::Completed,
        None => JobState::Killed,
    };
    let step = report["steps"].as_u64();
    Ok(JobStatus { state, joined: None, expected: None, step, progress_s: None, deadline_s: None })
}

/// Status of a running job from the files of its run folder.
fn of_files(run: &Path) -> Result<JobStatus> {
    let job = JobArgs { job: Some(run.join(JOB)), ..JobArgs::default() }.resolve()?.spec;
    let fault = &job.fault;
    let deadlines = Deadlines {
        waiting: fault.join_deadline.or(Duration::from_secs(600)),
        preparing: fault.prepare_deadline,
        // Events do not distinguish a checkpoint or an evaluation from a step.
        training: (fault.step_deadline * 2 + Duration::from_secs(4)).max(fault.prepare_deadline),
    };
    Ok(of_events(&first_and_last(&run.join(jsonl::FILE))?, registry::ranks(&job), &deadlines, unix_time()))
}

struct Deadlines {
    waiting: Duration,
    preparing: Duration,
    training: Duration,
}

fn of_events(events: &[Record], ranks: usize, deadlines: &Deadlines, now: f64) -> JobStatus {
    let (mut joined, mut step, mut last_progress) = (None, None, None);
    for Record { time, event, .. } in events {
        match event {
            Event::Launched { .. } => (joined, step) = (Some(0), None),
            Event::Joined { hosts, .. } => joined = Some(hosts.len()),
            Event::Regrouped { members, step: at, .. } => (joined, step) = (Some(members.len()), Some(*at)),
            Event::Step { step: at, .. } => step = Some(*at),
            Event::Notice { .. } | Event::Heartbeat(_) => continue,
            _ => {}
        }
        last_progress = Some(*time);
    }
    let (state, deadline) = match (joined, step) {
        (_, Some(_)) => (JobState::Training, deadlines.training),
        (Some(1..), None) => (JobState::Preparing, deadlines.preparing),
        _ => (JobState::Waiting, deadlines.waiting),
    };
    let progress_s = last_progress.map(|time| (now - time).max(0.0));
    let stalled = progress_s.is_some_and(|age| age > deadline.as_secs_f64());
    JobStatus {
        state: if stalled { JobState::Stalled } else { state },
        joined,
        expected: Some(ranks),
        step,
        progress_s,
        deadline_s: Some(deadline.as_secs_f64()),
    }
}

/// The records in the first and last 64 KiB of the file, which may be long.
fn first_and_last(path: &Path) -> Result<Vec<Record>> {
    const PART: u64 = 64 << 10;
    let unreadable = |error: std::io::Error| Error::io(format!("cannot read {}", path.display()), &error);
    let mut file = regular_file::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(PART).read_to_end(&mut bytes).map_err(unreadable)?;
    if length > PART {
        bytes.push(b'\n');
        file.seek(SeekFrom::Start(length.saturating_sub(PART).max(PART))).map_err(unreadable)?;
        file.take(PART).read_to_end(&mut bytes).map_err(unreadable)?;
    }
    // Skips lines that are cut off or still being written.
    Ok(bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

fn describe(found: &JobStatus) -> String {
    let state = match found.state {
        JobState::Waiting => "waiting for ranks",
        JobState::Preparing => "preparing",
        JobState::Training => "training",
        JobState::Stalled => "stalled",
        JobState::Completed => "completed",
        JobState::Interrupted => "interrupted",
        JobState::Failed => "failed",
        JobState::Killed => "killed: no job holds the folder, and there is no report",
    };
    let mut parts = vec![state.to_string()];
    parts.extend(found.step.map(|step| format!("step {step}")));
    parts.extend(found.joined.map(|joined| match found.expected {
        Some(expected) if expected != joined => {
            format!("{joined} of {} joined", counted(expected as u64, "rank"))
        }
        _ => format!("{} joined", counted(joined as u64, "rank")),
    }));
    parts.extend(found.progress_s.map(|seconds| format!("last progress {seconds:.1} s ago")));
    parts.join(", ")
}

fn code(state: JobState) -> u8 {
    match state {
        JobState::Waiting | JobState::Preparing | JobState::Training | JobState::Completed => 0,
        JobState::Stalled | JobState::Failed | JobState::Killed => 3,
        JobState::Interrupted => 130,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines {
        waiting: Duration::from_secs(30),
        preparing: Duration::from_secs(600),
        training: Duration::from_secs(10),
    };

    fn at(time: f64, event: Event) -> Record {
        Record { time, rank: None, event }
    }

    #[test]
    fn state_and_time_of_last_progress_come_from_events() {
        let launched =
            at(1.0, Event::Launched { name: "x".into(), workers: 2, strategy: "allreduce".into() });
        let joined = at(2.0, Event::Joined { hosts: vec!["a".into(); 2], generation: 1 });
        let left = Event::Regrouped {
            generation: 2,
            step: 7,
            members: vec![0],
            lost: Vec::new(),
            joined: Vec::new(),
            left: vec![1],
            recover_s: 0.1,
            steps_redone: 0,
        };
        let found = |events: &[Record], now| of_events(events, 2, &DEADLINES, now);
        assert_eq!(found(std::slice::from_ref(&launched), 5.0).state, JobState::Waiting);
        assert_eq!(found(std::slice::from_ref(&launched), 40.0).state, JobState::Stalled);
        let events = [launched, joined, at(3.0, left)];
        assert_eq!(found(&events[..2], 5.0).state, JobState::Preparing);
        let training = found(&events, 5.0);
        assert_eq!((training.state, training.step, training.joined), (JobState::Training, Some(7), Some(1)));
        assert_eq!(describe(&training), "training, step 7, 1 of 2 ranks joined, last progress 2.0 s ago");
        assert_eq!(code(found(&events, 20.0).state), 3);
    }

    #[test]
    fn the_coordinator_reports_training_and_stalled() {
        let status =
            Status { generation: 1, joined: 2, expected: 2, phase: Phase::Exchanging, ..Status::default() };
        let found = of_coordinator(Status { progress_s: 1.0, deadline_s: 5.0, ..status.clone() });
        assert_eq!(found.state, JobState::Training);
        assert_eq!(
            of_coordinator(Status { progress_s: 6.0, deadline_s: 5.0, ..status }).state,
            JobState::Stalled
        );
    }
}
