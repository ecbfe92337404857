//! Training on a simulated network: any number of ranks, the same run every time, and faults that end it as they should.

mod harness;

use harness::{parameters, simulate};
use std::time::Duration;
use thalweg_comm::transport::sim::{Network, SimulatedFault, SimulatedFaultKind};
use thalweg_core::event::Outcome;

#[test]
fn sixty_four_ranks_twice_give_the_same_bytes_and_the_same_trace() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [(_, one), (_, other)] = [&folders[0], &folders[1]].map(|folder| {
        let (ended, trace) = simulate(
            Network::ordinary(64, 7),
            &[],
            folder.path(),
            &["train.epochs=2", "train.global_batch=128"],
        );
        assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)));
        (ended, trace)
    });
    assert_eq!(one.entries.len(), other.entries.len());
    let differs = one.entries.iter().zip(&other.entries).find(|(one, other)| one != other);
    assert!(differs.is_none(), "{differs:?}");
    assert_eq!(parameters(folders[0].path()), parameters(folders[1].path()));
}

#[test]
fn another_seed_takes_another_course() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, other] = [0, 1].map(|seed| {
        let network = Network::ordinary(4, seed);
        simulate(network, &[], folders[seed as usize].path(), &["train.max_steps=5"]).1
    });
    assert_ne!(one, other);
}

#[test]
fn a_simulated_death_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let kill = SimulatedFault::at(Duration::from_millis(20), SimulatedFaultKind::Kill { rank: 2 });
    let (ended, _) = simulate(Network::ordinary(4, 7), &[kill], folder.path(), &["train.epochs=1000"]);
    for (rank, ended) in ended.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        let error = ended.result.as_ref().unwrap_err();
        assert_eq!(error.culprit.as_ref().unwrap().rank, 2, "rank {rank}: {error}");
    }
}
