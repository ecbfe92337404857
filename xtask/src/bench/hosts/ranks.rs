//! One process per host, started as by torchrun, and its output.

use super::network::Network;
use crate::command::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PORT: &str = "29500";
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The ranks of a group, killed on drop.
pub struct Ranks {
    children: Vec<Child>,
    folder: PathBuf,
}

impl Ranks {
    pub fn train(network: &Network, binary: &Path, settings: &[&str]) -> Outcome<Ranks> {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = ["train", "--out", "run"].into_iter().chain(sets).collect();
        Ranks::start(network, binary, &arguments)
    }

    /// Starts the binary with these arguments on every host, in a shared folder.
    pub fn start(network: &Network, binary: &Path, arguments: &[&str]) -> Outcome<Ranks> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let mark = format!("{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("thalweg-hosts-{mark}"));
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let binary = fs::canonicalize(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
        let mut ranks = Ranks { children: Vec::new(), folder };
        for rank in 0..network.len() {
            let cannot = |error: std::io::Error| format!("cannot start rank {rank}: {error}");
            let output = fs::File::create(ranks.folder.join(format!("{rank}.txt"))).map_err(cannot)?;
            let errors = output.try_clone().map_err(cannot)?;
            let mut command = network.command_on(rank, &binary);
            command.args(arguments).current_dir(&ranks.folder);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", network.len().to_string());
            command.env("MASTER_ADDR", network.address(0)).env("MASTER_PORT", PORT);
            command
                .env("THALWEG_TOKEN", format!("thalweg-hosts-{mark}"))
                .env("THALWEG_HOST", format!("host{rank}"));
            command.stdin(Stdio::null()).stdout(output).stderr(errors);
            ranks.children.push(command.spawn().map_err(cannot)?);
        }
        Ok(ranks)
    }

    pub fn wait(&mut self, rank: usize, limit: Duration) -> Outcome<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.children[rank].try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if begin.elapsed() < limit => std::thread::sleep(POLL_INTERVAL),
                Ok(None) => {
                    return Err(format!(
                        "rank {rank} is still running after {limit:?}\n{}",
                        self.output(rank)
                    ));
                }
                Err(error) => return Err(format!("cannot wait for rank {rank}: {error}")),
            }
        }
    }

    /// Waits until all have succeeded.
    pub fn succeed(&mut self, limit: Duration) -> Outcome {
        for rank in 0..self.children.len() {
            let status = self.wait(rank, limit)?;
            if !status.success() {
                return Err(format!("rank {rank} ended with {status}\n{}", self.output(rank)));
            }
        }
        Ok(())
    }

    /// Waits for the first step.
    pub fn wait_for_steps(&mut self, limit: Duration) -> Outcome {
        let begin = Instant::now();
        let events = self.folder.join("run/events.jsonl");
        while !fs::read_to_string(&events).is_ok_and(|text| text.contains("\"event\":\"step\"")) {
            if begin.elapsed() > limit || self.children[0].try_wait().is_ok_and(|status| status.is_some()) {
                return Err(format!("no step was completed\n{}", self.output(0)));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits until a rank has printed this text.
    pub fn wait_for_output(&mut self, rank: usize, text: &str, limit: Duration) -> Outcome {
        let begin = Instant::now();
        while !self.output(rank).contains(text) {
            let ended = self.children[rank].try_wait().is_ok_and(|status| status.is_some());
            if begin.elapsed() > limit || (ended && !self.output(rank).contains(text)) {
                return Err(format!("rank {rank} has not printed `{text}`\n{}", self.output(rank)));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    pub fn output(&self, rank: usize) -> String {
        fs::read_to_string(self.folder.join(format!("{rank}.txt"))).unwrap_or_default()
    }

    pub fn report(&self) -> Outcome<String> {
        let path = self.folder.join("run/report.json");
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // A process that has exited already is not an error.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// All numbers of a key, at any depth of a JSON text.
pub fn numbers(text: &str, key: &str) -> Vec<f64> {
    let key = format!("\"{key}\":");
    let number = |rest: &str| rest.split([',', '}', '\n']).next().and_then(|word| word.trim().parse().ok());
    text.split(&key).skip(1).filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_a_report() {
        let text = "{\"ranks\": [{\n \"hidden_s\": 1.5,\n \"x\": 2},\n{\"hidden_s\": 2.5}]}";
        assert_eq!(numbers(text, "hidden_s"), [1.5, 2.5]);
        assert!(numbers(text, "wait_s").is_empty());
    }
}
