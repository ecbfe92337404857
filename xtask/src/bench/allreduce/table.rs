//! Figures, their ratios to other systems, and the targets.

use crate::bench::peer::{median, number, value, yes};
use crate::command::{Outcome, output};
use std::collections::BTreeMap;
use std::process::Command;

const OURS: &str = "thalweg";
const COPYING: &str = "arena-copying";
pub const MPI: &str = "openmpi";
const GLOO: &str = "gloo";

const KIB_4: usize = 4 << 10;
const MIB_1: usize = 1 << 20;
const MIB_100: usize = 100 << 20;

/// The ratio that counts as equal to a peer.
const EQUAL: f64 = 0.9;

/// Microseconds by (ranks, bytes), then by system, one per round.
pub type Figures = BTreeMap<(usize, usize), BTreeMap<String, Vec<f64>>>;

/// Runs a command and adds the figures that it prints.
pub fn record(figures: &mut Figures, command: &mut Command) -> Outcome {
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

/// A measured ratio and its target; None where one is missing.
struct Ratio {
    found: Option<f64>,
    target: Option<f64>,
}

impl Ratio {
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

/// The target for the time of Open MPI divided by that of an all-reduce in the arena, or over tcp.
fn target_against_mpi(transport: &str, ranks: usize, bytes: usize) -> Option<f64> {
    let by_ranks = |targets: [f64; 3]| match ranks {
        2 => Some(targets[0]),
        4 => Some(targets[1]),
        8 => Some(targets[2]),
        _ => None,
    };
    match (transport, bytes) {
        ("tcp", _) => Some(EQUAL),
        (_, KIB_4) => by_ranks([1.0, 2.0, 2.0]),
        (_, MIB_1) => by_ranks([3.5, 5.0, 10.0]),
        (_, MIB_100) => by_ranks([5.0, 8.0, 9.0]),
        _ => None,
    }
}

/// The ratios of a line: Open MPI to ours, Open MPI to copying, Gloo to ours.
fn ratios(transport: &str, ranks: usize, bytes: usize, times: [Option<f64>; 4]) -> [Ratio; 3] {
    let [ours, copying, mpi, gloo] = times;
    let ratio = |peer: Option<f64>, ours: Option<f64>, target| {
        let found = peer.zip(ours).map(|(peer, ours)| peer / ours);
        Ratio { found, target }
    };
    let target_against_gloo = (transport == "tcp" && bytes <= MIB_1).then_some(10.0);
    [
        ratio(mpi, ours, target_against_mpi(transport, ranks, bytes)),
        ratio(mpi, copying, Some(EQUAL)),
        ratio(gloo, ours, target_against_gloo),
    ]
}

/// The table, and whether every measured target was met.
pub fn table(transport: &str, figures: &Figures) -> (String, bool) {
    let (mut table, mut passed) = (String::new(), true);
    if transport == "shm" {
        table += "thalweg: tensors in shared memory (arenas), as gradients are in training;\n\
                  copying: private memory, copied into arenas and out of them, as the peers' tensors are\n";
    }
    table += "ranks      bytes   thalweg us   copying us   openmpi us      gloo us        openmpi/ours     \
              openmpi/copying           gloo/ours\n";
    for ((ranks, bytes), peers) in figures {
        let times = [OURS, COPYING, MPI, GLOO].map(|peer| peers.get(peer).map(|times| median(times)));
        let ratios = ratios(transport, *ranks, *bytes, times);
        passed &= !ratios.iter().any(Ratio::is_missed);
        let [ours, copying, mpi, gloo] =
            times.map(|time| time.map_or("-".into(), |time| format!("{time:.1}")));
        let [one, two, three] = ratios.map(|ratio| ratio.show());
        table += &format!(
            "{ranks:>5} {bytes:>10} {ours:>12} {copying:>12} {mpi:>12} {gloo:>12} {one:>19} {two:>19} {three:>19}\n"
        );
    }
    (table, passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians_and_missing_peers_a_dash() {
        let peers = BTreeMap::from([(OURS.to_string(), vec![5.0, 1.0, 2.0]), (MPI.to_string(), vec![4.0])]);
        let figures = Figures::from([((2, 4096), peers)]);
        let (shown, passed) = table("shm", &figures);
        assert!(shown.contains("tensors in shared memory") && shown.contains("2.00x of 1 yes") && passed);
        assert!(shown.lines().last().is_some_and(|line| line.ends_with('-')));
    }

    #[test]
    fn a_missed_target_fails() {
        let figures = |ours: f64| {
            let one = |peer: &str, time: f64| (peer.to_string(), vec![time]);
            Figures::from([((4, MIB_1), BTreeMap::from([one(OURS, ours), one(MPI, 9.0), one(GLOO, 100.0)]))])
        };
        assert!(table("tcp", &figures(10.0)).1, "0.9 counts as equal");
        assert!(!table("tcp", &figures(10.1)).1);
        assert!(!table("shm", &figures(2.0)).1 && table("shm", &figures(1.8)).1);
    }
}
