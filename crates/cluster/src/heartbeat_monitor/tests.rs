use super::*;
use thalweg_core::event::WaitsFor;

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn heartbeat(phase: Phase, operation: u64, since: f64) -> Heartbeat {
    Heartbeat { phase, operation, since, ..Heartbeat::default() }
}

fn monitor() -> HeartbeatMonitor {
    HeartbeatMonitor::new(4, at(2.2), at(30.0), at(600.0))
}

#[test]
fn no_rank_is_blamed_while_all_send_heartbeats() {
    let mut monitor = monitor();
    for rank in 0..4 {
        monitor.on_heartbeat(rank, at(1.0), heartbeat(Phase::Exchanging, 5, 0.1));
    }
    assert_eq!(monitor.find_culprit(at(1.5)), None);
}

#[test]
fn the_silent_rank_is_blamed_and_not_the_ranks_that_wait_for_it() {
    let mut monitor = monitor();
    monitor.on_heartbeat(2, at(1.0), heartbeat(Phase::Computing, 4, 0.1));
    for rank in [0, 1, 3] {
        monitor.on_heartbeat(rank, at(3.0), heartbeat(Phase::Exchanging, 5, 2.0));
    }
    assert!(matches!(monitor.find_culprit(at(3.0)), Some(Evidence::Silent { rank: 2, .. })));
}

#[test]
fn a_rank_that_is_lost_before_its_first_heartbeat_is_silent_too() {
    let mut monitor = monitor();
    (0..4).for_each(|rank| monitor.expect(rank, at(1.0), Phase::Preparing));
    for rank in [0, 1, 2] {
        monitor.on_heartbeat(rank, at(2.9), heartbeat(Phase::Exchanging, 1, 1.9));
    }
    assert_eq!(monitor.find_culprit(at(2.9)), None);
    assert!(matches!(monitor.find_culprit(at(3.0)), Some(Evidence::Silent { rank: 3, .. })));
}

#[test]
fn a_rank_that_does_not_arrive_has_longer() {
    let mut monitor = monitor();
    monitor.expect(1, at(0.0), Phase::Starting);
    assert_eq!(monitor.find_culprit(at(29.0)), None);
    assert!(matches!(monitor.find_culprit(at(30.0)), Some(Evidence::Silent { rank: 1, .. })));
}

#[test]
fn once_the_rendezvous_is_complete_no_rank_is_starting_any_more() {
    let mut monitor = monitor();
    (0..2).for_each(|rank| monitor.expect(rank, at(0.0), Phase::Starting));
    monitor.on_heartbeat(0, at(5.0), heartbeat(Phase::Exchanging, 1, 0.1));
    monitor.on_heartbeat(0, at(7.0), heartbeat(Phase::Exchanging, 1, 2.0));
    assert_eq!(monitor.find_culprit(at(6.9)), None);
    assert!(matches!(monitor.find_culprit(at(7.0)), Some(Evidence::Silent { rank: 1, .. })));
}

#[test]
fn a_rank_that_computes_forever_is_stuck() {
    let mut monitor = monitor();
    for now in [5.0, 6.0, 7.0, 8.0] {
        monitor.on_heartbeat(1, at(now), heartbeat(Phase::Computing, 4, now - 4.0));
        for rank in [0, 2, 3] {
            monitor.on_heartbeat(rank, at(now), heartbeat(Phase::Exchanging, 5, now - 5.0));
        }
    }
    assert!(matches!(monitor.find_culprit(at(8.1)), Some(Evidence::Stuck { rank: 1, .. })));
}

#[test]
fn a_rank_that_computes_slowly_is_not_stuck() {
    let mut monitor = monitor();
    for second in 0..100 {
        let now = f64::from(second);
        let progress = u64::from(second as u32 / 2);
        monitor.on_heartbeat(1, at(now), Heartbeat { progress, ..heartbeat(Phase::Computing, 4, now) });
        for rank in [0, 2, 3] {
            monitor.on_heartbeat(rank, at(now), heartbeat(Phase::Exchanging, 5, now));
        }
        assert_eq!(
            (monitor.find_culprit(at(now + 0.1)), monitor.stalled(at(now + 0.1))),
            (None, None),
            "{now}"
        );
    }
}

