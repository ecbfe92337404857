//! Training on a simulated network under random faults, each run from a seed: nothing is lost, whatever happens.
//!
//! `THALWEG_SEEDS=10000` runs that many seeds, from `THALWEG_FIRST_SEED` on, `THALWEG_SEED=17` one of them, and shows its
//! faults; `cargo xtask test --seeds 10000` runs them with those of the transports.

mod gossip;
mod invariants;
mod job;
mod neighbours;
mod rounds;
mod schedule;
mod servers;
mod shards;
mod state_transfers;
mod sweep;

use invariants::Undisturbed;
use job::Finished;
use schedule::Schedule;
use std::collections::BTreeMap;
use std::time::Duration;
use sweep::Sweep;
use thalweg_comm::transport::sim::{SimulatedFault, SimulatedFaultKind};
use thalweg_core::event::Event;
use thalweg_train::known_bugs::{self, KnownBug};

/// Seeds without `THALWEG_SEEDS`.
const SEEDS: u64 = 100;

fn undisturbed() -> Undisturbed {
    Undisturbed::of(&job::run(0, 4, &[], || ()))
}

fn all_reduce() -> Sweep {
    Sweep::new("seeds_keep_their_promises", job::ordinary(), invariants::ALL_REDUCE)
}

/// All invariants, for many seeds.
#[test]
fn seeds_keep_their_promises() {
    all_reduce().run(SEEDS);
}

/// The rows that are drawn are the same whoever computes them.
#[test]
fn seeds_keep_promises_of_spark_mllib() {
    let job = job::job(&["strategy.preset=spark-mllib"]);
    let sweep = Sweep::new("seeds_keep_promises_of_spark_mllib", job, invariants::ALL_REDUCE);
    if let Some(summary) = sweep.run(SEEDS) {
        assert!(summary.sum(|figures| figures.dropped) > 0, "all rows are computed");
    }
}

/// Each of them found a bug once: ranks removed that only waited for one that hung, a hang while a new member waited to be
/// admitted, a new member that began the job anew, a rank that hung before the first group.
#[test]
fn seeds_that_once_failed_keep_their_promises() {
    all_reduce().run_again(&[1381, 2635, 3550, 4972, 5060, 6542, 7912, 8601]);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let undisturbed = undisturbed();
    for seed in 0..5 {
        let schedule = Schedule::draw(seed, undisturbed.duration);
        let [one, other] = [0, 1].map(|_| job::run(seed, schedule.world, &schedule.faults, || ()));
        let differs = one.trace.entries.iter().zip(&other.trace.entries).find(|(one, other)| one != other);
        assert!(differs.is_none(), "seed {seed}: {differs:?}");
        assert_eq!(one.trace.entries.len(), other.trace.entries.len(), "seed {seed}");
        let results = |run: &job::Run| run.ended.iter().map(|ended| ended.result.clone()).collect::<Vec<_>>();
        assert_eq!(results(&one), results(&other), "seed {seed}");
    }
}

/// With a bug switched on, survivors do not agree on the last step. One of the first seeds finds it.
#[test]
fn a_missing_agreement_is_found() {
    let sweep = all_reduce();
    let bug = || known_bugs::set(KnownBug::SkipsAgreement);
    let found = (0..50).find_map(|seed| sweep.try_seed(seed, bug).err());
    println!("{}", found.expect("no seed finds the bug"));
}

/// Three come a while after the start, then two leave.
fn one_four_two(span: Duration) -> Vec<SimulatedFault> {
    let joins = (1..4).map(|rank| SimulatedFault::at(span / 6, SimulatedFaultKind::Join { rank }));
    let leaves = [0, 3].map(|rank| SimulatedFault::at(2 * span / 3, SimulatedFaultKind::Leave { rank }));
    joins.chain(leaves).collect()
}

/// One rank, then four, then two: the rows of every step are the same as with one all the time, and none is done twice.
#[test]
fn one_then_four_then_two_ranks() {
    let alone = job::run(3, 1, &[], || ());
    let faults = one_four_two(alone.duration());
    let run = job::run(3, 1, &faults, || ());
    let mut worlds = BTreeMap::from([(1, 1)]);
    for event in run.events() {
        if let Event::Regrouped { generation, members, steps_redone, .. } = event {
            worlds.insert(*generation, members.len());
            assert_eq!(*steps_redone, 0);
        }
    }
    let mut sizes: Vec<usize> = worlds.into_values().collect();
    sizes.dedup();
    assert_eq!(
        (sizes.first(), sizes.iter().max(), sizes.last()),
        (Some(&1), Some(&4), Some(&2)),
        "{sizes:?}"
    );
    let schedule = Schedule { world: 1, servers: 0, faults };
    invariants::check(&schedule, &run, &Undisturbed::of(&alone), invariants::ALL_REDUCE).unwrap();
    let (one, other) = (alone.last("accuracy").unwrap(), run.last("accuracy").unwrap());
    assert!((one - other).abs() <= 0.003, "{one} and {other}");
}

/// With reproducible sums it is the same model, bit by bit; with faults as well.
#[test]
fn reproducible_runs_end_with_the_same_bits_in_any_world() {
    let alone = job::run_reproducible(3, 1, &[]);
    let finished = |run: &job::Run| -> Vec<Finished> {
        let left = invariants::left(run);
        let stayed = run.ended.iter().enumerate().filter(|(rank, _)| !left.contains(rank));
        stayed.flat_map(|(_, ended)| ended.result.clone()).collect()
    };
    let kills = [(0.2, 1), (0.4, 0)].map(|(when, rank)| {
        SimulatedFault::at(undisturbed().duration.mul_f64(when), SimulatedFaultKind::Kill { rank })
    });
    for (world, faults) in [(1, one_four_two(alone.duration())), (4, kills.to_vec()), (5, Vec::new())] {
        let run = job::run_reproducible(3, world, &faults);
        let ends = finished(&run);
        assert!(ends.len() >= 2, "{world} ranks: {} finished", ends.len());
        assert!(ends.iter().all(|end| *end == finished(&alone)[0]), "{world} ranks, {faults:?}");
    }
}
