//! Parameter servers of workers at different clocks: what they are equal to, what they count, what they leave out.

mod harness;

use harness::{distance, parameters, train};
use std::path::Path;
use thalweg_core::event::{Event, Outcome};
use thalweg_core::report::Audit;

const SERVER: &str = "strategy.preset=parameter-server";
const SSP: &str = "strategy.scheduling.kind=ssp";
const QUORUM: &str = "strategy.scheduling.kind=quorum";
const SGD: &str = "train.optimizer={kind='sgd', lr=0.1}";

/// The audits of a job that ends well.
fn audits(world: usize, folder: &Path, settings: &[&str]) -> Vec<Audit> {
    let ended = train(world, folder, settings);
    assert!(ended.iter().all(|ended| ended.result == Ok(Outcome::Completed)), "{settings:?}");
    let audit = |event: &Event| match event {
        Event::Epoch { audit, .. } => Some(audit.clone()),
        _ => None,
    };
    ended.iter().flat_map(|ended| &ended.events).filter_map(audit).collect()
}

fn trained(world: usize, settings: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    for audit in audits(world, folder.path(), settings) {
        assert_eq!(
            (audit.once, audit.missed, audit.repeated, audit.dropped),
            (1438, 0, 0, 0),
            "{settings:?}"
        );
    }
    parameters(folder.path())
}

/// With updates per clock, which workers read by clock, it is bulk synchronous to the bit. So is a quorum of all.
#[test]
fn without_staleness_it_is_bulk_synchronous() {
    for optimizer in [SGD, "train.optimizer={kind='adam', lr=0.002}"] {
        for workers in [1, 3, 4] {
            let common = [SERVER, optimizer, "train.epochs=3"];
            let synchronous = trained(workers, &common);
            let stale = ["strategy.scheduling.staleness=0", "strategy.apply=per_clock"];
            let all = format!("strategy.scheduling.quorum={workers}");
            for servers in
                ["strategy.servers.count=1", "strategy.servers.count=2", "strategy.servers.count=3"]
            {
                let own = [&common[..], &[servers]].concat();
                let bounded = trained(workers, &[&own[..], &[SSP], &stale].concat());
                assert_eq!(bounded, synchronous, "{workers} workers, {optimizer}, {servers}");
                let quorum = trained(workers, &[&own[..], &[QUORUM, &all]].concat());
                assert_eq!(quorum, synchronous, "{workers} workers, {optimizer}, {servers}");
            }
        }
    }
    // Changes are gradients times the rate, up to rounding.
    let common = [SERVER, SGD, "train.epochs=2"];
    let own = ["strategy.scheduling.staleness=0", "strategy.apply=per_clock", "strategy.push=delta"];
    let deltas = trained(3, &[&common[..], &[SSP], &own].concat());
    assert!(distance(&deltas, &trained(3, &common)) < 1e-4);
}

#[test]
fn bounded_servers_train_count_and_resume() {
    for own in [
        &[SSP][..],
        &[SSP, "strategy.apply=per_clock"],
        &[SSP, "strategy.push=delta"],
        &[SSP, "strategy.push=delta", "strategy.apply=per_clock"],
        &["strategy.scheduling.kind=essp"],
        &["strategy.scheduling.kind=essp", "strategy.servers.count=2"],
        &[SSP, "strategy.push=delta", "strategy.apply=per_clock", "strategy.servers.count=3"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (workers, epochs) in [(3, 4), (2, 6), (4, 8)] {
            let epochs = format!("train.epochs={epochs}");
            for audit in audits(workers, folder.path(), &[&[SERVER, SGD, &epochs], own].concat()) {
                assert_eq!((audit.once, audit.missed, audit.repeated), (1438, 0, 0), "{own:?}");
            }
        }
    }
}

/// One of four is three times slower: its rows are dropped, and nothing else is.
#[test]
fn a_quorum_drops_what_comes_too_late() {
    for late in [
        &["strategy.scheduling.late=finish"][..],
        &["strategy.scheduling.late=abandon"],
        &["strategy.scheduling.late=abandon", "strategy.servers.count=2"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let own = ["engine.slow={1=3.0}", "engine.pace=2ms", "train.epochs=3"];
        let audits = audits(4, folder.path(), &[&[SERVER, SGD, QUORUM][..], &own, late].concat());
        assert_eq!(audits.len(), 3);
        for audit in audits {
            assert_eq!((audit.once + audit.dropped, audit.missed, audit.repeated), (1438, 0, 0), "{late:?}");
            // At most a share of each step.
            assert!(audit.dropped > 0 && audit.dropped <= 1438_u64.div_ceil(4) + 23, "{late:?}: {audit:?}");
        }
    }
}

/// One worker computes the first steps alone; every row still counts once.
#[test]
fn a_warm_start_counts_every_row() {
    let asynchronous = "strategy.scheduling.kind=async";
    for own in [
        &[SSP][..],
        &["strategy.scheduling.kind=essp"],
        &[SSP, "strategy.apply=per_clock"],
        &[SSP, "strategy.servers.count=2"],
        &[asynchronous],
        &[
            asynchronous,
            "strategy.servers.count=2",
            "strategy.scheduling.n_push=2",
            "strategy.scheduling.n_fetch=4",
        ],
        &[
            asynchronous,
            "strategy.push=delta",
            "strategy.scheduling.n_push=3",
            "strategy.scheduling.n_fetch=3",
        ],
    ] {
        let warm = trained(
            3,
            &[&[SERVER, SGD, "train.epochs=2", "strategy.mitigation.warm_start=9"][..], own].concat(),
        );
        assert!(warm.iter().all(|value| value.is_finite()));
    }
    // For as long as the job lasts it is descent by one.
    let whole = [SERVER, SGD, SSP, "train.epochs=2", "strategy.mitigation.warm_start=1000"];
    assert!(trained(3, &whole) == trained(1, &["strategy.preset=single", SGD, "train.epochs=2"]));
}

/// Of three workers two have been overtaken by others, except at the start.
#[test]
fn updates_that_are_too_old_are_dropped() {
    for kind in [&["strategy.scheduling.kind=async"][..], &[SSP], &[SSP, "strategy.servers.count=2"]] {
        let folder = tempfile::tempdir().unwrap();
        let own = ["train.epochs=2", "strategy.scheduling.max_age=0"];
        for audit in audits(3, folder.path(), &[&[SERVER, SGD], kind, &own].concat()) {
            assert_eq!((audit.once + audit.dropped, audit.missed, audit.repeated), (1438, 0, 0), "{kind:?}");
            assert!(audit.dropped > 0 && audit.once > 0, "{kind:?}: {audit:?}");
        }
    }
}

#[test]
fn an_epoch_may_end_at_a_fraction_of_its_rows() {
    for own in [&["strategy.scheduling.kind=async"][..], &[SSP], &[QUORUM, "strategy.scheduling.quorum=3"]] {
        let folder = tempfile::tempdir().unwrap();
        let common = [SERVER, SGD, "train.epochs=3", "strategy.scheduling.epoch_fraction=0.75"];
        let audits = audits(3, folder.path(), &[&common[..], own].concat());
        assert_eq!(audits.len(), 3);
        for audit in audits {
            assert_eq!((audit.once + audit.dropped, audit.missed, audit.repeated), (1438, 0, 0), "{own:?}");
            assert!((0.75..0.82).contains(&(audit.once as f64 / 1438.0)), "{audit:?}");
        }
    }
}