#[test]
fn a_group_without_any_progress_is_stalled_without_a_culprit() {
    let mut monitor = monitor();
    let all = |monitor: &mut HeartbeatMonitor, now: f64, moves: bool| {
        for rank in 0..4 {
            let progress = if moves && rank == 2 { now as u64 } else { 0 };
            monitor.on_heartbeat(
                rank,
                at(now),
                Heartbeat { progress, ..heartbeat(Phase::Exchanging, 5, now) },
            );
        }
        assert_eq!(monitor.find_culprit(at(now + 0.1)), None);
        monitor.stalled(at(now + 0.1)).is_some()
    };
    assert!((0..10).all(|second| !all(&mut monitor, f64::from(second), true)), "bytes move");
    assert!(
        !all(&mut monitor, 10.0, false) && !all(&mut monitor, 11.0, false) && all(&mut monitor, 12.5, false)
    );
    monitor.restart_timers(at(12.6));
    assert!(monitor.stalled(at(12.7)).is_none(), "this process was suspended");
}

#[test]
fn a_rank_that_prepares_has_longer_and_rows_that_it_reads_count() {
    let mut monitor = monitor();
    let stalled = |monitor: &mut HeartbeatMonitor, now: f64, progress| {
        monitor.on_heartbeat(0, at(now), heartbeat(Phase::Exchanging, 5, now));
        monitor.on_heartbeat(1, at(now), Heartbeat { progress, ..heartbeat(Phase::Preparing, 4, now) });
        (monitor.stalled(at(now + 0.1)).is_some(), monitor.find_culprit(at(now + 0.1)).is_some())
    };
    for minute in 0..20 {
        assert_eq!(stalled(&mut monitor, f64::from(minute) * 60.0, minute as u64), (false, false));
    }
    assert_eq!(stalled(&mut monitor, 1739.0, 19), (false, false), "prepare_deadline since the last row");
    assert_eq!(stalled(&mut monitor, 1741.0, 19), (true, true));
}

#[test]
fn of_ranks_in_one_operation_the_one_that_does_not_poll_is_the_straggler() {
    let mut monitor = monitor();
    for second in 1..6 {
        for rank in 0..4 {
            let polls = if rank == 2 { 0 } else { second };
            let now = at(f64::from(second as u32));
            monitor.on_heartbeat(rank, now, Heartbeat { polls, ..heartbeat(Phase::Exchanging, 5, 0.0) });
        }
    }
    let found =
        |monitor: &HeartbeatMonitor, now| monitor.straggler(at(now)).map(|found| (found.rank, found.alone));
    assert_eq!(found(&monitor, 5.1), Some((2, true)));
    monitor.on_heartbeat(3, at(5.2), heartbeat(Phase::Computing, 4, 0.1));
    assert_eq!(found(&monitor, 5.3), Some((3, true)), "it has not entered the operation");
    monitor.remove(3);
    assert_eq!(found(&monitor, 9.0), Some((0, false)), "none of them sends heartbeats");
}

#[test]
fn at_shutdown_ranks_that_wait_for_another_are_not_blamed() {
    let mut monitor = monitor();
    monitor.begin_shutdown(at(1.0));
    for now in [1.0, 2.0, 3.0, 4.0] {
        (1..4).for_each(|rank| monitor.on_heartbeat(rank, at(now), heartbeat(Phase::Exchanging, 9, now)));
    }
    assert_eq!((monitor.find_culprit(at(4.1)), monitor.stalled(at(4.1)).is_some()), (None, true));
    [1, 3].into_iter().for_each(|rank| monitor.remove(rank));
    assert!(matches!(monitor.find_culprit(at(4.1)), Some(Evidence::Stuck { rank: 2, .. })));
}

