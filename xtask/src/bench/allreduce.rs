//! `cargo xtask bench allreduce`: `thalweg bench allreduce` beside Open MPI and Gloo, in turns, on one transport.
//!
//! On `tcp`, Open MPI is held to TCP, too. On `shm` it takes its own shared memory, and two of ours stand beside it:
//! tensors that live in the arena, and private ones that pass through it.
//!
//! The peers are timed by their own programs, in a folder beside the workspace or one that is named: a C program for
//! MPI and a Python script for Gloo, which print the same keys as ours. Those that this machine cannot run are left out
//! with a notice. The machine's noise meets all of them: each figure is the median over several rounds in which all
//! take their turn. A missed target is a failure.

use super::against::{self, Pairs, Verdict};
use super::peer::{Peers, median, number, value, yes};
use crate::command::{Outcome, build_thalweg, output, run as run_command, succeeds};
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
    /// The launcher of an Open MPI; its compiler stands beside it
    #[arg(long, default_value = "mpirun")]
    mpirun: PathBuf,
    #[command(flatten)]
    peers: Peers,
    /// A binary to measure instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Another binary of this project to compare with instead of the peers, in alternating pairs
    #[arg(long, value_name = "BINARY")]
    against: Option<PathBuf>,
}

const OURS: &str = "thalweg";
const COPYING: &str = "arena-copying";
const MPI: &str = "openmpi";
const GLOO: &str = "gloo";

const KIB_4: usize = 4 << 10;
const MIB_1: usize = 1 << 20;
const MIB_100: usize = 100 << 20;

/// What counts as level with a peer.
const LEVEL: f64 = 0.9;

/// Microseconds by (ranks, bytes), then by peer, one per round.
type Figures = BTreeMap<(usize, usize), BTreeMap<String, Vec<f64>>>;

/// Measures all and prints a table with ratios.
pub fn run(arguments: &Arguments) -> Outcome {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => build_thalweg(&["--release"])?,
    };
    if let Some(other) = &arguments.against {
        return compare_with(arguments, &binary, other);
    }
    let mpi_program = left_out("Open MPI", mpi_program(arguments));
    let gloo = left_out("Gloo", arguments.peers.script("gloo_allreduce.py"));
    let mut figures = Figures::new();
    for _ in 0..arguments.rounds {
        for &ranks in &arguments.ranks {
            let seconds = arguments.seconds.to_string();
            note(&mut figures, &mut our_command(arguments, &binary, ranks))?;
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
                note(&mut figures, &mut script.with(&[&ranks.to_string(), &seconds]))?;
            }
        }
    }
    if let Some(program) = &mpi_program {
        let _ = std::fs::remove_file(program);
    }
    let (table, held) = table(&arguments.transport, &figures);
    print!("{table}");
    if held { Ok(()) } else { Err("a target was missed".into()) }
}

fn our_command(arguments: &Arguments, binary: &Path, ranks: usize) -> Command {
    let mut command = Command::new(binary);
    command.args(["bench", "allreduce", "--json", "--transport", &arguments.transport]);
    command.args(["--seconds", &arguments.seconds.to_string(), "--ranks", &ranks.to_string()]);
    command
}

/// The same sizes with another binary of this project, in alternating pairs of rounds; a slower case is a failure.
fn compare_with(arguments: &Arguments, ours: &Path, other: &Path) -> Outcome {
    let [mut mine, mut its] = [Figures::new(), Figures::new()];
    for round in 0..arguments.rounds.max(1) {
        for &ranks in &arguments.ranks {
            let run =
                |figures: &mut Figures, binary| note(figures, &mut our_command(arguments, binary, ranks));
            if round % 2 == 0 {
                run(&mut mine, ours)?;
            }
            run(&mut its, other)?;
            if round % 2 == 1 {
                run(&mut mine, ours)?;
            }
        }
    }
    println!("calls per second; {}", against::HEADER);
    let mut held = true;
    for ((ranks, bytes), kinds) in &mine {
        for (kind, times) in kinds {
            let others = its.get(&(*ranks, *bytes)).and_then(|kinds| kinds.get(kind));
            let mut pairs = Pairs::default();
            for (time, other) in times.iter().zip(others.into_iter().flatten()) {
                pairs.push(1e6 / time, 1e6 / other);
            }
            println!("{}", pairs.line(&format!("{ranks} x {bytes} {kind}"), None));
            held &= pairs.verdict() != Verdict::Slower;
        }
    }
    if held { Ok(()) } else { Err("a case is slower than with the other binary".into()) }
}

/// A peer that this machine cannot run is left out with a notice.
fn left_out<T>(peer: &str, found: Outcome<T>) -> Option<T> {
    found.map_err(|words| println!("notice: without {peer}: {words}")).ok()
}

