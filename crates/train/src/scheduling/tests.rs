use super::*;
use proptest::prelude::*;

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
