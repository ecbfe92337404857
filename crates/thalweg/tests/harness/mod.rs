//! Real processes under test: a folder of their own, a mark by which all of them are found again, and an end to them
//! whatever happens.
//!
//! Every process a [`Site`] starts, and every process those start, carries the site's mark in its environment. So the
//! workers of a launcher are found by rank, "no process is left" is a question with an answer, and nothing is ever
//! ended that the test did not start. Nothing here sleeps for a fixed time: it waits for conditions, with a limit.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub mod debugger;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Ten times what is promised for a killed worker.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Long enough for any training in these tests, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The variable that marks all processes of a site.
const MARK: &str = "THALWEG_HARNESS_MARK";

/// What other launchers set; the machine that runs the tests may be a worker of one.
const LAUNCHERS: [&str; 8] =
    ["OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "PET_", "JOB_COMPLETION_", "MASTER_", "THALWEG_"];
const RANKS: [&str; 4] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];

/// A job that is always in the middle of an epoch: many small steps, none of them quick. It ends with the first rank that
/// is lost.
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

/// Says why a test does nothing here, past the test runner, which hides what a passing test prints.
pub fn skip(why: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// A folder with the processes that run in it.
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

    /// A program that runs in the folder and carries the mark.
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

    /// Runs `thalweg` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end(PATIENCE)
    }

    /// Runs `thalweg` to its end, which must be a good one.
    pub fn succeed(&self, arguments: &[&str]) -> Ended {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended
    }

    /// All living processes with the mark, and the rank each carries.
    pub fn processes(&self) -> Vec<(Pid, Option<usize>)> {
        let mark = format!("{MARK}={}", self.mark);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that has ended meanwhile, or belongs to somebody else, cannot be read.
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
        await_some(LIMIT, &format!("no process of rank {rank}"), || {
            self.processes().iter().find(|(_, other)| *other == Some(rank)).map(|(process, _)| *process)
        })
    }

    /// Sends a signal to the process of a rank and returns its number.
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

    /// Nothing may be left.
    pub fn assert_empty(&self) {
        let left = self.processes();
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// The lines of a run's events.jsonl so far.
    pub fn events(&self, run: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.path(run).join("events.jsonl")).unwrap_or_default();
        // The last line may be in the middle of being written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until a run has written an event of this kind, and returns the first.
    pub fn await_event(&self, run: &str, kind: &str) -> serde_json::Value {
        await_some(PATIENCE, &format!("no {kind} event in {run}"), || {
            self.events(run).into_iter().find(|event| event["event"] == kind)
        })
    }

    /// Waits until training has got to a step.
    pub fn await_step(&self, run: &str, step: u64) {
        await_some(PATIENCE, &format!("{run} does not get to step {step}"), || {
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

/// Makes SIGHUP end the processes that this one starts, even if it was itself started to ignore it (`nohup cargo test`):
/// a program inherits which signals are ignored, but not which are handled.
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
        // A launcher that starts a worker at this very moment: one more look finds it.
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

/// The state of a process as the kernel says it: `T` is stopped.
pub fn state(process: Pid) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Waits until there is something; gives up at the limit.
pub fn await_some<T>(limit: Duration, complaint: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "{complaint} after {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port nobody uses, outside the range from which the system takes ports for connections.
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

/// Whether one could listen there.
pub fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}

/// A process, and what it says.
pub struct Process {
    child: Child,
    stdout: (Arc<Mutex<Vec<u8>>>, JoinHandle<()>),
    stderr: (Arc<Mutex<Vec<u8>>>, JoinHandle<()>),
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; nothing if a signal ended it.
    pub code: Option<i32>,
    /// What it said.
    pub stdout: String,
    /// What it said on the side.
    pub stderr: String,
    /// How long the end took, from the moment it was waited for.
    pub took: Duration,
}

impl Process {
    /// Starts a command and listens to it.
    pub fn start(mut command: Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let stdout = listen(child.stdout.take().unwrap());
        let stderr = listen(child.stderr.take().unwrap());
        Process { child, stdout, stderr }
    }

    /// Starts a command whose standard error is a pipe without a reader.
    pub fn start_without_stderr(mut command: Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        drop(child.stderr.take());
        let stdout = listen(child.stdout.take().unwrap());
        Process { child, stdout, stderr: listen(std::io::empty()) }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.id(), signal).unwrap();
    }

    /// Its number.
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// What it has said on standard error so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stderr.0.lock().unwrap()).into_owned()
    }

    /// Waits until it has said something on standard error.
    pub fn await_said(&self, text: &str) {
        await_some(PATIENCE, &format!("it does not say {text:?}"), || {
            self.said().contains(text).then_some(())
        });
    }

    /// Waits for its end.
    pub fn end(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < limit, "it does not end within {limit:?}; it said: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = start.elapsed();
        Ended { code: status.code(), stdout: all(self.stdout), stderr: all(self.stderr), took }
    }
}

fn listen(mut stream: impl Read + Send + 'static) -> (Arc<Mutex<Vec<u8>>>, JoinHandle<()>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&heard);
    let thread = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            ear.lock().unwrap().extend_from_slice(&piece[..count]);
        }
    });
    (heard, thread)
}

/// All of it: the stream ends when nobody is left who could write to it.
fn all((heard, thread): (Arc<Mutex<Vec<u8>>>, JoinHandle<()>)) -> String {
    await_some(LIMIT, "its output stays open: a process is left", || thread.is_finished().then_some(()));
    String::from_utf8_lossy(&heard.lock().unwrap()).into_owned()
}

impl Ended {
    /// The line that says what went wrong: the last one, but for what to do about it.
    pub fn error(&self) -> &str {
        let mut lines =
            self.stderr.lines().rev().filter(|line| !line.trim_start().starts_with("what to do:"));
        lines.next().unwrap_or("")
    }

    /// It ended with this code, the error line says all of this, and nothing else comes after it.
    #[track_caller]
    pub fn assert_error(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        let error = self.error();
        assert!(error.starts_with("error: "), "the error is not the last thing said:\n{}", self.stderr);
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
    }

    /// It says what to do, with this in it.
    #[track_caller]
    pub fn assert_advice(&self, part: &str) {
        let advice = self.stderr.lines().last().unwrap_or("");
        assert!(advice.trim_start().starts_with("what to do:"), "no advice in:\n{}", self.stderr);
        assert!(advice.contains(part), "{part:?} is missing in {advice:?}");
    }
}
