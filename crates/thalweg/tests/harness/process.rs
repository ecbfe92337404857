//! A process under test: its captured output, signals, and assertions about its exit.

use super::{LIMIT, TRAINING_LIMIT, await_some};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A process and its output.
pub struct Process {
    child: Child,
    stdout: (Arc<Mutex<Vec<u8>>>, JoinHandle<()>),
    stderr: (Arc<Mutex<Vec<u8>>>, JoinHandle<()>),
}

/// Exit code and output of a process.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Time from the start of the wait to the exit.
    pub took: Duration,
}

impl Process {
    /// Starts a command and captures its output.
    pub fn start(mut command: Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let stdout = capture(child.stdout.take().unwrap());
        let stderr = capture(child.stderr.take().unwrap());
        Process { child, stdout, stderr }
    }

    /// Starts a command whose standard error is a pipe without a reader.
    pub fn start_without_stderr(mut command: Command) -> Process {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        drop(child.stderr.take());
        let stdout = capture(child.stdout.take().unwrap());
        Process { child, stdout, stderr: capture(std::io::empty()) }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.id(), signal).unwrap();
    }

    /// Process id.
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Standard error so far.
    pub fn stderr_so_far(&self) -> String {
        String::from_utf8_lossy(&self.stderr.0.lock().unwrap()).into_owned()
    }

    /// Waits until standard error contains a text.
    pub fn await_stderr(&self, text: &str) {
        await_some(TRAINING_LIMIT, &format!("{text:?} is not in stderr"), || {
            self.stderr_so_far().contains(text).then_some(())
        });
    }

    /// Waits for the exit.
    pub fn end(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                start.elapsed() < limit,
                "it does not exit within {limit:?}; stderr: {}",
                self.stderr_so_far()
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = start.elapsed();
        Ended { code: status.code(), stdout: all(self.stdout), stderr: all(self.stderr), took }
    }
}

fn capture(mut stream: impl Read + Send + 'static) -> (Arc<Mutex<Vec<u8>>>, JoinHandle<()>) {
    let captured = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&captured);
    let thread = std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            shared.lock().unwrap().extend_from_slice(&piece[..count]);
        }
    });
    (captured, thread)
}

/// The complete output: the stream ends when no process holds its write end.
fn all((captured, thread): (Arc<Mutex<Vec<u8>>>, JoinHandle<()>)) -> String {
    await_some(LIMIT, "its output stays open: a process is left", || thread.is_finished().then_some(()));
    String::from_utf8_lossy(&captured.lock().unwrap()).into_owned()
}

impl Ended {
    /// The error line: the last one before the advice.
    pub fn error(&self) -> &str {
        let mut lines =
            self.stderr.lines().rev().filter(|line| !line.trim_start().starts_with("what to do:"));
        lines.next().unwrap_or("")
    }

    /// Asserts the exit code, the parts of the error line, and that the error is the last output.
    #[track_caller]
    pub fn assert_error(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        let error = self.error();
        assert!(error.starts_with("error: "), "the error is not the last output:\n{}", self.stderr);
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing in {error:?}");
        }
    }

    /// Asserts that the last line is advice that contains `part`.
    #[track_caller]
    pub fn assert_advice(&self, part: &str) {
        let advice = self.stderr.lines().last().unwrap_or("");
        assert!(advice.trim_start().starts_with("what to do:"), "no advice in:\n{}", self.stderr);
        assert!(advice.contains(part), "{part:?} is missing in {advice:?}");
    }
}
