//! The process that runs the cases, started again behind every case that ends it.

use super::repeated;
use crate::command::{Outcome, output};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Time of a processor that a case may take: other processes do not count.
const MOST_TIME: Duration = Duration::from_secs(2);

/// Time on the clock that a case may take, for one that waits and computes nothing.
const MOST_WAIT: Duration = Duration::from_secs(120);

/// How often the process is looked at.
const PAUSE: Duration = Duration::from_millis(50);

/// What was found.
#[derive(Debug, Default)]
pub struct Tally {
    pub cases: u64,
    pub refused: u64,
    pub findings: Vec<String>,
}

impl Tally {
    /// Tells a finding and counts it.
    pub fn found(&mut self, batch: &Batch, case: u64, what: &str) {
        println!("finding: case {case}: {what}\n    repeat: {}", repeated(batch, case));
        self.findings.push(what.to_string());
    }
}

/// The program that runs cases, and which ones.
pub struct Batch {
    pub program: PathBuf,
    pub seed: u64,
    pub kind: Option<String>,
}

/// How a process ended: by itself, or at a case.
enum End {
    Exited(ExitStatus),
    TooLong,
}

impl Batch {
    fn command(&self, first: u64, count: u64, status: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--seed", &self.seed.to_string(), "--first", &first.to_string()]);
        command.args(["--count", &count.to_string(), "--status"]).arg(status);
        command.args(self.kind.iter().flat_map(|kind| ["--kind", kind]));
        command
    }

    /// Writes the files of some cases under a folder; each line says a kind and a path.
    pub fn keep(&self, first: u64, count: u64, folder: &Path) -> Outcome {
        print!("{}", self.written(first, count, folder)?);
        Ok(())
    }

    /// The same, in silence.
    pub fn written(&self, first: u64, count: u64, folder: &Path) -> Outcome<String> {
        let status = std::env::temp_dir().join(format!("thalweg-fuzz-{}-keep", std::process::id()));
        let lines = output(self.command(first, count, &status).arg("--keep").arg(folder));
        let _ = std::fs::remove_file(status);
        Ok(String::from_utf8_lossy(&lines?).into_owned())
    }

    /// Runs cases until all of them were run.
    pub fn run(&self, first: u64, count: u64, tally: &mut Tally) -> Outcome {
        let status = std::env::temp_dir().join(format!("thalweg-fuzz-{}", std::process::id()));
        let ended = self.run_all(first, first.saturating_add(count), &status, tally);
        let _ = std::fs::remove_file(&status);
        ended
    }

    fn run_all(&self, mut next: u64, end: u64, status: &Path, tally: &mut Tally) -> Outcome {
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
                        tally.found(self, case.parse().unwrap_or(next), &what.join(" "));
                    }
                    ["done", _, count] => refused = count.parse::<u64>().ok(),
                    _ => println!("{line}"),
                }
            }
            match ended {
                End::Exited(status) if status.success() => {
                    tally.refused += refused.unwrap_or(0);
                    tally.cases += end - next;
                    return Ok(());
                }
                End::Exited(status) => match status.signal() {
                    Some(signal) => tally.found(self, case, &format!("ended by signal {signal}")),
                    None => return Err(format!("the process of the cases ended with {status}")),
                },
                End::TooLong => tally.found(self, case, "more than two seconds"),
            }
            tally.cases += case + 1 - next;
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

/// Waits for the end of the process, and ends it where a case takes too long.
fn watch(child: &mut Child, status: &Path) -> Outcome<End> {
    let (mut case, mut since, mut used) = (None, Instant::now(), Duration::ZERO);
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return Ok(End::Exited(status)),
            Err(error) => return Err(format!("cannot wait for the cases: {error}")),
        }
        let (present, time) = (case_of(status), processor_time(child.id()));
        if present != case {
            (case, since, used) = (present, Instant::now(), time);
        }
        if time.saturating_sub(used) > MOST_TIME || since.elapsed() > MOST_WAIT {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(End::TooLong);
        }
        std::thread::sleep(PAUSE);
    }
}

fn case_of(status: &Path) -> Option<u64> {
    let mut bytes = [0; 8];
    File::open(status).ok()?.read_exact(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// What a process has computed so far.
fn processor_time(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    Duration::from_millis(10 * ticks(&text))
}

/// Ticks of user and system, a hundredth of a second each, behind the name in parentheses.
fn ticks(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_is_read() {
        let stat = "17 (a (b) c) R 1 17 17 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 99 0 0";
        assert_eq!(ticks(stat), 300);
        assert_eq!(ticks(""), 0);
    }
}
