//! Runs the binary in real processes: each test has a folder and a marker variable, and its processes are killed at the
//! end.
//!
//! Every process a [`Site`] starts, and their children, carry the site's marker in the environment. So the workers of a
//! launcher can be found by rank, leftover processes can be detected, and no process is killed that the test did not
//! start. Nothing here sleeps for a fixed time: it polls conditions, with a limit.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub mod debugger;
pub mod elastic;
mod process;

pub use process::{Ended, Process};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Ten times the documented time to detect a killed worker.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Long enough for any training in these tests, on a busy machine.
pub const TRAINING_LIMIT: Duration = Duration::from_secs(120);

/// Environment variable with the marker of a site.
const MARK: &str = "THALWEG_HARNESS_MARK";

/// Variables of other launchers, removed from the environment: the tests may themselves run under one.
const LAUNCHERS: [&str; 8] =
    ["OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "PET_", "JOB_COMPLETION_", "MASTER_", "THALWEG_"];
const RANKS: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// A job that is always in the middle of an epoch: many small steps, none of them quick. It is not elastic: the loss of
/// a rank ends it.
pub const BUSY: [&str; 13] = [
    "train",
    "--out",
    "run",
    "--set",
    "train.global_batch=1",
    "--set",
    r#"model.layers=["dense 1024 relu", "dense 256 relu", "dense auto"]"#,
    "--set",
    "train.epochs=1000",
    "--set",
    "fault.checkpoint_every=0",
    "--set",
    "fault.elastic=false",
];

/// Prints why a test is skipped, directly to stderr: the test runner hides the output of passing tests.
pub fn skip(why: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// A temporary folder and the processes that run in it.
pub struct Site {
    folder: TempDir,
    mark: String,
}

impl Site {
    /// An empty folder, no process.
    pub fn new() -> Site {
        restore_hangup();
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let number = SITES.fetch_add(1, Ordering::Relaxed);
        Site { folder: tempfile::tempdir().unwrap(), mark: format!("{}-{number}", std::process::id()) }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file there.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// A command that runs in the folder and carries the marker.
    pub fn program(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        for (name, _) in std::env::vars_os() {
            let shown = name.to_string_lossy();
            if LAUNCHERS.iter().any(|prefix| shown.starts_with(prefix)) || RANKS.contains(&&*shown) {
                command.env_remove(&name);
            }
        }
        command.args(arguments).current_dir(self.folder.path());
        command.env(MARK, &self.mark).env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    /// `thalweg` with these arguments.
    pub fn thalweg(&self, arguments: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_thalweg"), arguments)
    }

    /// `thalweg` as one rank of several, as torchrun or a shell would start it.
    pub fn rank(&self, rank: usize, world: usize, port: u16, arguments: &[&str]) -> Command {
        let mut command = self.thalweg(arguments);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command
    }

    /// Starts `thalweg` with these arguments.
    pub fn start(&self, arguments: &[&str]) -> Process {
        Process::start(self.thalweg(arguments))
    }

    /// Runs `thalweg` until it exits.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end(TRAINING_LIMIT)
    }

    /// Runs `thalweg` until it exits, which must be with code 0.
    pub fn succeed(&self, arguments: &[&str]) -> Ended {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended
    }

    /// All live processes with the marker, and their ranks.
    pub fn processes(&self) -> Vec<(Pid, Option<usize>)> {
        let mark = format!("{MARK}={}", self.mark);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Unreadable: the process has exited meanwhile, or belongs to another user.
            let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
            let variables: Vec<_> =
                environment.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
            if variables.iter().any(|variable| *variable == mark) {
                let rank = variables.iter().find_map(|variable| variable.strip_prefix("RANK=")?.parse().ok());
                found.push((Pid::from_raw(id), rank));
            }
        }
        found
    }

    /// A variable in the environment of a process.
    pub fn variable(&self, process: Pid, name: &str) -> String {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap();
        let mut variables = environment.split(|&byte| byte == 0).map(String::from_utf8_lossy);
        let value =
            variables.find_map(|variable| variable.strip_prefix(&format!("{name}="))?.to_string().into());
        value.unwrap_or_else(|| panic!("process {process} has no {name}"))
    }

    /// The process of a rank.
    pub fn worker(&self, rank: usize) -> Pid {
        await_some(LIMIT, &format!("no process of rank {rank}"), || self.find_worker(rank))
    }

    /// The process of a rank, if it is alive.
    pub fn find_worker(&self, rank: usize) -> Option<Pid> {
        self.processes().iter().find(|(_, other)| *other == Some(rank)).map(|(process, _)| *process)
    }

    /// Sends a signal to the process of a rank and returns its id.
    pub fn signal_worker(&self, rank: usize, signal: Signal) -> Pid {
        let process = self.worker(rank);
        kill(process, signal).unwrap();
        if signal == Signal::SIGSTOP {
            await_some(LIMIT, "it does not stop", || (state(process) == Some('T')).then_some(()));
        }
        process
    }

    /// Waits until no process of the site is left.
    pub fn await_empty(&self) {
        await_some(LIMIT, "a process is left", || self.processes().is_empty().then_some(()));
    }

    /// Asserts that no process of the site is left.
    pub fn assert_empty(&self) {
        let left = self.processes();
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// The lines of a run's events.jsonl so far.
    pub fn events(&self, run: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.path(run).join("events.jsonl")).unwrap_or_default();
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until a run has written an event of this kind, and returns the first.
    pub fn await_event(&self, run: &str, kind: &str) -> serde_json::Value {
        await_some(TRAINING_LIMIT, &format!("no {kind} event in {run}"), || {
            self.events(run).into_iter().find(|event| event["event"] == kind)
        })
    }

    /// Waits until training has reached a step.
    pub fn await_step(&self, run: &str, step: u64) {
        await_some(TRAINING_LIMIT, &format!("{run} does not get to step {step}"), || {
            let past = |event: &serde_json::Value| {
                event["event"] == "step" && event["step"].as_u64().is_some_and(|at| at >= step)
            };
            self.events(run).iter().any(past).then_some(())
        });
    }

    /// A run's report.
    pub fn report(&self, run: &str) -> serde_json::Value {
        let path = self.path(run).join("report.json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("no {}", path.display()));
        serde_json::from_str(&text).unwrap()
    }

    /// The steps of a run's checkpoints, newest first.
    pub fn checkpoints(&self, run: &str) -> Vec<u64> {
        let paths = thalweg_cluster::checkpoint::list(&self.path(run).join("checkpoints"));
        paths.iter().filter_map(|path| thalweg_cluster::checkpoint::step_of(path)).collect()
    }
}

/// Makes SIGHUP end the child processes even if this process ignores it (`nohup cargo test`): a child inherits ignored
/// signals, but not handlers.
fn restore_hangup() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if thalweg_cluster::linux::ignores_hangup() {
            signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default()).unwrap();
        }
    });
}

impl Drop for Site {
    fn drop(&mut self) {
        // Repeated: a launcher may start a worker between the listing and the kill.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for (process, _) in left {
                let _ = kill(process, Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// State of a process in `/proc`: `T` is stopped.
pub fn state(process: Pid) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Polls until `poll` returns a value; panics with `message` at the limit.
pub fn await_some<T>(limit: Duration, message: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < limit, "{message} after {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An unused port outside the range of ephemeral ports.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let number =
            (std::process::id() as u16).wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + number % 10_000;
        if is_free(SocketAddr::from(([127, 0, 0, 1], port))) {
            return port;
        }
    }
}

/// Whether the address can be bound.
pub fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}
