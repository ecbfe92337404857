//! One training job under observation: its processes, its messages, its end.
//!
//! Every process of the job inherits a mark in its environment; by it they are found, and at the end nothing with
//! the mark may be left. Only marked processes are ever sent a signal.

use crate::command::Outcome;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MARK: &str = "THALWEG_OBSERVED";
const OUTPUT: &str = "output.txt";
/// Lines of the event log that only come once steps are made.
const STEP_MADE: [&str; 2] = ["\"event\":\"step\"", "\"event\":\"epoch\""];
const GLANCE: Duration = Duration::from_millis(2);
/// Long enough for a cold start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A job and all its processes; dropping it ends them.
pub struct Session {
    command: Command,
    launcher: Child,
    mark: String,
    folder: PathBuf,
    /// Where rank 0 listens.
    pub port: u16,
}

impl Session {
    /// Starts `thalweg train` on digits, practically without end, with further settings and variables.
    pub fn start(binary: &Path, settings: &[String], variables: &[(&str, &str)]) -> Outcome<Session> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(format!("thalweg-trust-{mark}"));
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let (output, errors) =
            output_file(&folder).map_err(|error| format!("cannot keep the output: {error}"))?;
        let port = free_port()?;
        let mut command = Command::new(binary);
        command.args(["train", "--resume", "--out"]).arg(folder.join("run"));
        command.args(["--set", "train.epochs=1000000", "--set", &format!("engine.port={port}")]);
        // What is measured is the end of a job, not how it goes on.
        command.args(["--set", "fault.elastic=false"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        for name in LAUNCHER_VARIABLES {
            command.env_remove(name);
        }
        command.env(MARK, &mark).env("MASTER_PORT", port.to_string()).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let launcher = spawn(&mut command)?;
        Ok(Session { command, launcher, mark, folder, port })
    }

    /// Starts the same command again, after its end.
    pub fn start_again(&mut self) -> Outcome {
        self.launcher = spawn(&mut self.command)?;
        Ok(())
    }

    /// The lines of the event log so far; the last may be half-written.
    pub fn events(&self) -> String {
        fs::read_to_string(self.run().join("events.jsonl")).unwrap_or_default()
    }

    /// The folder of the run.
    pub fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// The processes of the job, rank 0 first: whoever wants to kill them all at once should not have to look for them.
    pub fn members(&self) -> Vec<Pid> {
        let mut processes = self.processes();
        processes.sort_by_key(|process| !process.environment.contains(&"RANK=0".to_string()));
        processes.iter().map(|process| Pid::from_raw(process.pid)).collect()
    }

    /// Returns once no process of the job is left.
    pub fn wait_until_gone(&mut self, limit: Duration) -> Outcome {
        let begin = Instant::now();
        self.wait(limit)?;
        while !self.processes().is_empty() {
            if begin.elapsed() > limit {
                return Err(format!("processes are left after {limit:?}"));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Returns once steps are being made.
    pub fn wait_for_training(&mut self) -> Outcome {
        self.wait_for("step", |events| STEP_MADE.iter().any(|event| events.contains(event)))
    }

    /// Returns once the event log satisfies a condition; the name is for the message if it never does.
    pub fn wait_for(&mut self, name: &str, condition: impl Fn(&str) -> bool) -> Outcome {
        let begin = Instant::now();
        while !condition(&self.events()) {
            if let Ok(Some(status)) = self.launcher.try_wait() {
                return Err(format!("the job ended before its {name} with {status}\n{}", self.messages()));
            }
            if begin.elapsed() > START_LIMIT {
                return Err(format!("no {name} within {START_LIMIT:?}\n{}", self.messages()));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Sends a signal to the worker of that rank.
    pub fn strike_worker(&self, rank: usize, signal: Signal) -> Outcome {
        let carries_rank = format!("RANK={rank}");
        let launcher = self.launcher.id() as i32;
        let mut workers = self.processes().into_iter().filter(|process| process.pid != launcher);
        let worker = workers.find(|process| process.environment.contains(&carries_rank));
        let worker = worker.ok_or_else(|| format!("no worker carries {carries_rank} in its environment"))?;
        kill(Pid::from_raw(worker.pid), signal).map_err(|error| format!("cannot send {signal}: {error}"))
    }

    /// What a terminal does on Ctrl-C: SIGINT to the launcher's process group.
    pub fn interrupt(&self) -> Outcome {
        let group = Pid::from_raw(-(self.launcher.id() as i32));
        kill(group, Signal::SIGINT).map_err(|error| format!("cannot send SIGINT: {error}"))
    }

    /// Waits for the launcher's end; gives up at the limit.
    pub fn wait(&mut self, limit: Duration) -> Outcome<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.launcher.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if begin.elapsed() > limit => {
                    return Err(format!("still running after {limit:?}\n{}", self.messages()));
                }
                Ok(None) => std::thread::sleep(GLANCE),
                Err(error) => return Err(format!("cannot wait for the job: {error}")),
            }
        }
    }

    /// Whether the messages say all these words by now.
    pub fn says(&self, words: &[&str]) -> bool {
        let messages = self.messages();
        words.iter().all(|word| messages.contains(word))
    }

    /// Returns once the messages say all these words.
    pub fn wait_for_words(&self, words: &[&str], limit: Duration) -> Outcome {
        let begin = Instant::now();
        while !self.says(words) {
            if begin.elapsed() > limit {
                return Err(format!("nothing about {words:?} within {limit:?}\n{}", self.messages()));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Everything printed so far.
    pub fn messages(&self) -> String {
        fs::read_to_string(self.folder.join(OUTPUT)).unwrap_or_default()
    }

    /// Whether there is a checkpoint in the run's folder.
    pub fn has_checkpoint(&self) -> bool {
        let entries = fs::read_dir(self.run().join("checkpoints"));
        let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with("step-"))
    }

    /// After the end: no process of the job is left and its port is free.
    pub fn left_nothing(&self) -> Outcome {
        let left: Vec<String> = self.processes().iter().map(|process| process.pid.to_string()).collect();
        if !left.is_empty() {
            return Err(format!("processes are left: {}", left.join(", ")));
        }
        match TcpListener::bind(("127.0.0.1", self.port)) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("port {} is not free: {error}", self.port)),
        }
    }

    /// The living processes that carry our mark.
    fn processes(&self) -> Vec<Process> {
        let mark = format!("{MARK}={}", self.mark);
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let processes = pids.filter_map(|pid: i32| {
            let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let variables =
                bytes.split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
            Some(Process { pid, environment: variables.collect() })
        });
        processes.filter(|process| process.environment.contains(&mark)).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for process in self.processes() {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        let _ = self.launcher.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(command: &mut Command) -> Outcome<Child> {
    let program = Path::new(command.get_program()).display().to_string();
    command.spawn().map_err(|error| format!("cannot start {program}: {error}"))
}

struct Process {
    pid: i32,
    environment: Vec<String>,
}

/// What a surrounding launcher may have set and the job must not inherit.
const LAUNCHER_VARIABLES: &[&str] = &[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "THALWEG_TOKEN",
];

/// One file for both streams, as a terminal would show them.
fn output_file(folder: &Path) -> std::io::Result<(fs::File, fs::File)> {
    let file = fs::File::options().create(true).append(true).open(folder.join(OUTPUT))?;
    Ok((file.try_clone()?, file))
}

/// A port that was free a moment ago.
fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
}
