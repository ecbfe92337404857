//! `cargo xtask bench allreduce`: `thalweg bench allreduce` beside Open MPI and Gloo, in turns, on one transport.
//!
//! On `tcp`, Open MPI is held to TCP, too. On `shm` it takes its own shared memory, and two of ours stand beside it:
//! tensors that live in the arena, and private ones that pass through it.
//!
//! The peers are timed by their own programs, in a folder beside the workspace or one that is named: a C program for
//! MPI and a Python script for Gloo, which print the same keys as ours. Those that this machine cannot run are left out
//! with a notice. The machine's noise meets all of them: each figure is the median over several rounds in which all
//! take their turn.

use crate::command::{Outcome, build_thalweg, output, root, run as run_command, succeeds};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to measure.
#[derive(Args)]
pub struct Arguments {
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "2,4,8")]
    ranks: Vec<usize>,
    /// What connects the ranks: shm or tcp
    #[arg(long, default_value = "shm")]
    transport: String,
    /// How long to measure each size in each round
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds in which all take their turn
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A Python with torch, for Gloo
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// The launcher of an Open MPI; its compiler stands beside it
    #[arg(long, default_value = "mpirun")]
    mpirun: PathBuf,
    /// The folder of gloo_allreduce.py and mpi_allreduce.c (default: shared/peers beside the workspace)
    #[arg(long)]
    peers: Option<PathBuf>,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
}

const OURS: &str = "thalweg";
const COPYING: &str = "arena-copying";
const MPI: &str = "openmpi";
const GLOO: &str = "gloo";

/// Microseconds by (ranks, bytes), then by peer, one per round.
type Figures = BTreeMap<(usize, usize), BTreeMap<String, Vec<f64>>>;

/// Measures all and prints a table with ratios.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    let beside = root().parent().map(|folder| folder.join("shared/peers")).unwrap_or_default();
    let peers = arguments.peers.clone().unwrap_or(beside);
    let mpi_program = mpi_program(arguments, &peers);
    let gloo = gloo_script(arguments, &peers);
    let mut figures = Figures::new();
    for _ in 0..arguments.rounds {
        for &ranks in &arguments.ranks {
            let seconds = arguments.seconds.to_string();
            let mut ours = Command::new(&binary);
            ours.args(["bench", "allreduce", "--json", "--transport", &arguments.transport]);
            ours.args(["--seconds", &seconds, "--ranks", &ranks.to_string()]);
            note(&mut figures, &mut ours)?;
            if let Some(program) = &mpi_program {
                let mut mpi = Command::new(&arguments.mpirun);
                mpi.args(["--oversubscribe", "-n", &ranks.to_string()]);
                if arguments.transport == "tcp" {
                    mpi.args(["--mca", "btl", "tcp,self"]);
                }
                mpi.arg(program).args([MPI, &seconds]);
                mpi.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                note(&mut figures, &mut mpi)?;
            }
            if let Some(script) = &gloo {
                let mut gloo = Command::new(&arguments.python);
                note(&mut figures, gloo.arg(script).args([&ranks.to_string(), &seconds]))?;
            }
        }
    }
    if let Some(program) = &mpi_program {
        let _ = std::fs::remove_file(program);
    }
    print!("{}", table(&figures));
    Ok(())
}

/// Compiles the MPI program into a file of its own; nothing if there is no MPI.
fn mpi_program(arguments: &Arguments, peers: &Path) -> Option<PathBuf> {
    let compiler = arguments.mpirun.with_file_name("mpicc");
    let source = peers.join("mpi_allreduce.c");
    if !source.exists() || !succeeds(Command::new(&compiler).arg("--version")) {
        println!("notice: without Open MPI: {} or {} is missing", compiler.display(), source.display());
        return None;
    }
    let program = std::env::temp_dir().join(format!("thalweg-mpi-allreduce-{}", std::process::id()));
    let compiled = run_command(Command::new(compiler).arg("-O2").arg("-o").arg(&program).arg(source));
    compiled.map_err(|error| println!("notice: without Open MPI: {error}")).ok().map(|()| program)
}

fn gloo_script(arguments: &Arguments, peers: &Path) -> Option<PathBuf> {
    let script = peers.join("gloo_allreduce.py");
    let ready = script.exists() && succeeds(Command::new(&arguments.python).args(["-c", "import torch"]));
    if !ready {
        println!("notice: without Gloo: {} or a Python with torch is missing", script.display());
    }
    ready.then_some(script)
}

/// Runs it and keeps the figures of the lines it prints.
fn note(figures: &mut Figures, command: &mut Command) -> Outcome {
    let text = output(command)?;
    for line in String::from_utf8_lossy(&text).lines() {
        let number = |key| value(line, key).and_then(|text| text.parse::<f64>().ok());
        if let (Some(peer), Some(ranks), Some(bytes), Some(time)) =
            (value(line, "peer"), number("n"), number("bytes"), number("us"))
        {
            let peer = if value(line, "algorithm") == Some(COPYING) { COPYING } else { peer };
            let peers = figures.entry((ranks as usize, bytes as usize)).or_default();
            peers.entry(peer.into()).or_default().push(time);
        }
    }
    Ok(())
}

/// The value of a key in a flat JSON object, without its quotes.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, behind) = line.split_once(&format!("\"{key}\":"))?;
    let end = behind.find([',', '}'])?;
    Some(behind[..end].trim().trim_matches('"'))
}

fn table(figures: &Figures) -> String {
    let mut table = String::from(
        "ranks      bytes    thalweg us    copying us    openmpi us       gloo us  openmpi/ours  openmpi/copying  gloo/ours\n",
    );
    for ((ranks, bytes), peers) in figures {
        let times = [OURS, COPYING, MPI, GLOO].map(|peer| peers.get(peer).map(|times| median(times)));
        let shown = times.map(|time| time.map_or("-".into(), |time| format!("{time:.1}")));
        let ratio = |peer: Option<f64>, ours: Option<f64>| match (peer, ours) {
            (Some(peer), Some(ours)) => format!("{:.2}x", peer / ours),
            _ => "-".into(),
        };
        table += &format!(
            "{ranks:>5} {bytes:>10} {:>13} {:>13} {:>13} {:>13} {:>13} {:>16} {:>10}\n",
            shown[0],
            shown[1],
            shown[2],
            shown[3],
            ratio(times[2], times[0]),
            ratio(times[2], times[1]),
            ratio(times[3], times[0])
        );
    }
    table
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_a_line() {
        let line = "{\"peer\": \"gloo\", \"n\": 2, \"bytes\": 4096, \"us\": 789.25}";
        assert_eq!(value(line, "peer"), Some("gloo"));
        assert_eq!(value(line, "us"), Some("789.25"));
        assert_eq!(value(line, "bus_gbps"), None);
    }

    #[test]
    fn ratios_are_of_medians_and_missing_peers_a_dash() {
        let peers = BTreeMap::from([(OURS.to_string(), vec![5.0, 1.0, 2.0]), (MPI.to_string(), vec![4.0])]);
        let table = table(&Figures::from([((2, 4096), peers)]));
        assert!(table.lines().nth(1).is_some_and(|line| line.contains("2.00x") && line.ends_with("-")));
    }
}