#[test]
fn once_a_rank_is_done_the_others_must_end() {
    let mut monitor = monitor();
    for now in [1.0, 2.0, 3.0, 4.0] {
        monitor.on_heartbeat(3, at(now), heartbeat(Phase::Leaving, 9, now));
    }
    assert_eq!(monitor.find_culprit(at(4.1)), None);
    monitor.begin_shutdown(at(4.1));
    for now in [5.0, 6.0] {
        assert_eq!(monitor.find_culprit(at(now - 0.9)), None, "it has the deadline from then on");
        monitor.on_heartbeat(3, at(now), heartbeat(Phase::Leaving, 9, now));
    }
    assert!(matches!(monitor.find_culprit(at(6.2)), Some(Evidence::Stuck { rank: 3, .. })));
}

#[test]
fn long_preparation_is_reported_and_has_its_own_deadline() {
    let mut monitor = monitor();
    assert_eq!(monitor.awaited(), None);
    monitor.on_heartbeat(1, at(9.0), heartbeat(Phase::Preparing, 0, 9.0));
    monitor.on_heartbeat(2, at(9.0), heartbeat(Phase::Preparing, 0, 8.5));
    assert_eq!(monitor.awaited(), None, "no rank waits");
    monitor.on_heartbeat(0, at(9.0), heartbeat(Phase::Exchanging, 1, 8.0));
    assert_eq!(monitor.find_culprit(at(9.1)), None);
    assert!(matches!(monitor.awaited(), Some((1, _, 8.0))));
    let later = |monitor: &mut HeartbeatMonitor, now: f64| {
        monitor.on_heartbeat(2, at(now), heartbeat(Phase::Exchanging, 1, 1.0));
        monitor.on_heartbeat(1, at(now), heartbeat(Phase::Preparing, 0, now));
        monitor.on_heartbeat(0, at(now), heartbeat(Phase::Exchanging, 1, now - 1.0));
        monitor.find_culprit(at(now + 0.1))
    };
    assert_eq!(later(&mut monitor, 608.0), None);
    assert!(matches!(later(&mut monitor, 609.0), Some(Evidence::Stuck { rank: 1, .. })));
}

#[test]
fn a_suspension_of_the_monitor_restarts_its_timers() {
    let mut monitor = monitor();
    monitor.on_heartbeat(0, at(1.0), heartbeat(Phase::Computing, 1, 0.0));
    assert!(monitor.find_culprit(at(60.0)).is_some());
    monitor.restart_timers(at(60.0));
    assert_eq!(monitor.find_culprit(at(60.5)), None);
    // Ranks that were suspended with it report the whole time as waiting.
    monitor.on_heartbeat(0, at(60.6), heartbeat(Phase::Computing, 1, 59.0));
    monitor.on_heartbeat(1, at(60.6), heartbeat(Phase::Exchanging, 2, 59.0));
    assert_eq!(monitor.find_culprit(at(61.0)), None);
    monitor.remove(0);
    monitor.remove(1);
    assert_eq!(monitor.find_culprit(at(99.0)), None);
}

/// The heartbeat of a rank that polls and waits for these.
fn waits(waits_for: WaitsFor, now: f64) -> Heartbeat {
    let polls = (now * 10.0) as u64;
    Heartbeat { waits_for: Some(waits_for), polls, ..heartbeat(Phase::Exchanging, 5, now) }
}

/// A monitor after heartbeats of all ranks once a second until `end`.
fn after(end: u32, sent: impl Fn(usize, f64) -> Heartbeat) -> HeartbeatMonitor {
    let mut monitor = monitor();
    for now in (0..=end).map(f64::from) {
        (0..4).for_each(|rank| monitor.on_heartbeat(rank, at(now), sent(rank, now)));
    }
    monitor
}

/// Ranks 1 and 3 compute without progress; rank 0 has counted the fewest operations.
#[test]
fn the_rank_that_is_waited_for_is_blamed_and_not_the_one_with_the_lowest_count() {
    let sent = |rank: usize, now: f64| match rank {
        0 | 2 => Heartbeat { operation: rank as u64, ..waits(WaitsFor::All(vec![3]), now) },
        rank => heartbeat(Phase::Computing, 9 * rank as u64, now),
    };
    let monitor = after(5, sent);
    assert!(matches!(monitor.find_culprit(at(5.1)), Some(Evidence::Stuck { rank: 3, .. })));
    let found = monitor.straggler(at(5.1)).unwrap();
    assert_eq!((found.rank, found.alone), (3, true));
}

