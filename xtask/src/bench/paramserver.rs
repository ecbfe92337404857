//! `cargo xtask bench paramserver`: `thalweg bench paramserver` compared with PyTorch RPC and, on tcp, with a plain socket.
//!
//! All systems take turns in several rounds, and ratios are those within a round. A missed target is a failure.

use super::peer::{Peers, Rates, Script, number, value};
use crate::command::{Outcome, build_thalweg, output, root, shell_line};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
pub struct Arguments {
    /// Sizes in bytes of the gradient and of the parameters
    #[arg(long, value_delimiter = ',', default_value = "4194304,104857600")]
    sizes: Vec<usize>,
    /// Workers of the asynchronous updates; the first size alone
    #[arg(long, default_value_t = 8)]
    workers: usize,
    /// Seconds per case and round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds in which all systems take turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    peers: Peers,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// The least ratio to PyTorch RPC in shared memory, and to a plain socket over tcp.
const SHARED: f64 = 3.0;
const SOCKET: f64 = 0.8;

/// Rates of one system in one round, in MB/s (updates: per second), by operation and bytes.
type Figures = BTreeMap<(String, usize), f64>;

/// All rounds of a comparison.
#[derive(Default)]
struct Comparison(BTreeMap<(usize, String), Rates>);

/// Measures all systems and prints a table with ratios.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let script = root().join("xtask/src/bench/paramserver/torch_rpc.py");
    let script = arguments.peers.own_script(script);
    let script = script.map_err(|reason| println!("notice: without PyTorch RPC: {reason}")).ok();
    let (mut shared, mut tcp) = (Comparison::default(), Comparison::default());
    for _ in 0..arguments.rounds.max(1) {
        for (workers, ops) in [(1, "push,pull"), (arguments.workers, "update")] {
            let sizes = if workers == 1 { &arguments.sizes[..] } else { &arguments.sizes[..1] };
            let ours =
                |transport| figures(&mut our_command(arguments, &binary, transport, workers, sizes, ops));
            let in_memory = ours("shm")?;
            if let Some(script) = &script {
                let theirs = figures(&mut their_command(arguments, script, workers, sizes, ops))?;
                shared.add("PyTorch RPC", &in_memory, |case| theirs.get(case).copied());
            }
            let over_tcp = ours("tcp")?;
            tcp.add("a socket", &over_tcp, |(_, bytes)| over_tcp.get(&("stream".into(), *bytes)).copied());
        }
    }
    println!("MB/s, updates per second              {}", Rates::HEADER);
    let passed = shared.print("shm", SHARED) & tcp.print("tcp", SOCKET);
    if passed { Ok(()) } else { Err("a target was missed".into()) }
}

fn our_command(
    arguments: &Arguments,
    binary: &Path,
    transport: &str,
    workers: usize,
    sizes: &[usize],
    ops: &str,
) -> Command {
    let mut command = Command::new(binary);
    command.args([
        "bench",
        "paramserver",
        "--json",
        "--servers",
        "1",
        "--transport",
        transport,
        "--ops",
        ops,
    ]);
    command.args(["--workers", &workers.to_string(), "--sizes", &list(sizes, "B")]);
    command.args(["--seconds", &arguments.seconds.to_string()]);
    command
}

fn their_command(
    arguments: &Arguments,
    script: &Script,
    workers: usize,
    sizes: &[usize],
    ops: &str,
) -> Command {
    let mut command =
        script.with(&[&workers.to_string(), &list(sizes, ""), ops, &arguments.seconds.to_string()]);
    command.env("OMP_NUM_THREADS", "1").env("PYTHONWARNINGS", "ignore");
    command
}

fn list(sizes: &[usize], unit: &str) -> String {
    sizes.iter().map(|size| format!("{size}{unit}")).collect::<Vec<_>>().join(",")
}

/// Runs a program and reads a figure from each JSON line that it prints.
fn figures(command: &mut Command) -> Outcome<Figures> {
    let text = String::from_utf8_lossy(&output(command)?).into_owned();
    let found: Figures = text.lines().filter_map(figure).collect();
    if found.is_empty() {
        return Err(format!("`{}` printed no figures: {text}", shell_line(command)));
    }
    Ok(found)
}

fn figure(line: &str) -> Option<((String, usize), f64)> {
    let (op, bytes) = (value(line, "op")?, number(line, "bytes")?);
    let rate = number(line, "updates_per_s").or_else(|| Some(1e3 * number(line, "gbps")?))?;
    Some(((op.into(), bytes as usize), rate))
}

impl Comparison {
    fn add(&mut self, peer: &str, ours: &Figures, theirs: impl Fn(&(String, usize)) -> Option<f64>) {
        for (case, rate) in ours.iter().filter(|((op, _), _)| op != "stream") {
            if let Some(other) = theirs(case) {
                let name = format!("{} {} / {peer}", case.0, case.1);
                self.0.entry((case.1, name)).or_default().push(*rate, other);
            }
        }
    }

    /// Prints a line per case; whether all with a target reach it.
    fn print(&self, transport: &str, target: f64) -> bool {
        let mut passed = true;
        for ((_, name), rates) in &self.0 {
            let target = Some(target).filter(|_| !name.starts_with("update"));
            println!("{transport} {name:<33} {}", rates.line(target));
            passed &= target.is_none_or(|target| rates.ratio() >= target);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_systems_are_read() {
        let ours =
            r#"{"peer":"thalweg","transport":"shm","op":"push","bytes":4194304,"gbps":12.5,"us":335.0}"#;
        let theirs =
            r#"{"peer": "torch-rpc", "op": "update", "bytes": 8, "gbps": 1.0, "updates_per_s": 30.5}"#;
        assert_eq!(figure(ours), Some((("push".into(), 4_194_304), 12_500.0)));
        assert_eq!(figure(theirs), Some((("update".into(), 8), 30.5)));
        assert_eq!(figure("a warning"), None);
    }

    #[test]
    fn a_case_below_its_target_fails_and_updates_have_none() {
        let figures = |push: f64, update: f64| -> Figures {
            [(("push".into(), 8), push), (("update".into(), 8), update)].into_iter().collect()
        };
        let mut comparison = Comparison::default();
        let theirs = figures(100.0, 100.0);
        comparison.add("a peer", &figures(250.0, 10.0), |case| theirs.get(case).copied());
        assert!(comparison.print("shm", 2.5) && !comparison.print("shm", 2.6));
    }
}