/// Compiles the MPI program into a file of its own.
fn mpi_program(arguments: &Arguments) -> Outcome<PathBuf> {
    let source = arguments.peers.file("mpi_allreduce.c")?;
    let compiler = arguments.mpirun.with_file_name("mpicc");
    if !succeeds(Command::new(&compiler).arg("--version")) {
        return Err(format!("{} is missing: --mpirun names a launcher beside it", compiler.display()));
    }
    let program = std::env::temp_dir().join(format!("thalweg-mpi-allreduce-{}", std::process::id()));
    run_command(Command::new(compiler).arg("-O3").arg("-o").arg(&program).arg(source))?;
    Ok(program)
}

/// Runs it and keeps the figures of the lines it prints.
fn note(figures: &mut Figures, command: &mut Command) -> Outcome {
    let text = output(command)?;
    for line in String::from_utf8_lossy(&text).lines() {
        let number = |key| number(line, key);
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

/// What is asked for of one ratio, and what it is.
struct Ratio {
    found: Option<f64>,
    target: Option<f64>,
}

impl Ratio {
    /// Whether it misses a target it was measured against.
    fn is_missed(&self) -> bool {
        matches!((self.found, self.target), (Some(found), Some(target)) if found < target)
    }

    fn show(&self) -> String {
        match (self.found, self.target) {
            (None, _) => "-".into(),
            (Some(found), None) => format!("{found:.2}x"),
            (Some(found), Some(target)) => format!("{found:.2}x of {target} {}", yes(found >= target)),
        }
    }
}

/// How much slower Open MPI is to be than sums of tensors that live in shared memory, or than messages over tcp.
fn target_beside_mpi(transport: &str, ranks: usize, bytes: usize) -> Option<f64> {
    let by_ranks = |targets: [f64; 3]| match ranks {
        2 => Some(targets[0]),
        4 => Some(targets[1]),
        8 => Some(targets[2]),
        _ => None,
    };
    match (transport, bytes) {
        ("tcp", _) => Some(LEVEL),
        (_, KIB_4) => by_ranks([1.0, 2.0, 2.0]),
        (_, MIB_1) => by_ranks([3.5, 5.0, 10.0]),
        (_, MIB_100) => by_ranks([5.0, 8.0, 9.0]),
        _ => None,
    }
}

/// The ratios of one line: Open MPI to ours and to copying, Gloo to ours.
fn ratios(transport: &str, ranks: usize, bytes: usize, times: [Option<f64>; 4]) -> [Ratio; 3] {
    let [ours, copying, mpi, gloo] = times;
    let ratio = |peer: Option<f64>, ours: Option<f64>, target| {
        let found = peer.zip(ours).map(|(peer, ours)| peer / ours);
        Ratio { found, target }
    };
    let beside_gloo = (transport == "tcp" && bytes <= MIB_1).then_some(10.0);
    [
        ratio(mpi, ours, target_beside_mpi(transport, ranks, bytes)),
        ratio(mpi, copying, Some(LEVEL)),
        ratio(gloo, ours, beside_gloo),
    ]
}

/// The table, and whether every target that could be measured was met.
fn table(transport: &str, figures: &Figures) -> (String, bool) {
    let (mut table, mut held) = (String::new(), true);
    if transport == "shm" {
        table += "thalweg: tensors that live in shared memory (arenas), as gradients do in training;\n\
                  copying: private memory, copied into arenas and out of them, as the peers' tensors are\n";
    }
    table += "ranks      bytes   thalweg us   copying us   openmpi us      gloo us        openmpi/ours     \
              openmpi/copying           gloo/ours\n";
    for ((ranks, bytes), peers) in figures {
        let times = [OURS, COPYING, MPI, GLOO].map(|peer| peers.get(peer).map(|times| median(times)));
        let ratios = ratios(transport, *ranks, *bytes, times);
        held &= !ratios.iter().any(Ratio::is_missed);
        let [ours, copying, mpi, gloo] =
            times.map(|time| time.map_or("-".into(), |time| format!("{time:.1}")));
        let [one, two, three] = ratios.map(|ratio| ratio.show());
        table += &format!(
            "{ranks:>5} {bytes:>10} {ours:>12} {copying:>12} {mpi:>12} {gloo:>12} {one:>19} {two:>19} {three:>19}\n"
        );
    }
    (table, held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians_and_missing_peers_a_dash() {
        let peers = BTreeMap::from([(OURS.to_string(), vec![5.0, 1.0, 2.0]), (MPI.to_string(), vec![4.0])]);
        let figures = Figures::from([((2, 4096), peers)]);
        let (shown, held) = table("shm", &figures);
        assert!(shown.contains("live in shared memory") && shown.contains("2.00x of 1 yes") && held);
        assert!(shown.lines().last().is_some_and(|line| line.ends_with('-')));
    }

    #[test]
    fn a_missed_target_is_seen() {
        let figures = |ours: f64| {
            let one = |peer: &str, time: f64| (peer.to_string(), vec![time]);
            Figures::from([((4, MIB_1), BTreeMap::from([one(OURS, ours), one(MPI, 9.0), one(GLOO, 100.0)]))])
        };
        assert!(table("tcp", &figures(10.0)).1, "0.9 is level");
        assert!(!table("tcp", &figures(10.1)).1);
        assert!(!table("shm", &figures(2.0)).1 && table("shm", &figures(1.8)).1);
    }
}