#[test]
fn a_wait_for_any_rank_blames_none_while_one_of_them_makes_progress() {
    let sent = |moves: bool| {
        move |rank: usize, now: f64| match rank {
            0 => waits(WaitsFor::Any(vec![1, 2]), now),
            2 if moves => Heartbeat { progress: now as u64, ..heartbeat(Phase::Computing, 4, now) },
            _ => heartbeat(Phase::Computing, 4, now),
        }
    };
    let verdict = |monitor: &HeartbeatMonitor| (monitor.find_culprit(at(5.1)), monitor.stalled(at(5.1)));
    assert_eq!(verdict(&after(5, sent(true))), (None, None));
    assert!(matches!(verdict(&after(5, sent(false))), (Some(Evidence::Stuck { rank: 1, .. }), Some(_))));
}

#[test]
fn a_wait_for_a_clock_is_no_stall_while_the_clock_moves() {
    let sent = |stops: f64| {
        move |rank: usize, now: f64| match rank {
            3 => Heartbeat { progress: now.min(stops) as u64, ..heartbeat(Phase::Computing, 4, 0.1) },
            _ => waits(WaitsFor::All(vec![3]), now),
        }
    };
    assert_eq!(after(100, sent(100.0)).find_culprit(at(100.1)), None);
    assert_eq!(after(100, sent(99.0)).find_culprit(at(100.1)), None, "it stopped a second ago");
    let stopped = after(100, sent(98.0)).find_culprit(at(100.1));
    assert!(matches!(stopped, Some(Evidence::Stuck { rank: 3, .. })), "{stopped:?}");
}

#[test]
fn a_deadlock_is_stalled_with_its_members_while_other_ranks_go_on() {
    let sent = |rank: usize, now: f64| match rank {
        1 => Heartbeat { progress: now as u64, ..heartbeat(Phase::Computing, 4, now) },
        rank => waits(WaitsFor::All(vec![if rank == 3 { 0 } else { rank.max(1) + 1 }]), now),
    };
    let monitor = after(5, sent);
    let deadlock = monitor.stalled(at(5.1)).and_then(|stall| stall.deadlock).unwrap();
    assert!(deadlock.message.starts_with("ranks 0, 2 and 3 wait for each other: "), "{deadlock}");
    assert_eq!((monitor.find_culprit(at(5.1)), monitor.straggler(at(5.1)).unwrap().alone), (None, false));
}

#[test]
fn impossible_ids_in_a_heartbeat_are_ignored() {
    let lies = [vec![], vec![0], vec![4], vec![usize::MAX, 0], vec![3; 5], (0..100_000).collect()];
    for lie in lies.map(|ranks| [WaitsFor::All(ranks.clone()), WaitsFor::Any(ranks)]).into_iter().flatten() {
        let stuck = after(5, |rank, now| match rank {
            0 => waits(lie.clone(), now),
            2 => heartbeat(Phase::Computing, 4, now),
            _ => waits(WaitsFor::All(vec![0]), now),
        });
        let found = stuck.find_culprit(at(5.1));
        assert!(
            matches!(found, Some(Evidence::Stuck { rank: 2, .. })),
            "as if it had said nothing: {found:?}"
        );
        let stall = after(5, |_, now| waits(lie.clone(), now)).stalled(at(5.1));
        assert!(stall.is_some());
    }
}

#[test]
fn a_launcher_does_not_judge_waits_for_ranks_of_another() {
    let mut monitor = monitor();
    for now in [0.0, 1.0, 2.0, 3.0, 4.0] {
        monitor.on_heartbeat(0, at(now), waits(WaitsFor::Any(vec![1, 3]), now));
        monitor.on_heartbeat(1, at(now), heartbeat(Phase::Computing, 4, now));
    }
    assert_eq!((monitor.find_culprit(at(4.1)), monitor.stalled(at(4.1))), (None, None), "rank 3 may go on");
    monitor.on_heartbeat(0, at(4.2), waits(WaitsFor::All(vec![1, 3]), 4.2));
    assert!(matches!(monitor.find_culprit(at(4.3)), Some(Evidence::Stuck { rank: 1, .. })));
}
