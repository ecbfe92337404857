//! Runs cases in a child process, and restarts it after a case that kills it.

use super::repeat_command;
use crate::command::{Outcome, output};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// CPU time of a case; load by other processes does not count.
const MAX_CPU_TIME: Duration = Duration::from_secs(2);

/// Wall time of a case, for one that blocks.
const MAX_WALL_TIME: Duration = Duration::from_secs(120);

const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub struct FuzzResults {
    pub cases: u64,
    pub refused: u64,
    pub findings: Vec<String>,
}

impl FuzzResults {
    /// Prints and records a finding.
    pub fn found(&mut self, runner: &CaseRunner, case: u64, what: &str) {
        println!("finding: case {case}: {what}\n    repeat: {}", repeat_command(runner, case));
        self.findings.push(what.to_string());
    }
}

/// The program that runs cases, and the source of the cases.
pub struct CaseRunner {
    pub program: PathBuf,
    pub seed: u64,
    pub kind: Option<String>,
}

enum End {
    Exited(ExitStatus),
    TooLong,
}

impl CaseRunner {
    fn command(&self, first: u64, count: u64, status: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--seed", &self.seed.to_string(), "--first", &first.to_string()]);
        command.args(["--count", &count.to_string(), "--status"]).arg(status);
        command.args(self.kind.iter().flat_map(|kind| ["--kind", kind]));
        command
    }

    /// Writes the files of some cases into a folder and prints kind and path of each.
    pub fn keep(&self, first: u64, count: u64, folder: &Path) -> Outcome {
        print!("{}", self.written(first, count, folder)?);
        Ok(())
    }

    /// The same without output; returns the lines.
    pub fn written(&self, first: u64, count: u64, folder: &Path) -> Outcome<String> {
        let status = std::env::temp_dir().join(format!("thalweg-fuzz-{}-keep", std::process::id()));
        let lines = output(self.command(first, count, &status).arg("--keep").arg(folder));
        let _ = std::fs::remove_file(status);
        Ok(String::from_utf8_lossy(&lines?).into_owned())
    }

    pub fn run(&self, first: u64, count: u64, results: &mut FuzzResults) -> Outcome {
        let status = std::env::temp_dir().join(format!("thalweg-fuzz-{}", std::process::id()));
        let ended = self.run_all(first, first.saturating_add(count), &status, results);
        let _ = std::fs::remove_file(&status);
        ended
    }

    fn run_all(&self, mut next: u64, end: u64, status: &Path, results: &mut FuzzResults) -> Outcome {
        while next < end {
            let _ = std::fs::write(status, next.to_le_bytes());
            let mut command = self.command(next, end - next, status);
            let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
            let mut child = started.map_err(|error| format!("cannot start the cases: {error}"))?;
            let lines = lines_of(&mut child);
            let ended = watch(&mut child, status)?;
            let case = case_of(status).filter(|case| (next..end).contains(case)).unwrap_or(next);
            let mut refused = None;
            for line in lines {
                match line.split(' ').collect::<Vec<_>>().as_slice() {
                    ["finding", case, what @ ..] => {
                        results.found(self, case.parse().unwrap_or(next), &what.join(" "));
                    }
                    ["done", _, count] => refused = count.parse::<u64>().ok(),
                    _ => println!("{line}"),
                }
            }
            match ended {
                End::Exited(status) if status.success() => {
                    results.refused += refused.unwrap_or(0);
                    results.cases += end - next;
                    return Ok(());
                }
                End::Exited(status) => match status.signal() {
                    Some(signal) => results.found(self, case, &format!("ended by signal {signal}")),
                    None => return Err(format!("the process of the cases ended with {status}")),
                },
                End::TooLong => results.found(self, case, "more than two seconds"),
            }
            results.cases += case + 1 - next;
            next = case + 1;
        }
        Ok(())
    }
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}

/// Waits for the process to exit, and kills it if a case takes too long.
fn watch(child: &mut Child, status: &Path) -> Outcome<End> {
    let (mut case, mut since, mut used) = (None, Instant::now(), Duration::ZERO);
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return Ok(End::Exited(status)),
            Err(error) => return Err(format!("cannot wait for the cases: {error}")),
        }
        let (current, time) = (case_of(status), cpu_time(child.id()));
        if current != case {
            (case, since, used) = (current, Instant::now(), time);
        }
        if time.saturating_sub(used) > MAX_CPU_TIME || since.elapsed() > MAX_WALL_TIME {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(End::TooLong);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn case_of(status: &Path) -> Option<u64> {
    let mut bytes = [0; 8];
    File::open(status).ok()?.read_exact(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// CPU time of a process.
fn cpu_time(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    Duration::from_millis(10 * ticks(&text))
}

/// User and system time in ticks of 10 ms: the 14th and 15th field of /proc/PID/stat.
fn ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed() {
        let stat = "17 (a (b) c) R 1 17 17 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 99 0 0";
        assert_eq!(ticks(stat), 300);
        assert_eq!(ticks(""), 0);
    }
}
