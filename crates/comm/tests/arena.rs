//! Shared arenas between threads: sums, shards, failures, and allocations that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::time::Duration;
use thalweg_comm::arena::{OperationContext, SharedArena};
use thalweg_comm::collective::PartialSums;
use thalweg_comm::collective::partition::shard_range;
use thalweg_comm::host::{LocalPeers, connect_threads};
use thalweg_comm::transport::{Cause, Incoming, Tag, Transport, TransportError};
use thalweg_comm::wire::tensor;
use thalweg_testkit::transport::{LONG_TIMEOUT, Memory, Mesh, Shared, reduction_tree, run_ranks, tag};

/// A deadline short enough for a test.
const SHORT: Duration = Duration::from_millis(200);

/// Runs a program on every rank of a group of threads.
fn on_each<M: Mesh, R: Send>(
    world: usize,
    program: impl Fn(&mut M::Transport, &LocalPeers) -> R + Sync,
) -> Vec<R> {
    let peers = connect_threads(world).expect("peers");
    run_ranks(M::connect(world), |mut transport| {
        let peers = &peers[transport.rank()];
        let result = program(&mut transport, peers);
        transport.close();
        result
    })
}

fn context(transport: &mut dyn Transport, operation: u64) -> OperationContext<'_> {
    OperationContext { transport, tag: tag(operation), deadline: LONG_TIMEOUT }
}

