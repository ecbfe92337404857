use super::*;
use proptest::prelude::*;
use thalweg_core::spec::scheduling::Late;

proptest! {
    /// Whatever the order in which workers complete their clocks: some worker may always go on, and none is ever more
    /// than one clock ahead of another.
    #[test]
    fn bulk_synchronous_workers_stay_within_a_clock(workers in 1usize..6, order in prop::collection::vec(0usize..6, 1..200)) {
        let mut clocks = Clocks::at(3, 0..workers);
        for choice in order {
            let ready: Vec<usize> =
                (0..workers).filter(|worker| BulkSynchronous.may_begin(&clocks, *worker) == Decision::Go).collect();
            prop_assert!(!ready.is_empty(), "no worker may go on at {clocks:?}");
            for worker in 0..workers {
                if let Decision::Wait(missing) = BulkSynchronous.may_begin(&clocks, worker) {
                    prop_assert!(missing.iter().all(|missing| ready.contains(missing)), "{worker} waits for those that wait");
                }
            }
            let worker = ready[choice % ready.len()];
            prop_assert_eq!(BulkSynchronous.admit(&clocks, worker), Admission::Hold);
            clocks.complete(worker);
            prop_assert!(clocks.workers().all(|worker| clocks.fastest() - clocks.of(worker) <= 1));
        }
    }
}

#[test]
fn updates_up_to_the_limit_are_admitted() {
    let admitted = |limit| [0, 2, 3].map(|age| AgeLimit(limit).admits(age));
    assert_eq!((admitted(None), admitted(Some(2))), ([true; 3], [true, true, false]));
}

#[test]
fn asynchronous_workers_never_wait() {
    let mut clocks = Clocks::at(0, [2, 5]);
    for clock in 0..100 {
        assert_eq!(Asynchronous.may_begin(&clocks, 5), Decision::Go);
        assert_eq!(Asynchronous.admit(&clocks, 5), Admission::Apply);
        clocks.complete(5);
        assert_eq!((clocks.of(5), clocks.of(2)), (clock + 1, 0));
    }
    assert_eq!(clocks.behind(1).collect::<Vec<_>>(), [2]);
}

fn slowest(clocks: &Clocks) -> u64 {
    clocks.workers().map(|worker| clocks.of(worker)).min().unwrap_or(0)
}

/// Workers of random speed under a policy, without a server. Returns the most clocks
/// that a worker was ahead of the slowest when it began one.
fn most_ahead(policy: &dyn Policy, workers: usize, order: &[usize]) -> Result<u64, TestCaseError> {
    let (mut clocks, mut most) = (Clocks::at(0, 0..workers), 0);
    let mut computing = vec![false; workers];
    for choice in order {
        let mut awaited = Vec::new();
        for worker in (0..workers).filter(|worker| !computing[*worker]).collect::<Vec<_>>() {
            match policy.may_begin(&clocks, worker) {
                Decision::Go => {
                    most = most.max(clocks.of(worker) - slowest(&clocks));
                    prop_assert!(slowest(&clocks) >= policy.reads(clocks.of(worker)));
                    computing[worker] = true;
                }
                Decision::Wait(missing) => {
                    prop_assert!(!missing.is_empty());
                    awaited.extend(missing);
                }
            }
        }
        prop_assert!(awaited.iter().all(|other| computing[*other]), "one waits for another that waits");
        let busy: Vec<usize> = (0..workers).filter(|worker| computing[*worker]).collect();
        prop_assert!(!busy.is_empty(), "no worker computes at {clocks:?}");
        let worker = busy[choice % busy.len()];
        computing[worker] = false;
        clocks.complete(worker);
    }
    Ok(most)
}

proptest! {
    /// The bound holds, no worker waits for one that waits, and the bound is used: with more than one worker the fastest
    /// gets ahead by all of it.
    #[test]
    fn stale_synchronous_workers_stay_within_the_bound(
        workers in 1usize..6,
        staleness in 0u64..5,
        order in prop::collection::vec(0usize..60, 1..300),
    ) {
        let policy = StaleSynchronous { staleness, admission: Admission::Apply };
        prop_assert!(most_ahead(&policy, workers, &order)? <= staleness);
        let fastest_first = vec![0; 300];
        let most = most_ahead(&policy, workers, &fastest_first)?;
        prop_assert_eq!(most, if workers > 1 { staleness } else { 0 });
        prop_assert!(most_ahead(&EagerStaleSynchronous(policy), workers, &order)? <= staleness);
    }

    /// Without staleness it decides as the bulk synchronous policy does.
    #[test]
    fn stale_synchronous_without_staleness_is_bulk_synchronous(
        completed in prop::collection::vec(0u64..3, 1..6),
    ) {
        let mut clocks = Clocks::default();
        completed.iter().enumerate().for_each(|(worker, completed)| clocks.set(worker, *completed));
        let stale = StaleSynchronous { staleness: 0, admission: Admission::Hold };
        for worker in 0..completed.len() {
            prop_assert_eq!(stale.may_begin(&clocks, worker), BulkSynchronous.may_begin(&clocks, worker));
            prop_assert_eq!(stale.admit(&clocks, worker), BulkSynchronous.admit(&clocks, worker));
        }
    }

    /// A clock never waits for the slowest, and what they bring afterwards is dropped.
    #[test]
    fn a_quorum_leaves_the_slowest_behind(workers in 1usize..7, backups in 0usize..9, order in prop::collection::vec(0usize..60, 1..200)) {
        let policy = Quorum { backups, late: Late::Finish };
        let mut clocks = Clocks::at(0, 0..workers);
        // The clock that each computes.
        let mut computing: Vec<Option<u64>> = vec![None; workers];
        let mut arrived = 0;
        for choice in order {
            for (worker, computing) in computing.iter_mut().enumerate() {
                if computing.is_none() {
                    if clocks.of(worker) < clocks.closed() {
                        clocks.set(worker, clocks.closed());
                    }
                    if policy.may_begin(&clocks, worker) == Decision::Go {
                        *computing = Some(clocks.of(worker));
                    }
                }
            }
            let busy: Vec<usize> = (0..workers).filter(|worker| computing[*worker].is_some()).collect();
            prop_assert!(!busy.is_empty());
            let worker = busy[choice % busy.len()];
            let clock = computing[worker].take().unwrap_or_default();
            match policy.admit(&clocks, worker) {
                Admission::Drop => prop_assert!(clock < clocks.closed()),
                Admission::Hold => {
                    prop_assert_eq!(clock, clocks.closed());
                    clocks.complete(worker);
                    arrived += 1;
                    if policy.suffices(arrived, workers) {
                        prop_assert_eq!(arrived, workers.saturating_sub(backups).max(1));
                        clocks.close();
                        arrived = 0;
                    }
                }
                Admission::Apply => prop_assert!(false, "an update of a quorum is applied alone"),
            }
        }
    }
}
