//! One process per host, as torchrun would start them, and what they leave behind.

use super::network::Network;
use crate::command::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const PORT: &str = "29500";
const GLANCE: Duration = Duration::from_millis(5);

/// The ranks of a group; dropping it ends them.
pub struct Ranks {
    children: Vec<Child>,
    folder: PathBuf,
}

impl Ranks {
    /// Starts a training job of these settings.
    pub fn train(network: &Network, binary: &Path, settings: &[&str]) -> Outcome<Ranks> {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let words: Vec<&str> = ["train", "--out", "run"].into_iter().chain(sets).collect();
        Ranks::start(network, binary, &words)
    }

    /// Starts the binary with these words on every host, in a folder that they share.
    pub fn start(network: &Network, binary: &Path, words: &[&str]) -> Outcome<Ranks> {
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
            let mut command = network.inside(rank, &binary);
            command.args(words).current_dir(&ranks.folder);
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

    /// Waits for the end of one.
    pub fn wait(&mut self, rank: usize, limit: Duration) -> Outcome<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.children[rank].try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if begin.elapsed() < limit => std::thread::sleep(GLANCE),
                Ok(None) => return Err(format!("rank {rank} runs for {limit:?}\n{}", self.output(rank))),
                Err(error) => return Err(format!("cannot wait for rank {rank}: {error}")),
            }
        }
    }

    /// Waits until all have ended well.
    pub fn succeed(&mut self, limit: Duration) -> Outcome {
        for rank in 0..self.children.len() {
            let status = self.wait(rank, limit)?;
            if !status.success() {
                return Err(format!("rank {rank} ended with {status}\n{}", self.output(rank)));
            }
        }
        Ok(())
    }

    /// Returns once steps are being made.
    pub fn wait_for_steps(&mut self, limit: Duration) -> Outcome {
        let begin = Instant::now();
        let events = self.folder.join("run/events.jsonl");
        while !fs::read_to_string(&events).is_ok_and(|text| text.contains("\"event\":\"step\"")) {
            if begin.elapsed() > limit || self.children[0].try_wait().is_ok_and(|status| status.is_some()) {
                return Err(format!("no step was made\n{}", self.output(0)));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Returns once one has printed these words.
    pub fn wait_for_words(&mut self, rank: usize, words: &str, limit: Duration) -> Outcome {
        let begin = Instant::now();
        while !self.output(rank).contains(words) {
            let ended = self.children[rank].try_wait().is_ok_and(|status| status.is_some());
            if begin.elapsed() > limit || (ended && !self.output(rank).contains(words)) {
                return Err(format!("rank {rank} has not said `{words}`\n{}", self.output(rank)));
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// What one has printed.
    pub fn output(&self, rank: usize) -> String {
        fs::read_to_string(self.folder.join(format!("{rank}.txt"))).unwrap_or_default()
    }

    /// The report of a training job.
    pub fn report(&self) -> Outcome<String> {
        let path = self.folder.join("run/report.json");
        fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended already is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// All numbers behind a key, wherever it stands in a JSON text.
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