fn open(transport: &mut dyn Transport, peers: &LocalPeers, length: usize, columns: usize) -> SharedArena {
    SharedArena::open(peers, PartialSums::one(length), columns, context(transport, 0))
        .expect("no transport error")
        .expect("memory")
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
        on_each::<M, _>(world, |transport, peers| {
            let rank = transport.rank();
            let mut arena = open(transport, peers, 5000, 1);
            for (operation, length) in [0, 1, world, 33, 5000].into_iter().enumerate() {
                for (index, value) in arena.arena()[..length].iter_mut().enumerate() {
                    *value = element(rank, index);
                }
                arena.all_reduce(length, context(transport, operation as u64)).expect("an all-reduce");
                for (index, value) in arena.column(0)[..length].iter().enumerate() {
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
fn reduction_trees_do_not_depend_on_the_world_size() {
    for world in 1..=9 {
        let tree = reduction_tree::tree(world);
        on_each::<Shared, _>(world, |transport, peers| {
            for (operation, length) in [0, 1, 31, 100, 5000].into_iter().enumerate() {
                let layout = reduction_tree::layout(length);
                let operation = operation as u64;
                let mut arena = SharedArena::open(peers, layout, 1, context(transport, operation))
                    .expect("no transport error")
                    .expect("memory");
                reduction_tree::fill(&tree, layout, transport.rank(), arena.arena());
                arena
                    .tree_sum_and_apply(&tree, context(transport, operation), |_, _| ())
                    .expect("an all-reduce");
                reduction_tree::check(world, layout, arena.column(0));
                // As in messages: the terms without the own shard, then that shard of the sums to each rank.
                let (rank, head) = (transport.rank(), layout.head);
                let (mine, all) = (shard_range(layout.length, rank, world), layout.length);
                let of_terms = mine.end.min(head) - mine.start.min(head);
                let (of_tail, tail) = (mine.len() - of_terms, all - head);
                let held = tree.terms().iter().filter(|term| term.rank == rank).count();
                let sent = held * (head - of_terms) + (tail - of_tail) + (world - 1) * mine.len();
                let received =
                    (reduction_tree::TERMS - held) * of_terms + (world - 1) * of_tail + all - mine.len();
                let traffic = arena.traffic();
                assert_eq!(traffic.payload_sent, 4 * sent as u64, "{world} ranks, {length}");
                assert_eq!(traffic.payload_received, 4 * received as u64, "{world} ranks, {length}");
            }
        });
    }
}

#[test]
fn private_memory_is_copied_through_in_blocks() {
    const LENGTH: usize = 2500;
    on_each::<Shared, _>(3, |transport, peers| {
        let rank = transport.rank();
        let mut arena = open(transport, peers, 1000, 1);
        let mut buffer: Vec<f32> = (0..LENGTH).map(|index| element(rank, index)).collect();
        arena.all_reduce_copying(&mut buffer, context(transport, 1)).expect("an all-reduce");
        assert!(buffer.iter().enumerate().all(|(index, value)| *value == sum(3, index)));
        arena.all_reduce_copying(&mut [], context(transport, 2)).expect("nothing to do");
    });
}

/// Each rank updates its shard of a column; together they compute the same as a single rank.
#[test]
fn sharded_updates_equal_a_single_update() {
    const LENGTH: usize = 1234;
    on_each::<Shared, _>(4, |transport, peers| {
        let rank = transport.rank();
        let mut arena = open(transport, peers, LENGTH, 3);
        arena
            .write_shards(LENGTH, context(transport, 1), |range, columns| {
                columns[1].iter_mut().zip(range).for_each(|(value, index)| *value = index as f32);
            })
            .expect("initial values");
        for step in 0..50 {
            arena.arena().iter_mut().for_each(|value| *value = rank as f32 + step as f32);
            let mine = arena
                .sum_and_apply(LENGTH, context(transport, 2 + step), |range, columns| {
                    let [sums, values, momentum] = columns else { panic!("three columns") };
                    for ((value, momentum), sum) in values.iter_mut().zip(momentum.iter_mut()).zip(&**sums) {
                        *momentum = 0.5 * *momentum + sum;
                        *value -= 0.01 * *momentum;
                    }
                    range
                })
                .expect("an update");
            assert_eq!(mine, shard_range(LENGTH, rank, 4));
        }
        let (mut value, mut momentum) = (0.0f32, 0.0f32);
        for step in 0..50 {
            momentum = 0.5 * momentum + (0..4).map(|rank| (rank + step) as f32).sum::<f32>();
            value -= 0.01 * momentum;
        }
        for (index, found) in arena.column(1).iter().enumerate() {
            assert!((found - index as f32 - value).abs() < 0.01, "{index}: {found}");
        }
        assert!(arena.column(2).iter().all(|found| *found == momentum));
        // A barrier, and a second arena beside the first.
        arena.barrier(context(transport, 100)).expect("a barrier");
        assert!(open(transport, peers, 10, 1).column(0).iter().all(|value| *value == 0.0));
    });
}

#[test]
fn traffic_is_counted_as_if_sent_in_messages() {
    for traffic in on_each::<Shared, _>(4, |transport, peers| {
        let mut arena = open(transport, peers, 4096, 1);
        arena.all_reduce(4096, context(transport, 1)).expect("an all-reduce");
        arena.traffic()
    }) {
        assert_eq!((traffic.payload_sent, traffic.payload_received), (2 * 3 * 4096, 2 * 3 * 4096));
    }
}

#[test]
fn writing_shards_counts_as_half_an_all_reduce() {
    for traffic in on_each::<Shared, _>(4, |transport, peers| {
        let mut arena = open(transport, peers, 4096, 2);
        arena.write_shards(4096, context(transport, 1), |_, _| ()).expect("shards");
        arena.traffic()
    }) {
        assert_eq!((traffic.payload_sent, traffic.payload_received), (3 * 4096, 3 * 4096));
    }
}

#[test]
fn a_dead_rank_ends_a_barrier_and_is_named_by_all() {
    let errors = on_each::<Shared, _>(4, |transport, peers| {
        let rank = transport.rank();
        let mut arena = open(transport, peers, 100, 1);
        arena.all_reduce(100, context(transport, 1)).expect("all ranks are alive");
        if rank == 2 {
            // The rank ends without a close frame: its transport is dropped, and the caller closes a fresh one.
            let alone = Shared::connect(4).swap_remove(2);
            drop(std::mem::replace(transport, alone));
            return None;
        }
        let error = arena.all_reduce(100, context(transport, 2)).expect_err("one is missing");
        // Another rank may still read this arena, so it is not accessible any more.
        let touched = catch_unwind(AssertUnwindSafe(|| arena.arena()[0] = 1.0));
        assert!(touched.is_err(), "memory of a failed operation");
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error.peer, Some(2), "{error}");
    }
}

#[test]
fn a_silent_rank_is_named_at_the_deadline() {
    let errors = on_each::<Shared, _>(3, |transport, peers| {
        let mut arena = open(transport, peers, 100, 1);
        if transport.rank() == 1 {
            wait_elsewhere(transport);
            return None;
        }
        Some(
            arena
                .all_reduce(1, OperationContext { transport, tag: tag(1), deadline: SHORT })
                .expect_err("one is missing"),
        )
    });
    for error in errors.into_iter().flatten() {
        assert_eq!((error.peer, &error.suspects[..]), (Some(1), &[1][..]), "{error}");
        assert!(matches!(error.cause, Cause::Silent { .. }), "{error}");
    }
}

#[test]
fn a_rank_that_entered_and_is_not_done_is_slow() {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let errors = on_each::<Shared, _>(2, |transport, peers| {
        let mut arena = open(transport, peers, 100, 1);
        let rank = transport.rank();
        let context = OperationContext { transport, tag: tag(1), deadline: SHORT };
        if rank == 1 {
            let long = |_, _: &mut [&mut [f32]]| receiver.lock().expect("one user").recv();
            drop(arena.sum_and_apply(1, context, long));
            return None;
        }
        let error = arena.all_reduce(1, context).expect_err("one is slow");
        sender.send(()).expect("rank 1 waits");
        Some(error)
    });
    let error = errors[0].as_ref().expect("rank 0 reports");
    assert_eq!((error.peer, &error.suspects[..]), (Some(1), &[1][..]), "{error}");
    assert!(matches!(error.cause, Cause::Slow { .. }), "{error}");
}

/// A rank that is late to each barrier by less than the deadline is still late to the operation.
#[test]
fn all_barriers_of_an_operation_share_its_deadline() {
    let errors = on_each::<Shared, _>(2, |transport, peers| {
        let mut arena = open(transport, peers, 100, 1);
        let late = transport.rank() == 1;
        let delay = || late.then(|| std::thread::sleep(SHORT * 7 / 10));
        delay();
        let deadline = if late { LONG_TIMEOUT } else { SHORT };
        arena.sum_and_apply(1, OperationContext { transport, tag: tag(1), deadline }, |_, _| delay()).err()
    });
    let error = errors[0].as_ref().expect("rank 0 exceeds its deadline");
    assert_eq!(error.peer, Some(1), "{error}");
    assert!(matches!(error.cause, Cause::Slow { .. }), "rank 1 entered the operation: {error}");
}

/// Waits for a frame that rank 0 never sends, until the group fails.
fn wait_elsewhere(transport: &mut dyn Transport) -> Option<TransportError> {
    let receive = Incoming { from: 0, chunk: 0, bytes: &mut [0] };
    transport.transfer(tag(9), &[], &mut [receive], LONG_TIMEOUT).err()
}

#[test]
fn different_lengths_are_detected() {
    let errors = on_each::<Shared, _>(2, |transport, peers| {
        let rank = transport.rank();
        let mut arena = open(transport, peers, 100, 1);
        arena.all_reduce(10 + rank, context(transport, 1)).expect_err("lengths differ")
    });
    assert!(errors.iter().enumerate().all(|(rank, error)| error.peer == Some(1 - rank)), "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error.cause, Cause::Protocol(_))), "{errors:?}");
}

#[test]
fn different_tensors_of_one_length_are_detected() {
    let errors = on_each::<Shared, _>(2, |transport, peers| {
        let rank = transport.rank();
        let mut arena = open(transport, peers, 100, 1);
        let tag = Tag { tensor: tensor(["gradients of a", "gradients of b"][rank]), ..tag(1) };
        arena
            .all_reduce(10, OperationContext { transport, tag, deadline: LONG_TIMEOUT })
            .expect_err("tensors differ")
    });
    assert!(errors.iter().enumerate().all(|(rank, error)| error.peer == Some(1 - rank)), "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error.cause, Cause::OtherOperation(_))), "{errors:?}");
}

#[test]
fn an_abort_ends_a_barrier() {
    let outcome: Vec<Option<TransportError>> = on_each::<Shared, _>(2, |transport, peers| {
        let mut arena = open(transport, peers, 100, 1);
        let abort = transport.abort_handle();
        if transport.rank() == 0 {
            std::thread::scope(|scope| {
                scope.spawn(|| abort.abort());
                arena.barrier(context(transport, 1)).err()
            })
        } else {
            wait_elsewhere(transport)
        }
    });
    // Rank 1 knows it from the close frame of rank 0 only.
    let from_peer = TransportError { suspects: vec![0], ..TransportError::aborted() };
    assert_eq!(outcome, [Some(TransportError::aborted()), Some(from_peer)]);
}

#[test]
fn a_rank_without_memory_or_local_peer_is_named_and_the_group_remains_usable() {
    on_each::<Shared, _>(3, |transport, peers| {
        let huge = SharedArena::open(peers, PartialSums::one(1 << 58), 1, context(transport, 1))
            .expect("no transport error");
        assert!(huge.err().expect("too much").contains("rank 0: "));
        let mut apart = peers.clone();
        let far = |peer: usize| (peer == 2) != (transport.rank() == 2);
        apart.iter_mut().enumerate().filter(|(peer, _)| far(*peer)).for_each(|(_, peer)| *peer = None);
        let reason = SharedArena::open(&apart, PartialSums::one(10), 1, context(transport, 2))
            .expect("no transport error")
            .err()
            .expect("apart");
        assert_eq!(reason, "rank 0: rank 2 is on another host");
        open(transport, peers, 10, 1).barrier(context(transport, 3)).expect("it works again");
    });
}
