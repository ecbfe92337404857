//! Arenas between threads: sums, shares, faults, and what happens where there is no memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use thalweg_comm::arena::{Commons, Terms, share};
use thalweg_comm::host::{Neighbours, threads};
use thalweg_comm::transport::{Cause, Fault, Incoming, Tag, Transport};
use thalweg_comm::wire::tensor;
use thalweg_testkit::transport::{Memory, Mesh, PLENTY, Shared, bracketing, each, tag};

/// A deadline short enough for a test.
const SHORT: Duration = Duration::from_millis(200);

/// Runs a program on every rank of a group in shared memory.
fn on_each<M: Mesh, R: Send>(
    world: usize,
    program: impl Fn(&mut M::Transport, &Neighbours) -> R + Sync,
) -> Vec<R> {
    let neighbours = threads(world).expect("neighbours");
    each(M::connect(world), |mut transport| {
        let neighbours = &neighbours[transport.rank()];
        let result = program(&mut transport, neighbours);
        transport.close();
        result
    })
}

fn terms(transport: &mut dyn Transport, operation: u64) -> Terms<'_> {
    Terms { transport, tag: tag(operation), deadline: PLENTY }
}

fn open(transport: &mut dyn Transport, neighbours: &Neighbours, length: usize, columns: usize) -> Commons {
    Commons::open(neighbours, length, columns, terms(transport, 0)).expect("no fault").expect("memory")
}

/// Numbers whose sum depends on the order.
fn element(rank: usize, index: usize) -> f32 {
    (index as f32 + 0.1).powi(rank as i32 - 2)
}

/// The sum from left to right, in the order of ranks.
fn sum(world: usize, index: usize) -> f32 {
    (0..world).map(|rank| element(rank, index)).reduce(|sum, term| sum + term).expect("a rank")
}

fn sums_for_odd_worlds_and_lengths<M: Mesh>() {
    for world in 1..=9 {
        on_each::<M, _>(world, |transport, neighbours| {
            let rank = transport.rank();
            let mut commons = open(transport, neighbours, 5000, 1);
            for (operation, length) in [0, 1, world, 33, 5000].into_iter().enumerate() {
                for (index, value) in commons.arena()[..length].iter_mut().enumerate() {
                    *value = element(rank, index);
                }
                commons.all_reduce(length, terms(transport, operation as u64)).expect("an all-reduce");
                for (index, value) in commons.column(0)[..length].iter().enumerate() {
                    assert_eq!(value.to_bits(), sum(world, index).to_bits(), "{world} ranks, {index}");
                }
            }
        });
    }
}

#[test]
fn sums_have_the_same_bits_in_shared_memory() {
    sums_for_odd_worlds_and_lengths::<Shared>();
}

#[test]
fn sums_have_the_same_bits_whatever_wakes_the_ranks() {
    sums_for_odd_worlds_and_lengths::<Memory>();
}

#[test]
fn brackets_do_not_depend_on_the_world() {
    for world in 1..=9 {
        let brackets = bracketing::brackets(world);
        on_each::<Shared, _>(world, |transport, neighbours| {
            for (operation, length) in [0, 1, 31, 100, 5000].into_iter().enumerate() {
                let slots = bracketing::slots(length);
                let operation = operation as u64;
                let mut commons = Commons::open_slots(neighbours, slots, 1, terms(transport, operation))
                    .expect("no fault")
                    .expect("memory");
                bracketing::fill(&brackets, slots, transport.rank(), commons.arena());
                commons
                    .sum_brackets_and(&brackets, terms(transport, operation), |_, _| ())
                    .expect("an all-reduce");
                bracketing::check(world, slots, commons.column(0));
                // As messages would: terms but for the own share, then that share of the sums to each.
                let (rank, head) = (transport.rank(), slots.head);
                let (mine, all) = (share(slots.length, rank, world), slots.length);
                let of_terms = mine.end.min(head) - mine.start.min(head);
                let (of_words, words) = (mine.len() - of_terms, all - head);
                let held = brackets.terms().iter().filter(|term| term.rank == rank).count();
                let sent = held * (head - of_terms) + (words - of_words) + (world - 1) * mine.len();
                let received =
                    (bracketing::TERMS - held) * of_terms + (world - 1) * of_words + all - mine.len();
                let traffic = commons.traffic();
                assert_eq!(traffic.payload_sent, 4 * sent as u64, "{world} ranks, {length}");
                assert_eq!(traffic.payload_received, 4 * received as u64, "{world} ranks, {length}");
            }
        });
    }
}

#[test]
fn private_memory_passes_through_in_pieces() {
    const LENGTH: usize = 2500;
    on_each::<Shared, _>(3, |transport, neighbours| {
        let rank = transport.rank();
        let mut commons = open(transport, neighbours, 1000, 1);
        let mut buffer: Vec<f32> = (0..LENGTH).map(|index| element(rank, index)).collect();
        commons.all_reduce_copying(&mut buffer, terms(transport, 1)).expect("an all-reduce");
        assert!(buffer.iter().enumerate().all(|(index, value)| *value == sum(3, index)));
        commons.all_reduce_copying(&mut [], terms(transport, 2)).expect("nothing to do");
    });
}

