//! A training job under test: its processes, its output and its exit.
//!
//! Every process of the job inherits a marker variable, by which its processes are found; at the end none may be left. Only
//! marked processes are sent signals.

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
/// Events that are emitted after the first step.
const STEP_EVENTS: [&str; 2] = ["\"event\":\"step\"", "\"event\":\"epoch\""];
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Enough for a cold start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A job with all its processes, which are killed on drop.
pub struct ObservedJob {
    command: Command,
    launcher: Child,
    mark: String,
    folder: PathBuf,
    /// The port of rank 0.
    pub port: u16,
}

impl ObservedJob {
    /// Starts `thalweg train` on digits, practically endless, with further settings and variables.
    pub fn start(binary: &Path, settings: &[String], variables: &[(&str, &str)]) -> Outcome<ObservedJob> {
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
        // The end of a job is measured, not its recovery.
        command.args(["--set", "fault.elastic=false"]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        for name in LAUNCHER_VARIABLES {
            command.env_remove(name);
        }
        command.env(MARK, &mark).env("MASTER_PORT", port.to_string()).envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
        let launcher = spawn(&mut command)?;
        Ok(ObservedJob { command, launcher, mark, folder, port })
    }

    /// Starts the same command again after it has exited.
    pub fn start_again(&mut self) -> Outcome {
        self.launcher = spawn(&mut self.command)?;
        Ok(())
    }

    /// The event log so far; the last line may be incomplete.
    pub fn events(&self) -> String {
        fs::read_to_string(self.run().join("events.jsonl")).unwrap_or_default()
    }

    pub fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// The processes of the job, rank 0 first, to be killed without a further scan of /proc.
    pub fn members(&self) -> Vec<Pid> {
        let mut processes = self.processes();
        processes.sort_by_key(|process| !process.environment.contains(&"RANK=0".to_string()));
        processes.iter().map(|process| Pid::from_raw(process.pid)).collect()
    }

    /// Waits until no process of the job is left.
    pub fn wait_until_gone(&mut self, limit: Duration) -> Outcome {
        let begin = Instant::now();
        self.wait(limit)?;
        while !self.processes().is_empty() {
            if begin.elapsed() > limit {
                return Err(format!("processes are left after {limit:?}"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for the first step.
    pub fn wait_for_training(&mut self) -> Outcome {
        self.wait_for("step", |events| STEP_EVENTS.iter().any(|event| events.contains(event)))
    }

    /// Waits until the event log satisfies a condition; `name` is for the error message.
    pub fn wait_for(&mut self, name: &str, condition: impl Fn(&str) -> bool) -> Outcome {
        let begin = Instant::now();
        while !condition(&self.events()) {
            if let Ok(Some(status)) = self.launcher.try_wait() {
                return Err(format!("the job ended before its {name} with {status}\n{}", self.output()));
            }
            if begin.elapsed() > START_LIMIT {
                return Err(format!("no {name} within {START_LIMIT:?}\n{}", self.output()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Sends a signal to the worker of that rank.
    pub fn signal_worker(&self, rank: usize, signal: Signal) -> Outcome {
        let variable = format!("RANK={rank}");
        let launcher = self.launcher.id() as i32;
        let mut workers = self.processes().into_iter().filter(|process| process.pid != launcher);
        let worker = workers.find(|process| process.environment.contains(&variable));
        let worker = worker.ok_or_else(|| format!("no worker has {variable} in its environment"))?;
        kill(Pid::from_raw(worker.pid), signal).map_err(|error| format!("cannot send {signal}: {error}"))
    }

    /// Sends SIGINT to the launcher's process group, as a terminal does on Ctrl-C.
    pub fn interrupt(&self) -> Outcome {
        let group = Pid::from_raw(-(self.launcher.id() as i32));
        kill(group, Signal::SIGINT).map_err(|error| format!("cannot send SIGINT: {error}"))
    }

    /// Waits for the launcher's exit, up to the limit.
    pub fn wait(&mut self, limit: Duration) -> Outcome<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.launcher.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if begin.elapsed() > limit => {
                    return Err(format!("still running after {limit:?}\n{}", self.output()));
                }
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(error) => return Err(format!("cannot wait for the job: {error}")),
            }
        }
    }

    /// Whether the output contains all these texts.
    pub fn has_printed(&self, texts: &[&str]) -> bool {
        let output = self.output();
        texts.iter().all(|text| output.contains(text))
    }

    /// Waits until the output contains all these texts.
    pub fn wait_for_output(&self, texts: &[&str], limit: Duration) -> Outcome {
        let begin = Instant::now();
        while !self.has_printed(texts) {
            if begin.elapsed() > limit {
                return Err(format!("no {texts:?} in the output within {limit:?}\n{}", self.output()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.join(OUTPUT)).unwrap_or_default()
    }

    pub fn has_checkpoint(&self) -> bool {
        let entries = fs::read_dir(self.run().join("checkpoints"));
        let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().starts_with("step-"))
    }

    /// Checks after the exit that no process is left and the port is free.
    pub fn check_cleanup(&self) -> Outcome {
        let left: Vec<String> = self.processes().iter().map(|process| process.pid.to_string()).collect();
        if !left.is_empty() {
            return Err(format!("processes are left: {}", left.join(", ")));
        }
        match TcpListener::bind(("127.0.0.1", self.port)) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("port {} is not free: {error}", self.port)),
        }
    }

    /// The running processes with our marker.
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

impl Drop for ObservedJob {
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

/// Variables of a surrounding launcher that the job must not inherit.
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

/// One file for both streams, as on a terminal.
fn output_file(folder: &Path) -> std::io::Result<(fs::File, fs::File)> {
    let file = fs::File::options().create(true).append(true).open(folder.join(OUTPUT))?;
    Ok((file.try_clone()?, file))
}

fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
}