/// Each rank updates its share of what all read; together it is the update of one.
#[test]
fn shares_of_a_sum_and_update_make_the_whole() {
    const LENGTH: usize = 1234;
    on_each::<Shared, _>(4, |transport, neighbours| {
        let rank = transport.rank();
        let mut commons = open(transport, neighbours, LENGTH, 3);
        commons
            .write_shares(LENGTH, terms(transport, 1), |range, columns| {
                columns[1].iter_mut().zip(range).for_each(|(value, index)| *value = index as f32);
            })
            .expect("initial values");
        for step in 0..50 {
            commons.arena().iter_mut().for_each(|value| *value = rank as f32 + step as f32);
            let mine = commons
                .sum_and(LENGTH, terms(transport, 2 + step), |range, columns| {
                    let [sums, values, momentum] = columns else { panic!("three columns") };
                    for ((value, momentum), sum) in values.iter_mut().zip(momentum.iter_mut()).zip(&**sums) {
                        *momentum = 0.5 * *momentum + sum;
                        *value -= 0.01 * *momentum;
                    }
                    range
                })
                .expect("an update");
            assert_eq!(mine, share(LENGTH, rank, 4));
        }
        let (mut value, mut momentum) = (0.0f32, 0.0f32);
        for step in 0..50 {
            momentum = 0.5 * momentum + (0..4).map(|rank| (rank + step) as f32).sum::<f32>();
            value -= 0.01 * momentum;
        }
        for (index, found) in commons.column(1).iter().enumerate() {
            assert!((found - index as f32 - value).abs() < 0.01, "{index}: {found}");
        }
        assert!(commons.column(2).iter().all(|found| *found == momentum));
        // A barrier, and new memory beside the old.
        commons.barrier(terms(transport, 100)).expect("a barrier");
        assert!(open(transport, neighbours, 10, 1).column(0).iter().all(|value| *value == 0.0));
    });
}

#[test]
fn bytes_are_counted_as_messages_would_be() {
    for traffic in on_each::<Shared, _>(4, |transport, neighbours| {
        let mut commons = open(transport, neighbours, 4096, 1);
        commons.all_reduce(4096, terms(transport, 1)).expect("an all-reduce");
        commons.traffic()
    }) {
        assert_eq!((traffic.payload_sent, traffic.payload_received), (2 * 3 * 4096, 2 * 3 * 4096));
    }
}

#[test]
fn shares_are_counted_as_half_an_all_reduce() {
    for traffic in on_each::<Shared, _>(4, |transport, neighbours| {
        let mut commons = open(transport, neighbours, 4096, 2);
        commons.write_shares(4096, terms(transport, 1), |_, _| ()).expect("shares");
        commons.traffic()
    }) {
        assert_eq!((traffic.payload_sent, traffic.payload_received), (3 * 4096, 3 * 4096));
    }
}

#[test]
fn a_death_ends_a_meeting_and_is_named_by_everybody() {
    let faults = on_each::<Shared, _>(4, |transport, neighbours| {
        let rank = transport.rank();
        let mut commons = open(transport, neighbours, 100, 1);
        commons.all_reduce(100, terms(transport, 1)).expect("all are there");
        if rank == 2 {
            // It is gone without a word; closing what is closed already says nothing.
            let alone = Shared::connect(4).swap_remove(2);
            drop(std::mem::replace(transport, alone));
            return None;
        }
        let fault = commons.all_reduce(100, terms(transport, 2)).expect_err("one is missing");
        // Somebody may still read this rank's share: nobody gets at it any more.
        let touched = catch_unwind(AssertUnwindSafe(|| commons.arena()[0] = 1.0));
        assert!(touched.is_err(), "memory in the middle of an operation");
        Some(fault)
    });
    for fault in faults.into_iter().flatten() {
        assert_eq!(fault.peer, Some(2), "{fault}");
    }
}

#[test]
fn a_silent_rank_is_named_at_the_deadline() {
    let faults = on_each::<Shared, _>(3, |transport, neighbours| {
        let mut commons = open(transport, neighbours, 100, 1);
        if transport.rank() == 1 {
            wait_elsewhere(transport);
            return None;
        }
        Some(
            commons
                .all_reduce(1, Terms { transport, tag: tag(1), deadline: SHORT })
                .expect_err("one is missing"),
        )
    });
    for fault in faults.into_iter().flatten() {
        assert_eq!((fault.peer, &fault.suspects[..]), (Some(1), &[1][..]), "{fault}");
        assert!(matches!(fault.cause, Cause::Silent { .. }), "{fault}");
    }
}

#[test]
fn a_rank_that_came_and_is_not_done_is_slow() {
    let (told, reported) = mpsc::channel();
    let reported = Mutex::new(reported);
    let faults = on_each::<Shared, _>(2, |transport, neighbours| {
        let mut commons = open(transport, neighbours, 100, 1);
        let rank = transport.rank();
        let terms = Terms { transport, tag: tag(1), deadline: SHORT };
        if rank == 1 {
            let long = |_, _: &mut [&mut [f32]]| reported.lock().expect("one user").recv();
            drop(commons.sum_and(1, terms, long));
            return None;
        }
        let fault = commons.all_reduce(1, terms).expect_err("one is slow");
        told.send(()).expect("rank 1 listens");
        Some(fault)
    });
    let fault = faults[0].as_ref().expect("rank 0 reports");
    assert_eq!((fault.peer, &fault.suspects[..]), (Some(1), &[1][..]), "{fault}");
    assert!(matches!(fault.cause, Cause::Slow { .. }), "{fault}");
}

/// Who is late to each meeting by less than the deadline is still late to the operation.
#[test]
fn the_deadline_is_that_of_all_meetings_together() {
    let faults = on_each::<Shared, _>(2, |transport, neighbours| {
        let mut commons = open(transport, neighbours, 100, 1);
        let late = transport.rank() == 1;
        let dawdle = || late.then(|| std::thread::sleep(SHORT * 7 / 10));
        dawdle();
        let deadline = if late { PLENTY } else { SHORT };
        commons.sum_and(1, Terms { transport, tag: tag(1), deadline }, |_, _| dawdle()).err()
    });
    let fault = faults[0].as_ref().expect("it waited for longer than its deadline");
    assert_eq!(fault.peer, Some(1), "{fault}");
    assert!(matches!(fault.cause, Cause::Slow { .. }), "it came to the first: {fault}");
}

/// Waits for something that rank 0 never sends, until the group ends.
fn wait_elsewhere(transport: &mut dyn Transport) -> Option<Fault> {
    let receive = Incoming { from: 0, chunk: 0, bytes: &mut [0] };
    transport.transfer(tag(9), &[], &mut [receive], PLENTY).err()
}

#[test]
fn different_operations_are_noticed() {
    let faults = on_each::<Shared, _>(2, |transport, neighbours| {
        let rank = transport.rank();
        let mut commons = open(transport, neighbours, 100, 1);
        commons.all_reduce(10 + rank, terms(transport, 1)).expect_err("lengths differ")
    });
    assert!(faults.iter().enumerate().all(|(rank, fault)| fault.peer == Some(1 - rank)), "{faults:?}");
    assert!(faults.iter().all(|fault| matches!(fault.cause, Cause::Protocol(_))), "{faults:?}");
}

#[test]
fn different_tensors_of_one_length_are_noticed() {
    let faults = on_each::<Shared, _>(2, |transport, neighbours| {
        let rank = transport.rank();
        let mut commons = open(transport, neighbours, 100, 1);
        let tag = Tag { tensor: tensor(["gradients of a", "gradients of b"][rank]), ..tag(1) };
        commons.all_reduce(10, Terms { transport, tag, deadline: PLENTY }).expect_err("tensors differ")
    });
    assert!(faults.iter().enumerate().all(|(rank, fault)| fault.peer == Some(1 - rank)), "{faults:?}");
    assert!(faults.iter().all(|fault| matches!(fault.cause, Cause::Elsewhere(_))), "{faults:?}");
}

#[test]
fn an_order_to_stop_ends_a_meeting() {
    let outcome: Vec<Option<Fault>> = on_each::<Shared, _>(2, |transport, neighbours| {
        let mut commons = open(transport, neighbours, 100, 1);
        let abort = transport.abort_handle();
        if transport.rank() == 0 {
            std::thread::scope(|scope| {
                scope.spawn(|| abort.abort());
                commons.barrier(terms(transport, 1)).err()
            })
        } else {
            wait_elsewhere(transport)
        }
    });
    // Only the word of rank 0 tells the other one of it.
    let hearsay = Fault { suspects: vec![0], ..Fault::aborted() };
    assert_eq!(outcome, [Some(Fault::aborted()), Some(hearsay)]);
}

#[test]
fn who_has_no_memory_or_no_neighbour_is_named_and_nothing_is_left_on_the_way() {
    on_each::<Shared, _>(3, |transport, neighbours| {
        let huge = Commons::open(neighbours, 1 << 58, 1, terms(transport, 1)).expect("no fault");
        assert!(huge.err().expect("too much").contains("rank 0: "));
        let mut apart = neighbours.clone();
        let far = |peer: usize| (peer == 2) != (transport.rank() == 2);
        apart
            .iter_mut()
            .enumerate()
            .filter(|(peer, _)| far(*peer))
            .for_each(|(_, neighbour)| *neighbour = None);
        let words =
            Commons::open(&apart, 10, 1, terms(transport, 2)).expect("no fault").err().expect("apart");
        assert_eq!(words, "rank 0: rank 2 is on another host");
        open(transport, neighbours, 10, 1).barrier(terms(transport, 3)).expect("it works again");
    });
}
